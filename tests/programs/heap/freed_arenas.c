/*
 * freed_arenas WHAT - takes memory of the heap in small blocks, frees all but the last block of each thread, and asks
 * for one more block of 300 MiB. glibc keeps what was freed: other blocks lie above it. Prints "granted" or "refused".
 *
 * WHAT: threads (four threads take 60 MiB each, in arenas of their own), alone (the only thread takes 240 MiB), little
 * (four threads take 10 MiB each, and 500 are asked for), alone_little (the only thread takes 10), hold (four threads
 * take 70 MiB each; then prints "ready" and waits for a line), alone_hold (the same with the only thread and 280),
 * handler (as threads; meanwhile the main thread allocates and frees, and three times a signal handler asks for a
 * mapping of 300 MiB in the midst of that; prints "granted" or "refused" for each), alone_handler (as alone and
 * handler; then the thread asks for 290 MiB itself, because a refusal of as much holds for a moment), alone_stack (the
 * same with a stack of the handler's own).
 */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "program.h"

enum { THREADS = 4, BLOCK_BYTES = 2000 };

static size_t bytes_each;
static volatile sig_atomic_t answers;
static pthread_barrier_t barrier;

static void fill(void *list_of_last)
{
    void **first = NULL;
    for (size_t taken = 0; taken < bytes_each; taken += BLOCK_BYTES) {
        void **block = malloc(BLOCK_BYTES);
        NEED(block != NULL);
        memset(block, 1, BLOCK_BYTES);
        *block = first;
        first = block;
    }
    *(void **)list_of_last = first; /* stays: it lies above all others */
}

static void free_all_but(void **last)
{
    for (void **block = *last; block != NULL;) {
        void **next = *block;
        free(block);
        block = next;
    }
}

static void *work(void *last)
{
    fill(last);
    pthread_barrier_wait(&barrier);
    free_all_but(*(void **)last);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier); /* a thread that ends leaves its arena to others */
    return NULL;
}

static void ask(int signal)
{
    void *mapped = mmap(NULL, 300 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)signal;
    const char *answer = mapped != MAP_FAILED ? "granted\n" : "refused\n";
    if (mapped != MAP_FAILED)
        munmap(mapped, 300 * MIB);
    NEED(write(1, answer, strlen(answer)) > 0);
    answers++;
}

static void ask_in_handler(int flags)
{
    static char own_stack[64 << 10];
    const stack_t stack = {.ss_sp = own_stack, .ss_size = sizeof own_stack};
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    const struct itimerspec each = {{1, 100000000}, {0, 50000000}};
    NEED(sigaltstack(&stack, NULL) == 0);
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = ask, .sa_flags = flags}, NULL);
    NEED(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &each, NULL) == 0);
    while (answers < 3) { /* blocks for which a thread's own cache is too small: each takes the lock of the arena */
        void *volatile block[64];
        for (int i = 0; i < 64; i++)
            block[i] = malloc(3000 + (size_t)i * 100);
        for (int i = 0; i < 64; i++)
            free(block[i]);
    }
    timer_delete(timer);
}

/* Whether the word begins with the other one. */
static int begins(const char *word, const char *with)
{
    return strncmp(word, with, strlen(with)) == 0;
}

static int ends(const char *word, const char *with)
{
    return strlen(word) >= strlen(with) && strcmp(word + strlen(word) - strlen(with), with) == 0;
}

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "threads";
    static void *last[THREADS];
    pthread_t thread[THREADS];
    int threads = !begins(what, "alone") ? THREADS : 0, is_little = ends(what, "little");
    int is_holder = ends(what, "hold"), is_asked = ends(what, "handler") || ends(what, "stack");
    bytes_each = (is_little ? 10 : is_holder && threads != 0 ? 70 : threads != 0 ? 60 : is_holder ? 280 : 240) * MIB;
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    for (int i = 0; i < threads; i++)
        NEED(pthread_create(&thread[i], NULL, work, &last[i]) == 0);
    if (threads == 0)
        fill(&last[0]);
    pthread_barrier_wait(&barrier); /* the heap holds all at once */
    if (threads == 0)
        free_all_but(last[0]);
    pthread_barrier_wait(&barrier);
    if (is_holder)
        NEED(write(1, "ready\n", 6) == 6 && getchar() != EOF);
    else if (is_asked)
        ask_in_handler(ends(what, "stack") ? SA_ONSTACK : 0);
    if (!is_holder && (!is_asked || threads == 0))
        puts(malloc((is_little ? 500 : is_asked ? 290 : 300) * MIB) != NULL ? "granted" : "refused");
    pthread_barrier_wait(&barrier);
    return 0;
}
