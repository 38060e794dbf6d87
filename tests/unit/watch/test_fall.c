/*
 * Tests what counts as a continuous fall of usable memory, and how long memory lasts at its rate.
 */
#include "fixture.h"

#include "watch/fall.h"

#define MS UINT64_C(1000000)

/* Notes a reading every `step_ms`; what is left is `left[i]` MiB. When it ends at that rate, in ms; -1: it does not
 * fall. */
static int64_t ends_in_ms(struct sg_fall *fall, uint64_t step_ms, const uint64_t *left, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sg_fall_note(fall, 1, left[i] * MIB, (1000 + i * step_ms) * MS);
    uint64_t zero = sg_fall_zero_in_ns(fall, left[count - 1] * MIB);
    return zero == UINT64_MAX ? -1 : (int64_t)(zero / MS);
}

#define ENDS_IN_MS(step_ms, ...) \
    ends_in_ms(&(struct sg_fall){0}, step_ms, (const uint64_t[]){__VA_ARGS__}, \
               sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

PLAIN_TEST(steady_fall_tells_when_nothing_is_left)
{
    assert_in_range(ENDS_IN_MS(100, 600, 500, 400, 300, 200, 100), 99, 101);
    assert_in_range(ENDS_IN_MS(100, 900, 800, 700, 600, 500, 400), 399, 401);
    assert_in_range(ENDS_IN_MS(100, 9000, 9000, 600, 500, 400, 300, 200, 100), 99, 101); /* only what it does lately */
    assert_in_range(ENDS_IN_MS(150, 900, 750, 600, 450, 300, 150), 149, 151);            /* readings that come late */
}

PLAIN_TEST(fall_is_measured_over_half_a_second)
{
    assert_int_equal(ENDS_IN_MS(100, 600, 500, 400, 300, 200), -1);
    assert_int_equal(ENDS_IN_MS(50, 600, 550, 500, 450, 400, 350, 300, 250, 200, 150), -1); /* by then 450 ms */
    assert_in_range(ENDS_IN_MS(50, 600, 550, 500, 450, 400, 350, 300, 250, 200, 150, 100), 99, 101);
}

PLAIN_TEST(fall_in_uneven_parts_goes_on)
{
    assert_in_range(ENDS_IN_MS(100, 600, 550, 400, 320, 180, 100), 99, 101);
}

PLAIN_TEST(one_step_is_no_fall)
{
    assert_int_equal(ENDS_IN_MS(100, 2000, 2000, 2000, 2000, 1000, 1000), -1);
    assert_int_equal(ENDS_IN_MS(100, 2000, 1000, 990, 980, 970, 960), -1);
    assert_int_equal(ENDS_IN_MS(100, 2000, 1990, 1980, 1970, 1960, 100), -1);
    assert_int_equal(ENDS_IN_MS(100, 2000, 1500, 1500, 1500, 1000, 1000), -1); /* nor are two */
}

PLAIN_TEST(fall_that_has_ended_is_none)
{
    assert_int_equal(ENDS_IN_MS(100, 700, 600, 500, 400, 300, 200, 200), -1);
    assert_int_equal(ENDS_IN_MS(100, 700, 600, 500, 400, 300, 200, 250), -1);
    assert_int_equal(ENDS_IN_MS(100, 100, 200, 300, 400, 500, 600), -1);
}

PLAIN_TEST(another_constraint_begins_anew)
{
    struct sg_fall fall = {0};
    const uint64_t left[] = {600, 500, 400, 300, 200, 100};
    assert_in_range(ends_in_ms(&fall, 100, left, 6), 99, 101);
    sg_fall_note(&fall, 2, 50 * MIB, 1600 * MS);
    assert_true(sg_fall_zero_in_ns(&fall, 50 * MIB) == UINT64_MAX);
}

PLAIN_TEST(what_fell_while_nobody_looked_is_no_rate)
{
    struct sg_fall fall = {0};
    const uint64_t left[] = {1600, 1500, 1400, 1300, 1200};
    assert_int_equal(ends_in_ms(&fall, 100, left, 5), -1);
    sg_fall_note(&fall, 1, 100 * MIB, 9000 * MS);
    assert_true(sg_fall_zero_in_ns(&fall, 100 * MIB) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steady_fall_tells_when_nothing_is_left),
        cmocka_unit_test(fall_is_measured_over_half_a_second),
        cmocka_unit_test(fall_in_uneven_parts_goes_on),
        cmocka_unit_test(one_step_is_no_fall),
        cmocka_unit_test(fall_that_has_ended_is_none),
        cmocka_unit_test(another_constraint_begins_anew),
        cmocka_unit_test(what_fell_while_nobody_looked_is_no_rate),
    };
    return cmocka_run_group_tests_name("fall", tests, NULL, NULL);
}
