/*
 * test_since.c - a clock time alone is today's; the other spellings are tested through the tool.
 */
#include "fixture.h"

#include "report/since.h"

#define NOW_NS INT64_C(1795180041000000000) /* 2026-11-20T13:07:21Z */
#define SECOND INT64_C(1000000000)

static int64_t seconds_since(const char *text)
{
    int64_t since_ns = -1;
    return report_since_parse(text, NOW_NS, &since_ns) ? since_ns / SECOND : -1;
}

PLAIN_TEST(a_clock_time_is_of_today_in_the_readers_zone)
{
    setenv("TZ", "CET-1", 1); /* where it is 14:07:21 */
    tzset();
    assert_int_equal(seconds_since("14:00"), NOW_NS / SECOND - 441);
    assert_int_equal(seconds_since("13:00:30"), NOW_NS / SECOND - 4011);
    assert_int_equal(seconds_since("00:00"), seconds_since("today"));
    assert_int_equal(seconds_since("23:59"),
                     seconds_since("2026-11-20T23:59")); /* still to come: nothing, as journalctl has it */
}

PLAIN_TEST(what_is_no_clock_time_is_refused)
{
    static const char *const texts[] = {"25:00", "13:60", "13:00:", "13:00x", "13:", ":30", "13", "13:00Z", "1h30"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_int_equal(seconds_since(texts[i]), -1);
}

PLAIN_TEST(a_time_beyond_what_nanoseconds_hold_is_refused)
{
    int64_t since_ns = 0;
    assert_true(report_since_parse("2262-04-11", NOW_NS, &since_ns));
    assert_false(report_since_parse("2263-01-01", NOW_NS, &since_ns));
    assert_false(report_since_parse("9999-12-31T23:59:59Z", NOW_NS, &since_ns));
    assert_false(report_since_parse("@9223372037", NOW_NS, &since_ns));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_clock_time_is_of_today_in_the_readers_zone),
        cmocka_unit_test(a_time_beyond_what_nanoseconds_hold_is_refused),
        cmocka_unit_test(what_is_no_clock_time_is_refused),
    };
    return cmocka_run_group_tests_name("since", tests, NULL, NULL);
}
