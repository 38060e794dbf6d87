/* Names phases and prints what it is told, one word and numbers a line. What is printed with the guard and without is
 * the test's to judge; every call is made in both cases. */
#include "sparkguard.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define LONG_NAME "a phase of a name that is longer than anybody should ever give to a phase \xe2\x82\xac"

static void say(const char *when)
{
    struct sparkguard_stats stats;
    int result = sparkguard_stats(&stats);
    dprintf(1, "%s %d %llu %llu %llu %llu %llu\n", when, result, (unsigned long long)stats.live_bytes,
            (unsigned long long)stats.peak_bytes, (unsigned long long)stats.heap.live_bytes,
            (unsigned long long)stats.heap.peak_bytes, (unsigned long long)stats.usable_bytes);
}

static void take_and_give(size_t bytes)
{
    void *volatile block = malloc(bytes);
    free(block);
}

static void on_signal(int number)
{
    (void)number;
    (void)sparkguard_mark("handler");
    (void)sparkguard_reset_peak();
}

static void *mark_often(void *unused)
{
    for (int i = 0; i < 200; i++) {
        (void)sparkguard_mark("stress");
        take_and_give(2 * MIB);
        if (i % 16 == 0)
            (void)raise(SIGUSR1);
    }
    return unused;
}

static void stress(void)
{
    pthread_t thread[4];
    (void)signal(SIGUSR1, on_signal);
    for (int i = 0; i < 4; i++)
        if (pthread_create(&thread[i], NULL, mark_often, NULL) != 0)
            _exit(9);
    for (int i = 0; i < 4; i++)
        (void)pthread_join(thread[i], NULL);
}

int main(int count, char **argument)
{
    errno = EDOM;
    dprintf(1, "active %d\n", sparkguard_active());
    void *volatile kept = malloc(20 * MIB);
    dprintf(1, "mark %d %d %d\n", sparkguard_mark("load"), sparkguard_mark(NULL), sparkguard_mark(""));
    take_and_give(64 * MIB);
    say("load");
    (void)sparkguard_mark("train");
    take_and_give(8 * MIB);
    say("train");
    dprintf(1, "reset %d\n", sparkguard_reset_peak());
    say("reset");
    if (count > 1 && argument[1][0] == 's')
        stress();
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        say("child");
        (void)sparkguard_mark("child's");
        dprintf(1, "pid %d\n", getpid());
        _exit(0);
    }
    pid_t ended = wait(&status);
    dprintf(1, "ended %d %d\n", child > 0 && ended == child, status);
    free(kept);
    (void)sparkguard_mark(LONG_NAME);
    void *volatile last = malloc(3 * MIB);
    dprintf(1, "errno %d\n", errno == EDOM);
    return last == NULL;
}
