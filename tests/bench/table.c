/*
 * table.c - the lock-free table alone, for `make bench`.
 *
 *   table churn LIVE ROUNDS THREADS   with LIVE keys in it, each thread ROUNDS times: find any, remove its oldest, insert one;
 *                                     prints the calls per second of CPU time, all threads together
 *   table grow KEYS FROM              inserts KEYS keys; prints the slots that one operation looked at or moved at most, and
 *                                     the most bytes per key that the process held, both from FROM keys on
 */
#define _GNU_SOURCE
#include "table.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { THREADS_MOST = 16 };

static struct sg_table table;
static long live, rounds;
static int threads;
static pthread_barrier_t start;
static double rate[THREADS_MOST];

/* Addresses as a heap hands them out: multiples of 64 KiB and a header, scattered. */
static uint64_t key_of(uint64_t number)
{
    return ((number * UINT64_C(0x9e3779b97f4a7c15)) >> 20 << 4) | 16;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void fail(const char *what)
{
    fprintf(stderr, "table: %s\n", what);
    exit(1);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *churn(void *which)
{
    uint64_t first = ((uint64_t)(uintptr_t)which << 40) + 1, own = (uint64_t)(live / threads),
             state = 88172645463325252u + first;
    for (uint64_t i = 0; i < own; i++)
        if (sg_table_insert(&table, key_of(first + i), 1, NULL) != 0)
            fail("insert");
    pthread_barrier_wait(&start);
    double begin = seconds();
    for (uint64_t oldest = first; oldest < first + (uint64_t)rounds; oldest++) {
        uint64_t any = oldest + (next_random(&state) >> 32) * own / (UINT64_C(1) << 32);
        if (sg_table_find(&table, key_of(any)) != 1 || sg_table_remove(&table, key_of(oldest)) != 1)
            fail("an entry is not there");
        if (sg_table_insert(&table, key_of(oldest + own), 1, NULL) != 0)
            fail("insert");
    }
    rate[(uintptr_t)which] = 3.0 * (double)rounds / (seconds() - begin);
    return NULL;
}

static void run_churn(void)
{
    pthread_t thread[THREADS_MOST];
    double together = 0;
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, churn, (void *)(uintptr_t)i);
    for (int i = 0; i < threads; i++) {
        pthread_join(thread[i], NULL);
        together += rate[i];
    }
    printf("%.0f\n", together);
}

static void run_grow(long keys, long from)
{
    struct rusage usage;
    long before_kib = 0;
    double most = 0;
    getrusage(RUSAGE_SELF, &usage);
    before_kib = usage.ru_maxrss;
    for (long i = 1; i <= keys; i++) {
        if (sg_table_insert(&table, key_of((uint64_t)i), 1, NULL) != 0)
            fail("insert");
        if (i < from || i % 4096 != 0)
            continue;
        getrusage(RUSAGE_SELF, &usage);
        double each = (double)(usage.ru_maxrss - before_kib) * 1024 / (double)i;
        most = each > most ? each : most;
    }
    printf("%llu %.1f\n", (unsigned long long)sg_table_longest_step(&table), most);
}

int main(int argc, char **argv)
{
    live = argc > 2 ? atol(argv[2]) : 0;
    rounds = argc > 3 ? atol(argv[3]) : 0;
    threads = argc > 4 ? atoi(argv[4]) : 1;
    if (argc > 3 && strcmp(argv[1], "grow") == 0)
        run_grow(live, rounds);
    else if (argc > 4 && threads >= 1 && threads <= THREADS_MOST)
        run_churn();
    else
        fail("churn LIVE ROUNDS THREADS, or grow KEYS FROM");
    return 0;
}
