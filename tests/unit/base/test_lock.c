/*
 * test_lock.c - the futex lock of the slow paths.
 */
#include "fixture.h"

#include "base/lock.h"

#include <pthread.h>

static struct sg_lock lock;
static uint64_t counter; /* plain on purpose: the lock protects it */

static void *count(void *unused)
{
    (void)unused;
    for (int i = 0; i < 50000; i++) {
        struct sg_lock_state state;
        sg_lock_acquire(&lock, &state);
        counter++;
        sg_lock_release(&lock, &state);
    }
    return NULL;
}

CHILD_TEST(one_thread_at_a_time)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, count, NULL) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_EQUAL(counter, 200000);
    CHECK_EQUAL(lock.word, 0);
}

/* Of several tries one must end soon, for the machine may have other work. */
CHILD_TEST(who_waits_in_vain_gives_up_and_holds_nothing)
{
    enum { WAIT_NS = 50000000 };
    struct sg_lock_state held, other;
    uint64_t waited = UINT64_MAX;
    sigset_t before, after;
    CHECK(sg_lock_acquire_within(&lock, &held, 0));
    sg_lock_release(&lock, &held);
    CHECK(sigprocmask(SIG_SETMASK, NULL, &before) == 0);
    sg_lock_acquire(&lock, &held);
    for (int i = 0; i < 20 && waited >= 2 * WAIT_NS; i++) {
        uint64_t begin = clock_ns();
        CHECK(!sg_lock_acquire_within(&lock, &other, WAIT_NS));
        waited = clock_ns() - begin;
        CHECK(waited >= WAIT_NS);
    }
    CHECK(waited < 2 * WAIT_NS); /* pace: the best of 20 tries */
    sg_lock_release(&lock, &held);
    CHECK(sigprocmask(SIG_SETMASK, NULL, &after) == 0);
    CHECK(memcmp(&before, &after, 8) == 0);
    CHECK(sg_lock_acquire_within(&lock, &held, 0));
    sg_lock_release(&lock, &held);
}

static void *acquire_once(void *tid)
{
    struct sg_lock_state state;
    __atomic_store_n((int *)tid, (int)gettid(), __ATOMIC_SEQ_CST);
    sg_lock_acquire(&lock, &state);
    counter++;
    sg_lock_release(&lock, &state);
    return NULL;
}

/* Releases the lock while another thread sleeps for it. Returns how long that took, in ns. */
static uint64_t time_of_release(void)
{
    struct sg_lock_state state;
    pthread_t thread;
    int tid = 0, now;
    counter = 0;
    sg_lock_acquire(&lock, &state);
    CHECK(pthread_create(&thread, NULL, acquire_once, &tid) == 0);
    while ((now = __atomic_load_n(&tid, __ATOMIC_SEQ_CST)) == 0 || thread_state(now) != 'S')
        (void)usleep(100); /* poll: until it sleeps */
    uint64_t begin = clock_ns();
    sg_lock_release(&lock, &state);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_EQUAL(counter, 1);
    return clock_ns() - begin;
}

/* The sleeper looks by itself after a second only. Of several tries, for the machine may have other work. */
CHILD_TEST(a_release_wakes_who_sleeps)
{
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < 20 && shortest >= 900000000; i++) {
        uint64_t took = time_of_release();
        shortest = took < shortest ? took : shortest;
    }
    CHECK(shortest < 900000000);
}

static volatile sig_atomic_t has_run, was_held;

static void on_signal(int unused)
{
    (void)unused;
    has_run = 1;
    was_held = __atomic_load_n(&lock.word, __ATOMIC_SEQ_CST) != 0;
}

CHILD_TEST(signals_wait_until_it_is_released)
{
    struct sg_lock_state state;
    sigset_t mask;
    CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
    sg_lock_acquire(&lock, &state);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    CHECK(sigprocmask(SIG_SETMASK, NULL, &mask) == 0);
    CHECK(sigismember(&mask, SIGUSR1) == 1 && sigismember(&mask, SIGSEGV) == 1 && sigismember(&mask, SIGTERM) == 1);
    CHECK(!has_run);
    sg_lock_release(&lock, &state);
#ifdef __SANITIZE_THREAD__
    (void)usleep(1000); /* pace: ThreadSanitizer runs handlers at the next blocking call */
#endif
    CHECK(has_run && !was_held);
    CHECK(sigprocmask(SIG_SETMASK, NULL, &mask) == 0);
    CHECK(sigismember(&mask, SIGUSR1) == 0);
}

