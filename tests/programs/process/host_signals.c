/* The signal mask and what is pending are the same after every kind of slow path; handlers of a timer that fires all
 * the time allocate and free. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int ticks;

static void on_tick(int signal)
{
    (void)signal;
    void *map = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(map, 1 << 20);
    ticks++;
}

static int slow_paths(void)
{
    free(malloc((size_t)20 << 20));
    munmap(mmap(NULL, 1 << 22, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1 << 22);
    void *volatile refused = malloc((size_t)8 << 40);
    pid_t child = fork();
    if (child == 0) {
        void *volatile block = malloc((size_t)2 << 20);
        _exit(block == NULL);
    }
    int status = 1;
    waitpid(child, &status, 0);
    return refused != NULL || status != 0;
}

int main(void)
{
    sigset_t set, before, after, pending;
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGPIPE);
    sigprocmask(SIG_BLOCK, &set, NULL);
    raise(SIGPIPE); /* pending from here on */
    signal(SIGALRM, on_tick);
    sigprocmask(SIG_SETMASK, NULL, &before);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 50 || ticks < 20; i++)
        if (slow_paths() != 0)
            return 1;
    setitimer(ITIMER_REAL, &never, NULL);
    sigprocmask(SIG_SETMASK, NULL, &after);
    sigpending(&pending);
    if (memcmp(&before, &after, 8) != 0)
        return 2;
    return sigismember(&pending, SIGPIPE) && !sigismember(&pending, SIGUSR1) ? 0 : 3;
}
