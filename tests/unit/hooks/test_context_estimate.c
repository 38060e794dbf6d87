/*
 * test_context_estimate.c - what is believed of a context's cost, and what the next one is asked for.
 */
#include "fixture.h"

#include "hooks/measure/context_estimate.h"
#include "base/options.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

#define GUESS (512 * MIB)

static const struct sg_context_estimate_figures before = {
    .available_bytes = 100 * GIB, .asked_bytes = GIB, .own_bytes = GIB, .promised_bytes = 10 * GIB, .is_quiet = true};

/* A context that shows as a fall of so much. */
static uint64_t learn(uint64_t fall)
{
    struct sg_context_estimate_figures after = before;
    after.available_bytes -= fall;
    return sg_context_estimate_learn(&before, &after);
}

static void begin(uint64_t total)
{
    strcpy(sg_options.system_root, fixture_folder);
    sg_own->machine.total_bytes = total;
}

CHILD_TEST(the_first_cost_counts_at_once)
{
    begin(120 * GIB);
    CHECK_EQUAL(sg_context_estimate_expected_bytes(), GUESS);
    CHECK_EQUAL(learn(2662 * MIB), 2662 * MIB);
    CHECK_EQUAL(sg_context_estimate_expected_bytes(), 2662 * MIB);
}

CHILD_TEST(the_next_one_is_asked_for_the_median_of_the_last_three)
{
    static const uint64_t steps[][2] = {{100, 100}, {2600, 512}, {2700, 2600}, {90, 2600},  {2800, 2700},
                                        {80, 90},   {70, 80},    {4000, 80},   {2600, 2600}};
    begin(120 * GIB);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        CHECK_EQUAL(learn(steps[i][0] * MIB), steps[i][0] * MIB);
        CHECK_EQUAL(sg_context_estimate_expected_bytes(), steps[i][1] * MIB);
    }
}

CHILD_TEST(of_two_one_that_is_absurd_leaves_the_other)
{
    begin(120 * GIB);
    CHECK_EQUAL(learn(50 * GIB), 4 * GIB);
    CHECK_EQUAL(learn(2662 * MIB), 2662 * MIB);
    CHECK_EQUAL(sg_context_estimate_expected_bytes(), 2662 * MIB);
}

CHILD_TEST(what_is_believed_goes_by_the_machine)
{
    static const uint64_t most[][2] = {
        {0, 4096}, {SG_UNKNOWN / GIB, 4096}, {120, 4096}, {64, 4096}, {32, 2048}, {8, 512}, {4, 512}};
    begin(0);
    for (size_t i = 0; i < sizeof most / sizeof most[0]; i++) {
        sg_own->machine.total_bytes = most[i][0] * GIB;
        CHECK_EQUAL(learn(50 * GIB), most[i][1] * MIB);
    }
    sg_entry_registry()->context_bytes = UINT64_MAX;
    CHECK_EQUAL(sg_context_estimate_expected_bytes(), 512 * MIB);
}

CHILD_TEST(the_first_guess_is_no_more_than_a_sixteenth_of_the_machine)
{
    static const uint64_t guess[][2] = {{0, 512}, {SG_UNKNOWN / MIB, 512}, {8192, 512}, {8176, 511}, {1280, 80}};
    begin(0);
    for (size_t i = 0; i < sizeof guess / sizeof guess[0]; i++) {
        sg_own->machine.total_bytes = guess[i][0] * MIB;
        CHECK_EQUAL(sg_context_estimate_expected_bytes(), guess[i][1] * MIB);
    }
}

CHILD_TEST(what_a_pool_may_have_served_is_not_learned)
{
    static const struct {
        uint64_t pooled, fall, expected;
    } steps[] = {{2680, 20, 512}, {2680, 600, 600}, {0, 299, 600}, {0, 300, 512}, {100, 500, 512}, {0, 310, 310}};
    begin(120 * GIB);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        struct sg_context_estimate_figures first = before, after;
        first.has_pool = true;
        first.pooled_bytes = steps[i].pooled * MIB;
        after = first;
        after.available_bytes -= steps[i].fall * MIB;
        CHECK_EQUAL(sg_context_estimate_learn(&first, &after), steps[i].fall * MIB);
        CHECK_EQUAL(sg_context_estimate_expected_bytes(), steps[i].expected * MIB);
    }
}

CHILD_TEST(what_is_in_the_books_is_not_the_contexts)
{
    struct sg_context_estimate_figures after = before;
    begin(120 * GIB);
    after.available_bytes -= 3 * GIB;
    after.own_bytes += GIB;
    CHECK_EQUAL(sg_context_estimate_learn(&before, &after), 2 * GIB);
    after.promised_bytes -= GIB;
    CHECK_EQUAL(sg_context_estimate_learn(&before, &after), GIB);
    after.promised_bytes -= 8 * GIB;
    CHECK_EQUAL(sg_context_estimate_learn(&before, &after), 0);
    after = before;
    after.available_bytes -= 3 * GIB;
    after.own_bytes = 0;
    after.promised_bytes += GIB;
    CHECK_EQUAL(sg_context_estimate_learn(&before, &after), 3 * GIB);
}

CHILD_TEST(what_cannot_be_told_is_not_learned)
{
    struct sg_context_estimate_figures after = before, unquiet = before;
    begin(120 * GIB);
    CHECK_EQUAL(learn(8 * MIB - 1), 0); /* noise */
    after.available_bytes += GIB;
    CHECK_EQUAL(sg_context_estimate_learn(&before, &after), 0);
    after.available_bytes -= 3 * GIB;
    after.asked_bytes += 128 * MIB + 1;
    CHECK_EQUAL(sg_context_estimate_learn(&before, &after), 0);
    after.asked_bytes = before.asked_bytes;
    unquiet.is_quiet = false;
    CHECK_EQUAL(sg_context_estimate_learn(&unquiet, &after), 0);
    after.is_quiet = false;
    CHECK_EQUAL(sg_context_estimate_learn(&before, &after), 0);
    CHECK_EQUAL(sg_context_estimate_expected_bytes(), GUESS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_cost_counts_at_once),
        cmocka_unit_test(the_next_one_is_asked_for_the_median_of_the_last_three),
        cmocka_unit_test(of_two_one_that_is_absurd_leaves_the_other),
        cmocka_unit_test(what_is_believed_goes_by_the_machine),
        cmocka_unit_test(the_first_guess_is_no_more_than_a_sixteenth_of_the_machine),
        cmocka_unit_test(what_a_pool_may_have_served_is_not_learned),
        cmocka_unit_test(what_is_in_the_books_is_not_the_contexts),
        cmocka_unit_test(what_cannot_be_told_is_not_learned),
    };
    return cmocka_run_group_tests_name("context_cost", tests, NULL, NULL);
}
