/* Goes into the empty directory argv[1] by chroot and allocates 64 MiB there; as argv[2] says after having held 32 MiB
 * already ("late") or not ("early"). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    void *volatile before = count > 2 && strcmp(arguments[2], "late") == 0 ? malloc((size_t)32 << 20) : NULL;
    (void)before;
    if (chroot(arguments[1]) != 0 || chdir("/") != 0)
        return 77;
    for (int i = 0; i < 16; i++) {
        char *block = malloc((size_t)4 << 20);
        if (block == NULL)
            return 1;
        memset(block, 1, (size_t)4 << 20);
    }
    return dprintf(1, "held\n") == 5 ? 0 : 2;
}
