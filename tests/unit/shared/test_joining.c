/*
 * test_joining.c - joining the registry beside a change of sums that never ends. The source is included: a clock of its
 * own makes each try due at once.
 */
#include "fixture.h"

#include "base/clock.h"
#include "base/options.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

static uint64_t second_later_ns(void)
{
    static uint64_t now_ns;
    return now_ns += UINT64_C(1000000000);
}

#define sg_clock_ns(clock) second_later_ns()
#include "shared/registry.c"
#undef sg_clock_ns

static sigjmp_buf way_out;
static volatile bool handler_saw_change;

static void leave(int number)
{
    (void)number;
    handler_saw_change = sg_entry_is_changing();
    siglongjmp(way_out, 1);
}

/* Begins a change that never ends: its result goes where nothing can be written, and the handler leaves by longjmp. */
static void begin_change_for_ever(uint64_t bytes)
{
    const struct sigaction action = {.sa_handler = leave};
    uint64_t *nowhere = mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(nowhere != MAP_FAILED && sigaction(SIGSEGV, &action, NULL) == 0);
    bool is_left = sigsetjmp(way_out, 1) != 0;
    if (!is_left)
        (void)sg_entry_raise_both(SG_SUM_EVER, SG_SUM_PROMISED, bytes, nowhere);
    CHECK(is_left);
}

CHILD_TEST(after_some_tries_a_change_that_never_ends_is_taken_as_finished)
{
    strcpy(sg_options.dir, in_folder("live"));
    sg_segment_attach();
    begin_change_for_ever(GIB);
    for (int i = 0; i < TRIES_MAX; i++) {
        sg_registry_join();
        CHECK(sg_entry_shared_own() == NULL);
    }
    sg_registry_join();
    CHECK(sg_entry_shared_own() != NULL);
    CHECK_EQUAL(sg_entry_own()->slot.promised_bytes, GIB);
}

CHILD_TEST(a_handler_in_the_midst_of_a_change_sees_it)
{
    CHECK(!sg_entry_is_changing());
    begin_change_for_ever(GIB);
    CHECK(handler_saw_change);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_some_tries_a_change_that_never_ends_is_taken_as_finished),
        cmocka_unit_test(a_handler_in_the_midst_of_a_change_sees_it),
    };
    return cmocka_run_group_tests_name("joining", tests, NULL, NULL);
}
