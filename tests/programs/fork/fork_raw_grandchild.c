/* The parent holds 300 MiB and forks; the child makes a grandchild by a raw clone at once, before it asks for anything,
 * which takes 40 MiB more. Each prints its pid when it has done so and waits for standard input to end. */
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static int tell(const char *who)
{
    char byte;
    dprintf(1, "%s %d\n", who, getpid());
    return read(0, &byte, 1) != 0;
}

int main(void)
{
    void *volatile held = malloc(300 * MIB);
    if (held == NULL)
        return 9;
    if (fork() == 0) {
        if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
            void *volatile more = malloc(40 * MIB);
            _exit(more == NULL || tell("grandchild"));
        }
        _exit(wait(NULL) < 0 || tell("child"));
    }
    return tell("parent") || wait(NULL) < 0;
}
