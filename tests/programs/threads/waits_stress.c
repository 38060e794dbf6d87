/*
 * waits_stress WHAT - threads that ask for memory without end, beside: fork (three that fork at once), stop (one that
 * stops all others by a signal, looks at what they have, and forks, as a collector does, while others fork), exec
 * (one that becomes this program again, a few times). The last line is "done".
 */
#include "program.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TAKERS = 3, FORKERS = 3, FORKS = 40, STOPS = 60, EXECS = 5 };

static int is_over, round_number; /* (atomic) */
static sem_t has_stopped;
static pthread_t taker[TAKERS];

static void ask(void)
{
    void *volatile block[] = {malloc(100), malloc(100000), malloc(2 * MIB)};
    void *map = mmap(NULL, 2 * MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(map != MAP_FAILED && mprotect(map, 2 * MIB, PROT_READ | PROT_WRITE) == 0);
    for (int i = 0; i < 3; i++)
        free(block[i]);
    NEED(munmap(map, 2 * MIB) == 0);
}

static void *take(void *unused)
{
    while (__atomic_load_n(&is_over, __ATOMIC_SEQ_CST) == 0)
        ask();
    return unused;
}

static void fork_one(void)
{
    int status = 1;
    pid_t pid = fork();
    if (pid == 0) {
        ask();
        _exit(0);
    }
    NEED(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

static void *fork_many(void *unused)
{
    for (int i = 0; i < FORKS; i++)
        fork_one();
    return unused;
}

/* Parked as by a collector: whatever the thread was in the middle of waits, and whoever waits for that. */
static void park(int signal)
{
    (void)signal;
    int this_round = __atomic_load_n(&round_number, __ATOMIC_SEQ_CST);
    sem_post(&has_stopped);
    while (__atomic_load_n(&round_number, __ATOMIC_SEQ_CST) == this_round)
        usleep(100); /* poll: the next round */
}

static void stop_the_world(void)
{
    for (int i = 0; i < TAKERS; i++)
        NEED(pthread_kill(taker[i], SIGUSR1) == 0);
    for (int i = 0; i < TAKERS; i++)
        sem_wait(&has_stopped);
    void *map = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(map != MAP_FAILED && munmap(map, 2 * MIB) == 0);
    __atomic_add_fetch(&round_number, 1, __ATOMIC_SEQ_CST);
}

static void *fork_in_a_world_that_stops(void *unused)
{
    while (__atomic_load_n(&is_over, __ATOMIC_SEQ_CST) == 0)
        fork_one();
    return unused;
}

int main(int count, char **arguments)
{
    const char *what = count > 1 ? arguments[1] : "fork";
    pthread_t forker[FORKERS];
    void *volatile kept = malloc(300 * MIB);
    NEED(kept != NULL && sem_init(&has_stopped, 0, 0) == 0);
    NEED(sigaction(SIGUSR1, &(struct sigaction){.sa_handler = park, .sa_flags = SA_RESTART}, NULL) == 0);
    for (int i = 0; i < TAKERS; i++)
        NEED(pthread_create(&taker[i], NULL, take, NULL) == 0);
    if (strcmp(what, "exec") == 0) {
        int round = count > 2 ? atoi(arguments[2]) : 0;
        char next[12];
        snprintf(next, sizeof next, "%d", round + 1);
        if (round < EXECS)
            NEED(execl("/proc/self/exe", arguments[0], what, next, NULL) == 0);
    }
    bool stops = strcmp(what, "stop") == 0;
    for (int i = 0; i < FORKERS; i++)
        NEED(pthread_create(&forker[i], NULL, stops ? fork_in_a_world_that_stops : fork_many, NULL) == 0);
    for (int i = 0; stops && i < STOPS; i++)
        stop_the_world();
    if (stops)
        __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < FORKERS; i++)
        NEED(pthread_join(forker[i], NULL) == 0);
    __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < TAKERS; i++)
        NEED(pthread_join(taker[i], NULL) == 0);
    puts("done");
    return 0;
}
