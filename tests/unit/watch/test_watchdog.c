/*
 * test_watchdog.c - what the watchdog does to this process, and when. It is included as source: the danger and the time
 * are invented here.
 */
#include "fixture.h"

#include "watch/watchdog.c"

#include <unistd.h>

static volatile sig_atomic_t terms;

static void count_term(int signal)
{
    (void)signal;
    terms++;
}

static struct sg_danger danger = {.is_below_floor = true,
                                  .is_ours = true,
                                  .left_bytes = GIB / 2,
                                  .floor_bytes = GIB,
                                  .reserve_bytes = 4 * GIB,
                                  .zero_in_ns = UINT64_MAX};

/* The watchdog sees the same from one second to another, each included. */
static void look_on(bool is_ours, uint64_t from, uint64_t to)
{
    danger.is_ours = is_ours;
    for (uint64_t second = from; second <= to; second++)
        act(&danger, second * SECOND_NS);
    (void)usleep(1); /* pace: under ThreadSanitizer a handler runs at the next call that waits */
}

static void begin(void)
{
    CHECK(signal(SIGTERM, count_term) != SIG_ERR);
    sg_options.watchdog = SG_WATCHDOG_TERM;
}

CHILD_TEST(who_is_chosen_again_much_later_gets_sigterm_first)
{
    begin();
    look_on(true, 100, 102);
    CHECK_EQUAL(terms, 1);
    look_on(false, 103, 120); /* below the floor all the time, but another process is to end */
    look_on(true, 121, 125);
    CHECK_EQUAL(terms, 2);
}

static void be_chosen_again_at_once(void)
{
    begin();
    look_on(true, 100, 102);
    look_on(false, 103, 104);
    look_on(true, 105, 105);
}

CHILD_TEST(who_is_chosen_again_at_once_has_had_its_time)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        be_chosen_again_at_once();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_chosen_again_much_later_gets_sigterm_first),
        cmocka_unit_test(who_is_chosen_again_at_once_has_had_its_time),
    };
    return cmocka_run_group_tests_name("watchdog", tests, NULL, NULL);
}
