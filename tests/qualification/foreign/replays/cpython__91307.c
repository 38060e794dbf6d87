/* python/cpython#91307: programs begun by the first process of a namespace of processes, whose number is 1. */
#include "replay.h"

#include <sched.h>
#include <spawn.h>

extern char **environ;

static void first(void)
{
    char *words[] = {"true", NULL};
    pid_t child;
    NEED(getpid() == 1 && posix_spawnp(&child, "true", NULL, NULL, words, environ) == 0 && status_of(child) == 0);
    child = vfork();
    if (child == 0) {
        execlp("sh", "sh", "-c", "exit 6", (char *)NULL);
        _exit(127);
    }
    int status = status_of(child);
    free(malloc(5 * MIB));
    printf("as 1: %d\n", WEXITSTATUS(status));
    fflush(stdout);
    _exit(0);
}

int main(void)
{
    if (unshare(CLONE_NEWPID) != 0) {
        puts("no namespaces here");
        return 0;
    }
    pid_t child = fork();
    if (child == 0)
        first();
    printf("%d\n", status_of(child));
    return 0;
}
