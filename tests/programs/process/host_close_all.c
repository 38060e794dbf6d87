/* Closes every descriptor from 3 on, by hand (argv[1] "loop") or at once ("range"), before and after it allocates, then
 * uses the numbers for files of its own: nothing but its own bytes may arrive there. Waits for its standard input to
 * end. */
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void close_all(const char *how)
{
    if (strcmp(how, "loop") == 0)
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
    else
        syscall(SYS_close_range, 3, ~0u, 0);
}

int main(int count, char **arguments)
{
    static char *block[64];
    char byte;
    int fd[8];
    (void)count;
    close_all(arguments[1]);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 16; i++)
            memset(block[round * 16 + i] = malloc(1 << 20), round, 1 << 20);
        close_all(arguments[1]);
    }
    for (int i = 0; i < 8; i++)
        fd[i] = open(arguments[2], O_WRONLY | O_CREAT | O_APPEND, 0600);
    free(malloc((size_t)64 << 20));
    for (int i = 0; i < 8; i++)
        if (fd[i] != 3 + i || write(fd[i], "mine\n", 5) != 5)
            return 1;
    dprintf(1, "ready\n");
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
