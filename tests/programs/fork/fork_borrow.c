/*
 * fork_borrow WHEN - a child that has its parent's memory takes 300 MiB there, before or after the parent has asked
 * for any, and ends; then the parent takes as much: "ready", until a line comes.
 *
 * WHEN: first, later (vfork); namespace (clone(2) with CLONE_VM, as the first process of another namespace of pids:
 * asks for nothing).
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static void *volatile kept, *volatile childs;

static int end_elsewhere(void *unused)
{
    (void)unused;
    _exit(0);
}

static pid_t begin_child(const char *when)
{
    static char stack[64 << 10] __attribute__((aligned(16)));
    if (strcmp(when, "namespace") == 0)
        return clone(end_elsewhere, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_NEWPID | SIGCHLD, NULL);
    pid_t pid = vfork();
    if (pid == 0) {
        childs = malloc(300 * MIB);
        _exit(childs == NULL);
    }
    return pid;
}

int main(int count, char **arguments)
{
    const char *when = count > 1 ? arguments[1] : "first";
    int status = 1;
    if (strcmp(when, "namespace") == 0)
        kept = malloc(300 * MIB);
    else if (strcmp(when, "later") == 0)
        free(malloc(100));
    pid_t pid = begin_child(when);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        return 77;
    if (kept == NULL)
        kept = malloc(300 * MIB);
    puts("ready");
    fflush(stdout);
    return getchar() == EOF || kept == NULL;
}
