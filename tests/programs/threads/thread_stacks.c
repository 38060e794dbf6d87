/*
 * thread_stacks - has been promised 200 MiB that it does not touch, and has looked: "ready". Then 64 threads, which
 * were there before, take 768 KiB of their stacks each: "ready". A line ends either wait.
 */
#include "heap_case.h"
#include "look.h"

#include <pthread.h>

enum { THREADS = 64, TAKEN_BYTES = 768 << 10 };

static pthread_barrier_t begin, done;

static void *work(void *unused)
{
    char taken[TAKEN_BYTES];
    (void)pthread_barrier_wait(&begin);
    memset(taken, 1, sizeof taken);
    __asm__ volatile("" : : "r"(taken) : "memory");
    (void)pthread_barrier_wait(&done);
    for (;;)
        (void)pause();
    return unused;
}

static void wait_for_line(void)
{
    char line[8];
    puts("ready");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

int main(void)
{
    pthread_t thread;
    CHECK(pthread_barrier_init(&begin, NULL, THREADS + 1) == 0 && pthread_barrier_init(&done, NULL, THREADS + 1) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    void *volatile kept = malloc(200 * MIB);
    void *volatile most = ask_for_too_much(); /* refused: looks at what is there */
    CHECK(kept != NULL && most == NULL);
    wait_for_line();
    (void)pthread_barrier_wait(&begin);
    (void)pthread_barrier_wait(&done);
    wait_for_line();
    return 0;
}
