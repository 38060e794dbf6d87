/*
 * tenant_churn - a busy program for others to disturb. A round for each line it reads, then "round": two threads take
 * and free blocks and a mapping, a phase is marked, figures are asked for, a child is forked that allocates. Refusals
 * are all right. At the end of input, how often a thread slept in the single call in which it slept most.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sparkguard.h"

static long most_sleeps; /* (atomic) a busy machine makes it no more */

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static long sleeps_of_this_thread(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nvcsw : 0;
}

/* False: it had to wait. Others can see to that each time; once is enough. */
static bool take_one(size_t bytes)
{
    double begin = now_ms();
    long before = sleeps_of_this_thread();
    char *volatile block = malloc(bytes);
    double took = now_ms() - begin;
    long sleeps = sleeps_of_this_thread() - before, most = __atomic_load_n(&most_sleeps, __ATOMIC_SEQ_CST);
    while (sleeps > most &&
           !__atomic_compare_exchange_n(&most_sleeps, &most, sleeps, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    if (block != NULL)
        block[bytes - 1] = 1;
    free(block);
    return took < 500;
}

static void *take(void *unused)
{
    for (size_t i = 0; i < 2000; i++)
        if (!take_one(16 + i * 37 % 5000))
            return unused;
    void *mapped = mmap(NULL, 512 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped != MAP_FAILED)
        munmap(mapped, 512 << 10);
    return unused;
}

static void do_round(unsigned number)
{
    struct sparkguard_stats stats = {.size = sizeof stats};
    pthread_t thread;
    int status = 0;
    if (sparkguard_mark != NULL && (sparkguard_mark("round") != 0 || sparkguard_stats(&stats) != 0))
        exit(2);
    if (pthread_create(&thread, NULL, take, NULL) != 0)
        exit(3);
    take(NULL);
    if (number % 8 == 2)
        (void)take_one(8 << 20); /* large: may have to wait for others */
    pthread_join(thread, NULL);
    pid_t child = fork();
    if (child == 0) {
        take(NULL);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        exit(4);
}

int main(void)
{
    char line[16];
    for (unsigned i = 0; read(0, line, 1) == 1; i++) {
        do_round(i);
        dprintf(1, "round\n");
    }
    dprintf(1, "%ld\n", __atomic_load_n(&most_sleeps, __ATOMIC_SEQ_CST));
    return 0;
}
