/* Opens argv[1] for its data, which becomes descriptor argv[2] when that was closed at its start (or is put there by
 * dup2 if argv[3] says "dup"), has a request refused, and writes its data. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    int wanted = atoi(arguments[2]);
    int fd = open(arguments[1], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (count > 3)
        fd = dup2(fd, wanted);
    while (count <= 3 && fd >= 0 && fd < wanted)
        fd = dup(fd);
    if (fd != wanted || malloc((size_t)8 << 30) != NULL)
        return 1;
    return write(fd, "data\n", 5) == 5 ? 0 : 2;
}
