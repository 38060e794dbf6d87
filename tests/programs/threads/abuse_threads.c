/*
 * abuse_threads CASE AMOUNT - threads that come, go and are cancelled in every way, and what the guard counts of them.
 */
#include "heap_case.h"

#include <malloc.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

static unsigned amount;

/* What a C++ thread_local with a destructor is compiled to: it runs before the destructors of keys. */
extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *);
extern void *__dso_handle;

static void *map(size_t pages)
{
    void *mapped = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED);
    return mapped;
}

static void take_and_give(void *block)
{
    void *volatile other = malloc(malloc_usable_size(block) + 70000);
    CHECK_EQUAL(munmap(map(2), 2 * PAGE), 0);
    free(other);
    free(block);
}

/* Of its blocks one lives on, one dies with the thread, one is for whoever joins it. */
static void *live_and_die(void *key)
{
    CHECK_EQUAL(__cxa_thread_atexit_impl(take_and_give, malloc(300), &__dso_handle), 0);
    CHECK_EQUAL(__cxa_thread_atexit_impl(take_and_give, malloc(2 * MIB), &__dso_handle), 0);
    CHECK_EQUAL(pthread_setspecific(*(pthread_key_t *)key, malloc(5000)), 0);
    return malloc(777);
}

/* glibc keeps blocks of its own for threads, and stacks: the base is taken when the first have come and gone. */
CASE(lives_of_threads_with_destructors)
{
    enum { AT_ONCE = 16 };
    pthread_t thread[AT_ONCE];
    pthread_key_t key;
    uint64_t heap = 0, mapped = 0;
    live_begin();
    CHECK_EQUAL(pthread_key_create(&key, take_and_give), 0);
    for (unsigned i = 0; i < amount + AT_ONCE; i += AT_ONCE) {
        for (unsigned j = 0; j < AT_ONCE; j++)
            CHECK_EQUAL(pthread_create(&thread[j], NULL, live_and_die, &key), 0);
        for (unsigned j = 0; j < AT_ONCE; j++) {
            void *left;
            CHECK_EQUAL(pthread_join(thread[j], &left), 0);
            free(left);
        }
        if (i == 0) {
            heap = live(SG_DOMAIN_HEAP);
            mapped = live(SG_DOMAIN_MAPPED);
        }
    }
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), heap);
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED), mapped);
    CHECK_EQUAL(segment->unmatched_frees, 0);
    CHECK(segment->record_used < 8 * AT_ONCE); /* the living take over what the dead have left */
}

/* ---- many at once ---- */

static pthread_barrier_t all_there, may_go;

static void *hold(void *number)
{
    char *block = malloc(3000 + (size_t)number % 5000);
    pthread_barrier_wait(&all_there);
    pthread_barrier_wait(&may_go);
    free(block);
    return NULL;
}

CASE(many_threads_at_once)
{
    pthread_t *thread = calloc(amount, sizeof *thread);
    pthread_attr_t small;
    uint64_t held = 0;
    live_begin();
    CHECK_EQUAL(pthread_attr_init(&small), 0);
    CHECK_EQUAL(pthread_attr_setstacksize(&small, (size_t)sysconf(_SC_THREAD_STACK_MIN) + 16384), 0);
    CHECK_EQUAL(pthread_barrier_init(&all_there, NULL, amount + 1), 0);
    CHECK_EQUAL(pthread_barrier_init(&may_go, NULL, amount + 1), 0);
    for (unsigned i = 0; i < amount; i++) {
        void *probe = malloc(3000 + i % 5000);
        held += malloc_usable_size(probe);
        free(probe);
        CHECK_EQUAL(pthread_create(&thread[i], &small, hold, (void *)(uintptr_t)i), 0);
    }
    pthread_barrier_wait(&all_there);
    uint64_t heap = live(SG_DOMAIN_HEAP);
    pthread_barrier_wait(&may_go);
    for (unsigned i = 0; i < amount; i++)
        CHECK_EQUAL(pthread_join(thread[i], NULL), 0);
    /* What the heap gives may be a step more or less than for the probe; and each thread had a block of glibc's own. */
    uint64_t gone = heap - live(SG_DOMAIN_HEAP);
    CHECK(gone + (uint64_t)amount * 16 >= held && gone <= held + (uint64_t)amount * 4096);
    CHECK_EQUAL(segment->unmatched_frees, 0);
    CHECK_EQUAL(segment->faults, 0);
}

