/*
 * test_need.c - the gate of sparkguard-doctor --need, with a clock of the test's own.
 */
#include "fixture.h"

#include "doctor/need/need.h"

#define SECOND INT64_C(1000000000)

static struct need_gate gate_of(int64_t wait_ns)
{
    return (struct need_gate){.need_bytes = 80 * GIB, .start_ns = 1000 * SECOND, .wait_ns = wait_ns};
}

/* One look at `bytes`, `after_ns` after the start. */
static enum need_verdict look(struct need_gate *gate, uint64_t bytes, int64_t after_ns, int64_t *pause_ns)
{
    *pause_ns = -1;
    return need_gate_look(gate, bytes, 1000 * SECOND + after_ns, false, pause_ns);
}

PLAIN_TEST(enough_at_the_first_look_is_enough)
{
    int64_t pause_ns;
    struct need_gate gate = gate_of(0);
    assert_int_equal(look(&gate, 80 * GIB, 0, &pause_ns), NEED_ENOUGH);
}

PLAIN_TEST(without_a_wait_there_is_one_look)
{
    int64_t pause_ns;
    struct need_gate gate = gate_of(0);
    assert_int_equal(look(&gate, 80 * GIB - 1, 0, &pause_ns), NEED_LATE);
}

PLAIN_TEST(memory_that_is_there_for_a_moment_only_is_not_enough)
{
    int64_t pause_ns;
    struct need_gate gate = gate_of(NEED_ENDLESS);
    assert_int_equal(look(&gate, 10 * GIB, 0, &pause_ns), NEED_AGAIN);
    assert_int_equal(pause_ns, SECOND);
    assert_int_equal(look(&gate, 90 * GIB, SECOND, &pause_ns), NEED_AGAIN);
    assert_int_equal(pause_ns, SECOND / 4);
    assert_int_equal(look(&gate, 20 * GIB, SECOND * 5 / 4, &pause_ns), NEED_AGAIN); /* it fell between */
    assert_int_equal(pause_ns, SECOND);
    assert_int_equal(look(&gate, 90 * GIB, 3 * SECOND, &pause_ns), NEED_AGAIN);
    assert_int_equal(look(&gate, 80 * GIB, 3 * SECOND + SECOND / 4, &pause_ns), NEED_ENOUGH);
}

PLAIN_TEST(the_last_pause_ends_with_the_wait)
{
    int64_t pause_ns;
    struct need_gate gate = gate_of(5 * SECOND / 2);
    assert_int_equal(look(&gate, 0, 0, &pause_ns), NEED_AGAIN);
    assert_int_equal(look(&gate, 0, 2 * SECOND, &pause_ns), NEED_AGAIN);
    assert_int_equal(pause_ns, SECOND / 2);
    assert_int_equal(look(&gate, 0, 5 * SECOND / 2, &pause_ns), NEED_LATE);
}

PLAIN_TEST(enough_at_the_last_look_is_looked_at_once_more)
{
    int64_t pause_ns;
    struct need_gate gate = gate_of(SECOND);
    assert_int_equal(look(&gate, 0, 0, &pause_ns), NEED_AGAIN);
    assert_int_equal(look(&gate, 80 * GIB, SECOND, &pause_ns), NEED_AGAIN);
    struct need_gate fallen = gate;
    assert_int_equal(look(&gate, 80 * GIB, SECOND * 5 / 4, &pause_ns), NEED_ENOUGH);
    assert_int_equal(look(&fallen, 79 * GIB, SECOND * 5 / 4, &pause_ns), NEED_LATE);
}

PLAIN_TEST(under_pressure_it_looks_less_often)
{
    int64_t pause_ns;
    struct need_gate gate = gate_of(NEED_ENDLESS);
    assert_int_equal(need_gate_look(&gate, 0, 1000 * SECOND, true, &pause_ns), NEED_AGAIN);
    assert_int_equal(pause_ns, 5 * SECOND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(enough_at_the_first_look_is_enough),
        cmocka_unit_test(without_a_wait_there_is_one_look),
        cmocka_unit_test(memory_that_is_there_for_a_moment_only_is_not_enough),
        cmocka_unit_test(the_last_pause_ends_with_the_wait),
        cmocka_unit_test(enough_at_the_last_look_is_looked_at_once_more),
        cmocka_unit_test(under_pressure_it_looks_less_often),
    };
    return cmocka_run_group_tests_name("need", tests, NULL, NULL);
}