CHILD_TEST(the_mask_of_the_program_comes_back)
{
    struct sg_lock_state state;
    sigset_t mask;
    CHECK(sigemptyset(&mask) == 0 && sigaddset(&mask, SIGUSR2) == 0);
    CHECK(sigprocmask(SIG_SETMASK, &mask, NULL) == 0);
    sg_lock_acquire(&lock, &state);
    sg_lock_release(&lock, &state);
    CHECK(sigprocmask(SIG_SETMASK, NULL, &mask) == 0);
    CHECK(sigismember(&mask, SIGUSR2) == 1 && sigismember(&mask, SIGUSR1) == 0);
}

static bool is_blocked(int signal)
{
    sigset_t mask;
    return sigprocmask(SIG_SETMASK, NULL, &mask) == 0 && sigismember(&mask, signal) == 1;
}

CHILD_TEST(signals_wait_until_the_last_of_several_locks_is_released)
{
    static struct sg_lock other;
    struct sg_lock_state first, second;
    sg_lock_acquire(&lock, &first);
    sg_lock_acquire(&other, &second);
    sg_lock_release(&lock, &first); /* in whatever order */
    CHECK(is_blocked(SIGUSR1));
    sg_lock_release(&other, &second);
    CHECK(!is_blocked(SIGUSR1));
}

/* Takes a lock of its own, as an allocating handler does, and lets go of the one that is waited for. */
static void let_go(int unused)
{
    static struct sg_lock other;
    struct sg_lock_state state;
    (void)unused;
    has_run = is_blocked(SIGUSR2) ? 2 : 1;
    sg_lock_acquire(&other, &state);
    has_run += is_blocked(SIGUSR2) ? 0 : 2;
    sg_lock_release(&other, &state);
    if (__atomic_exchange_n(&lock.word, 0, __ATOMIC_SEQ_CST) == 0)
        has_run = 9;
}

static void *interrupt(void *tid)
{
    while (thread_state(*(int *)tid) != 'S')
        (void)usleep(100); /* poll: until it sleeps */
    CHECK(tgkill(getpid(), *(int *)tid, SIGUSR1) == 0);
    return NULL;
}

CHILD_TEST(who_waits_can_be_interrupted)
{
    struct sg_lock_state state;
    pthread_t thread;
    int tid = (int)gettid();
    struct sigaction action = {.sa_handler = let_go};
#ifdef __SANITIZE_THREAD__
    SKIP("ThreadSanitizer runs handlers at blocking calls of the libc, and this one is the kernel's");
#endif
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    lock.word = 1; /* somebody's */
    CHECK(pthread_create(&thread, NULL, interrupt, &tid) == 0);
    CHECK(sg_lock_acquire_within(&lock, &state, UINT64_C(60000000000)));
    CHECK_EQUAL(has_run, 1);
    CHECK(is_blocked(SIGUSR1));
    sg_lock_release(&lock, &state);
    CHECK(!is_blocked(SIGUSR1));
    CHECK(pthread_join(thread, NULL) == 0);
}

CHILD_TEST(a_reset_lock_is_free)
{
    struct sg_lock_state state;
    sg_lock_acquire(&lock, &state);
    sg_lock_reset(&lock);
    CHECK(sg_lock_acquire_within(&lock, &state, 0));
    sg_lock_release(&lock, &state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_thread_at_a_time),
        cmocka_unit_test(who_waits_in_vain_gives_up_and_holds_nothing),
        cmocka_unit_test(a_release_wakes_who_sleeps),
        cmocka_unit_test(signals_wait_until_it_is_released),
        cmocka_unit_test(the_mask_of_the_program_comes_back),
        cmocka_unit_test(signals_wait_until_the_last_of_several_locks_is_released),
        cmocka_unit_test(who_waits_can_be_interrupted),
        cmocka_unit_test(a_reset_lock_is_free),
    };
    return cmocka_run_group_tests_name("lock", tests, NULL, NULL);
}
