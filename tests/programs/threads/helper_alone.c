/*
 * helper_alone WHAT - a program of one thread, in which the guard has its watchdog. WHAT:
 *
 * shows: prints whether the C library still takes it for a program of one thread, and how many pthread keys there
 * are for it. forks: forks in a signal's handler, which interrupts malloc, until it has done so often: "done".
 */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEED(condition) \
    do \
        if (!(condition)) { \
            (void)!write(2, #condition "\n", sizeof #condition); \
            _exit(1); \
        } \
    while (0)

enum { FORKS = 100 };

static volatile sig_atomic_t forks;

static int has_helper(void)
{
    int threads = 0;
    DIR *tasks = opendir("/proc/self/task");
    NEED(tasks != NULL);
    while (readdir(tasks) != NULL)
        threads++;
    closedir(tasks);
    return threads > 3; /* and . and .. */
}

extern char __libc_single_threaded __attribute__((weak)); /* since glibc 2.32 */

static int is_single(void)
{
    return &__libc_single_threaded == NULL || __libc_single_threaded != 0;
}

static void show(void)
{
    int keys = 0;
    pthread_key_t key;
    while (pthread_key_create(&key, NULL) == 0)
        keys++;
    printf("%d thread, %d keys\n", is_single(), keys);
}

/* The next signal comes a moment after this handler has ended, however long that takes. */
static void begin_timer(void)
{
    NEED(setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 2000}}, NULL) == 0);
}

static void fork_one(int signal)
{
    int status = 1;
    (void)signal;
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    NEED(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    forks++;
    if (forks < FORKS)
        begin_timer();
}

static void fork_in_handlers(void)
{
    NEED(sigaction(SIGALRM, &(struct sigaction){.sa_handler = fork_one, .sa_flags = SA_RESTART}, NULL) == 0);
    begin_timer();
    while (forks < FORKS) {
        void *volatile block[16];
        for (size_t i = 0; i < 16; i++)
            block[i] = malloc(100 + 5000 * i);
        for (size_t i = 0; i < 16; i++)
            free(block[i]);
    }
    puts("done");
}

int main(int count, char **arguments)
{
    void *volatile kept = malloc((size_t)300 << 20);
    NEED(kept != NULL && count == 2);
    while (!has_helper())
        usleep(1000); /* poll: the helper */
    if (strcmp(arguments[1], "shows") == 0)
        show();
    else
        fork_in_handlers();
    return 0;
}
