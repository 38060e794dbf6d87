/*
 * table.c - the lock-free table alone, for `make bench`.
 *
 *   table churn LIVE ROUNDS THREADS   with LIVE keys in it, each thread ROUNDS times: find any, remove its oldest,
 *                                     insert one; prints the calls per second of CPU time, all threads together
 *   table floor LIVE ROUNDS           the same in a plain array with as many slots and the same hash, for one thread:
 *                                     what this machine has for a table whose entries lie this far apart; prints the
 *                                     calls per second
 *   table grow KEYS FROM              inserts KEYS keys; prints the slots that one operation looked at or moved at
 *                                     most, and the most bytes per key that the process held, both from FROM keys on
 */
#define _GNU_SOURCE
#include "account/block_table.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { THREADS_MAX = 16 };

static struct sg_block_table table;
static long live, rounds;
static int threads;
static pthread_barrier_t start;
static double rate[THREADS_MAX];

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
        if (sg_block_table_insert(&table, key_of(first + i), 1, NULL) != 0)
            fail("insert");
    pthread_barrier_wait(&start);
    double begin = seconds();
    for (uint64_t oldest = first; oldest < first + (uint64_t)rounds; oldest++) {
        uint64_t any = oldest + (next_random(&state) >> 32) * own / (UINT64_C(1) << 32);
        if (sg_block_table_find(&table, key_of(any)) != 1 || sg_block_table_remove(&table, key_of(oldest)) != 1)
            fail("an entry is not there");
        if (sg_block_table_insert(&table, key_of(oldest + own), 1, NULL) != 0)
            fail("insert");
    }
    rate[(uintptr_t)which] = 3.0 * (double)rounds / (seconds() - begin);
    return NULL;
}

static void run_churn(void)
{
    pthread_t thread[THREADS_MAX];
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

/* ---- the floor: linear probing, a word for "was here", no growth, no atomics ---- */

#define FREED UINT64_MAX

static struct sg_block_table_slot *plain;
static uint64_t plain_mask;
static uint32_t plain_shift;

static struct sg_block_table_slot *plain_search(uint64_t key, int is_insert)
{
    uint64_t place = ((key ^ (key >> 29)) * UINT64_C(0x9e3779b97f4a7c15)) >> plain_shift;
    for (;; place++) {
        struct sg_block_table_slot *slot = &plain[place & plain_mask];
        if (slot->key == key || slot->key == 0 || (is_insert && slot->key == FREED))
            return slot;
    }
}

static void plain_insert(uint64_t key)
{
    *plain_search(key, 1) = (struct sg_block_table_slot){key, 1};
}

static void run_floor(void)
{
    uint64_t slots = 256, state = 88172645463325252u;
    while (slots / 4 * 3 <= (uint64_t)live)
        slots *= 2;
    plain = calloc(slots, sizeof *plain);
    if (plain == NULL)
        fail("memory");
    plain_mask = slots - 1;
    plain_shift = (uint32_t)(64 - __builtin_ctzll(slots));
    for (long i = 1; i <= live; i++)
        plain_insert(key_of((uint64_t)i));
    double begin = seconds();
    for (uint64_t oldest = 1; oldest <= (uint64_t)rounds; oldest++) {
        uint64_t any = oldest + (next_random(&state) >> 32) * (uint64_t)live / (UINT64_C(1) << 32);
        struct sg_block_table_slot *slot = plain_search(key_of(oldest), 0);
        if (plain_search(key_of(any), 0)->value != 1 || slot->value != 1)
            fail("an entry is not there");
        *slot = (struct sg_block_table_slot){FREED, 0};
        plain_insert(key_of(oldest + (uint64_t)live));
    }
    printf("%.0f\n", 3.0 * (double)rounds / (seconds() - begin));
    free(plain);
}

static void run_grow(long keys, long from)
{
    struct rusage usage;
    long before_kib = 0;
    double most = 0;
    getrusage(RUSAGE_SELF, &usage);
    before_kib = usage.ru_maxrss;
    for (long i = 1; i <= keys; i++) {
        if (sg_block_table_insert(&table, key_of((uint64_t)i), 1, NULL) != 0)
            fail("insert");
        if (i < from || i % 4096 != 0)
            continue;
        getrusage(RUSAGE_SELF, &usage);
        double each = (double)(usage.ru_maxrss - before_kib) * 1024 / (double)i;
        most = each > most ? each : most;
    }
    printf("%llu %.1f\n", (unsigned long long)sg_block_table_longest_step(&table), most);
}

int main(int argc, char **argv)
{
    live = argc > 2 ? atol(argv[2]) : 0;
    rounds = argc > 3 ? atol(argv[3]) : 0;
    threads = argc > 4 ? atoi(argv[4]) : 1;
    if (argc > 3 && strcmp(argv[1], "grow") == 0)
        run_grow(live, rounds);
    else if (argc > 3 && strcmp(argv[1], "floor") == 0)
        run_floor();
    else if (argc > 4 && threads >= 1 && threads <= THREADS_MAX)
        run_churn();
    else
        fail("churn LIVE ROUNDS THREADS, floor LIVE ROUNDS, or grow KEYS FROM");
    return 0;
}