/* ---- cancelled threads ---- */

struct kept {
    void *block[4];
    void *mapped;
};

static void clean_up(void *argument)
{
    struct kept *kept = argument;
    for (unsigned i = 0; i < 4; i++)
        free(kept->block[i]);
    CHECK_EQUAL(munmap(kept->mapped, 600 * PAGE), 0);
    free(kept);
}

/* The request to end is there already: nothing of what follows is a cancellation point before the last call, so all of
 * it is done, whatever files the guard opens meanwhile. */
static void *be_cancelled(void *unused)
{
    const struct timespec long_time = {1000, 0};
    struct kept *kept = calloc(1, sizeof *kept);
    pthread_cancel(pthread_self());
    kept->mapped = map(600);
    kept->block[0] = malloc(2 * MIB);
    kept->block[1] = realloc(malloc(100), 3 * MIB);
    kept->block[2] = calloc(70000, 1);
    CHECK(malloc((size_t)1 << 45) == NULL); /* a refusal, with its message */
    pthread_cleanup_push(clean_up, kept);
    kept->block[3] = malloc(10);
    nanosleep(&long_time, NULL); /* holds: until it is cancelled */
    fail(__FILE__, __LINE__, "slept on", 0, 1);
    pthread_cleanup_pop(1);
    return unused;
}

CASE(cancelled_threads)
{
    uint64_t heap = 0, mapped = 0;
    live_begin();
    for (unsigned i = 0; i < amount; i++) {
        pthread_t thread;
        void *result = NULL;
        CHECK_EQUAL(pthread_create(&thread, NULL, be_cancelled, NULL), 0);
        CHECK_EQUAL(pthread_join(thread, &result), 0);
        CHECK(result == PTHREAD_CANCELED);
        if (i == 0) {
            heap = live(SG_DOMAIN_HEAP);
            mapped = live(SG_DOMAIN_MAPPED);
        }
    }
    CHECK_EQUAL(live(SG_DOMAIN_HEAP), heap);
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED), mapped);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    CHECK_EQUAL(segment->unmatched_frees, 0);
}

static void *be_cancelled_anywhere(void *unused)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (;;) {
        void *mapped = mmap(NULL, 600 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        (void)mprotect(mapped, 300 * PAGE, PROT_NONE);
        (void)madvise(mapped, 600 * PAGE, MADV_DONTNEED);
        munmap(mapped, 600 * PAGE);
    }
    return unused;
}

/* Against all rules, in the middle of mmap and munmap: bytes may be lost or left over, but nobody waits for the dead. */
CASE(threads_cancelled_in_any_instruction)
{
    live_begin();
    for (unsigned i = 0; i < amount; i++) {
        const struct timespec moment = {0, (long)(i * 7919 % 300000)};
        pthread_t thread[3];
        void *result = NULL;
        int status = -1;
        for (unsigned j = 0; j < 3; j++)
            CHECK_EQUAL(pthread_create(&thread[j], NULL, be_cancelled_anywhere, NULL), 0);
        nanosleep(&moment, NULL); /* pace: they are somewhere in their work when they are cancelled */
        for (unsigned j = 0; j < 3; j++)
            CHECK_EQUAL(pthread_cancel(thread[j]), 0);
        for (unsigned j = 0; j < 3; j++) {
            CHECK_EQUAL(pthread_join(thread[j], &result), 0);
            CHECK(result == PTHREAD_CANCELED);
        }
        void *volatile large = malloc(4 * MIB);
        CHECK(large != NULL);
        CHECK_EQUAL(munmap(map(700), 700 * PAGE), 0);
        pid_t child = i % 16 == 0 ? fork() : -1;
        if (child == 0)
            _exit(munmap(map(700), 700 * PAGE));
        CHECK(child < 0 || (waitpid(child, &status, 0) == child && status == 0));
        free(large);
    }
}

int main(int count, char **arguments)
{
    amount = count > 2 ? (unsigned)atoi(arguments[2]) : 1;
    return run_case(count, arguments);
}
