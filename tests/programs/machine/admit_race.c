/*
 * admit_race ROUNDS room COUNT SIZE_MIB FIT   COUNT threads ask for SIZE at once, FIT of which there is room for: each
 *                                             time exactly as many get it, whoever they are
 * admit_race ROUNDS limit MIB MIB             two threads take and give back blocks that fit the limit together, a
 *                                             third small ones: nobody is ever refused
 */
#include "heap_case.h"

#include <pthread.h>

enum { THREADS_MAX = 16 };

static pthread_barrier_t start, taken, over;
static size_t size[2];
static int rounds;
static unsigned got;
static volatile int is_over;

static void *ask(void *unused)
{
    for (int round = 0; round < rounds; round++) {
        pthread_barrier_wait(&start);
        void *ptr = malloc(size[0]);
        __atomic_fetch_add(&got, ptr != NULL, __ATOMIC_SEQ_CST);
        pthread_barrier_wait(&taken);
        free(ptr);
        pthread_barrier_wait(&over);
    }
    return unused;
}

static void *take_and_give_back(void *argument)
{
    for (int round = 0; round < rounds; round++) {
        void *ptr = malloc(*(size_t *)argument);
        CHECK(ptr != NULL);
        free(ptr);
    }
    return NULL;
}

static void *take_small_ones(void *unused)
{
    while (!is_over) {
        void *ptr[16];
        for (int i = 0; i < 16; i++)
            CHECK((ptr[i] = malloc(300000)) != NULL);
        for (int i = 0; i < 16; i++)
            free(ptr[i]);
    }
    return unused;
}

int main(int count, char **arguments)
{
    pthread_t thread[THREADS_MAX];
    rounds = atoi(arguments[1]);
    if (count == 6) {
        unsigned threads = (unsigned)atoi(arguments[3]), fit = (unsigned)atoi(arguments[5]);
        size[0] = (size_t)atoi(arguments[4]) * MIB;
        pthread_barrier_init(&start, NULL, threads + 1);
        pthread_barrier_init(&taken, NULL, threads + 1);
        pthread_barrier_init(&over, NULL, threads + 1);
        for (unsigned i = 0; i < threads; i++)
            CHECK_EQUAL(pthread_create(&thread[i], NULL, ask, NULL), 0);
        for (int round = 0; round < rounds; round++) {
            got = 0;
            pthread_barrier_wait(&start);
            pthread_barrier_wait(&taken);
            CHECK_EQUAL(got, fit);
            pthread_barrier_wait(&over);
        }
        return 0;
    }
    size[0] = (size_t)atoi(arguments[3]) * MIB;
    size[1] = (size_t)atoi(arguments[4]) * MIB;
    CHECK_EQUAL(pthread_create(&thread[0], NULL, take_and_give_back, &size[0]), 0);
    CHECK_EQUAL(pthread_create(&thread[1], NULL, take_and_give_back, &size[1]), 0);
    CHECK_EQUAL(pthread_create(&thread[2], NULL, take_small_ones, NULL), 0);
    pthread_join(thread[0], NULL);
    pthread_join(thread[1], NULL);
    is_over = 1;
    pthread_join(thread[2], NULL);
    return 0;
}
