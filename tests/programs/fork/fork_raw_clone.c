/* A child made by a raw clone(2), which no handler of fork hears of, takes 128 MiB in small and large blocks and ends;
 * then the parent, which holds 32 MiB, says so and waits. Nothing of the child's may be in its figures. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    char byte;
    int status = -1;
    void *volatile block = malloc((size_t)32 << 20);
    (void)block;
    long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        for (int i = 0; i < 64 * 16; i++)
            if (malloc(64 << 10) == NULL)
                syscall(SYS_exit_group, 1);
        void *volatile large = malloc((size_t)64 << 20);
        syscall(SYS_exit_group, large == NULL);
    }
    if (waitpid((pid_t)child, &status, 0) != child || status != 0)
        return 1;
    dprintf(1, "%ld\n", child);
    return read(0, &byte, 1) != 0;
}
