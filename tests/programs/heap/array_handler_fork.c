/*
 * array_handler_fork SIZE [FORKS] - a signal handler forks while malloc and free of arrays are at any instruction. The
 * child goes on where the handler interrupted them, and is another process there. Prints how many children ended badly.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS_OF_CHILD = 100 };

static volatile int is_child, forks, rounds_left;

static void set_timer(long microseconds)
{
    const struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void fork_here(int signal)
{
    (void)signal;
    if (is_child)
        return;
    pid_t child = fork();
    if (child == 0) {
        is_child = 1;
        rounds_left = ROUNDS_OF_CHILD;
        set_timer(0);
    }
    forks += child > 0;
}

static int ended_badly(int options)
{
    int status, bad = 0;
    while (waitpid(-1, &status, options) > 0)
        bad += status != 0;
    return bad;
}

int main(int count, char **arguments)
{
    size_t size = count > 1 ? strtoul(arguments[1], NULL, 0) : 1 << 20;
    int wanted = count > 2 ? atoi(arguments[2]) : 300;
    int bad = 0;
    for (int i = 0; i < 3; i++)
        free(malloc((32 << 20) - 8192));
    for (int i = 0; i < 1000; i++)
        free(malloc(size));
    signal(SIGALRM, fork_here);
    set_timer(1500);
    while (forks < wanted || is_child) {
        void *volatile block = malloc(size);
        free(block);
        if (is_child && --rounds_left < 0)
            _exit(0);
        if (!is_child)
            bad += ended_badly(WNOHANG);
    }
    set_timer(0);
    if (is_child) /* forked after the last test of the loop's condition */
        _exit(0);
    bad += ended_badly(0);
    printf("%d\n", bad);
    return 0;
}
