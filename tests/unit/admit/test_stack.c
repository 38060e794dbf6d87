/*
 * test_stack.c - whether a thread runs a signal handler, told by its stack.
 */
#include "fixture.h"

#include "admit/reclaim/stack.h"

#include <pthread.h>
#include <signal.h>
#include <ucontext.h>

static volatile sig_atomic_t answer, handler_count;

static __attribute__((noinline)) void look(void)
{
    answer = sg_stack_is_interrupted(__builtin_frame_address(0));
}

static void handle(int number)
{
    look();
    if (handler_count++ == 0 && number == SIGUSR2)
        raise(SIGUSR1);
}

static void handle_by(int flags)
{
    struct sigaction action = {.sa_handler = handle, .sa_flags = flags};
    CHECK_EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
    CHECK_EQUAL(sigaction(SIGUSR2, &action, NULL), 0);
}

CHILD_TEST(a_plain_stack_is_not_interrupted)
{
    look();
    CHECK(!answer);
}

CHILD_TEST(a_handler_is_found_and_its_return)
{
    handle_by(0);
    CHECK_EQUAL(raise(SIGUSR1), 0);
    CHECK(answer);
    CHECK(!sg_stack_is_interrupted(__builtin_frame_address(0))); /* the handler's frame was below this one */
}

CHILD_TEST(a_handler_in_a_handler_is_found)
{
#ifdef __SANITIZE_THREAD__
    SKIP("ThreadSanitizer runs a handler that another one calls for after it");
#endif
    handle_by(SA_SIGINFO);
    CHECK_EQUAL(raise(SIGUSR2), 0);
    CHECK(answer && handler_count == 2);
}

CHILD_TEST(a_handler_on_a_stack_of_its_own_is_found)
{
    static char own[64 << 10];
    const stack_t stack = {.ss_sp = own, .ss_size = sizeof own};
    CHECK_EQUAL(sigaltstack(&stack, NULL), 0);
    handle_by(SA_ONSTACK);
    CHECK_EQUAL(raise(SIGUSR1), 0);
    CHECK(answer);
}

static void *run(void *unused)
{
    look();
    return unused;
}

CHILD_TEST(another_stack_counts_as_interrupted)
{
    static char own[64 << 10];
    static ucontext_t routine, back;
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, NULL, run, NULL), 0);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    CHECK(answer);
    answer = 0;
    CHECK_EQUAL(getcontext(&routine), 0);
    routine.uc_stack = (stack_t){.ss_sp = own, .ss_size = sizeof own};
    routine.uc_link = &back;
    makecontext(&routine, look, 0);
    CHECK_EQUAL(swapcontext(&back, &routine), 0);
    CHECK(answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_stack_is_not_interrupted),
        cmocka_unit_test(a_handler_is_found_and_its_return),
        cmocka_unit_test(a_handler_in_a_handler_is_found),
        cmocka_unit_test(a_handler_on_a_stack_of_its_own_is_found),
        cmocka_unit_test(another_stack_counts_as_interrupted),
    };
    return cmocka_run_group_tests_name("stack", tests, NULL, NULL);
}
