/*
 * test_watch.c - what the live view computes: rates, the time to a wall, the places on the screen, bars, keys.
 */
#include "fixture.h"

#include <stdlib.h>

#include "report/watch/terminal.h"
#include "report/watch/watch.h"

#include "sparkguard_abi.h"

#define SECOND INT64_C(1000000000)

PLAIN_TEST(a_rate_needs_two_samples)
{
    struct watch_trend trend = {.count = 0};
    assert_true(watch_trend_rate(&trend) == WATCH_NO_RATE);
    watch_trend_add(&trend, 7 * SECOND, GIB);
    assert_true(watch_trend_rate(&trend) == WATCH_NO_RATE);
    watch_trend_add(&trend, 9 * SECOND, 3 * GIB);
    assert_true(watch_trend_rate(&trend) == (int64_t)GIB);
    watch_trend_add(&trend, 11 * SECOND, GIB);
    assert_true(watch_trend_rate(&trend) == 0);
    watch_trend_add(&trend, 12 * SECOND, 0);
    assert_true(watch_trend_rate(&trend) == -(int64_t)GIB / 5);
}

PLAIN_TEST(a_rate_is_of_the_last_five_seconds)
{
    struct watch_trend trend = {.count = 0};
    for (int64_t second = 0; second <= 60; second++)
        watch_trend_add(&trend, second * SECOND, second < 50 ? 0 : (uint64_t)second * MIB);
    assert_true(watch_trend_rate(&trend) == (int64_t)MIB);
    watch_trend_add(&trend, 600 * SECOND, 600 * MIB); /* far apart: between the last two */
    assert_true(watch_trend_rate(&trend) == (int64_t)MIB);
    assert_int_equal(trend.count, 2);
}

PLAIN_TEST(samples_in_quick_succession_find_room)
{
    struct watch_trend trend = {.count = 0};
    for (int64_t i = 0; i < 1000; i++)
        watch_trend_add(&trend, i * SECOND / 1024, (uint64_t)i * KIB);
    assert_true(watch_trend_rate(&trend) > (int64_t)(MIB - KIB) && watch_trend_rate(&trend) < (int64_t)(MIB + KIB));
}

PLAIN_TEST(an_unknown_figure_begins_anew)
{
    struct watch_trend trend = {.count = 0};
    watch_trend_add(&trend, SECOND, GIB);
    watch_trend_add(&trend, 2 * SECOND, 2 * GIB);
    watch_trend_add(&trend, 3 * SECOND, SG_UNKNOWN);
    assert_true(watch_trend_rate(&trend) == WATCH_NO_RATE);
    watch_trend_add(&trend, 4 * SECOND, GIB);
    assert_true(watch_trend_rate(&trend) == WATCH_NO_RATE);
}

static void check_spark(const struct spark *spark, int64_t now_ns, size_t cells, const char *expected)
{
    char *text = spark_text(spark, now_ns, cells, false);
    assert_string_equal(text, expected);
    free(text);
}

PLAIN_TEST(a_history_has_a_cell_for_each_second_and_blanks_where_nothing_is_known)
{
    struct spark spark = {.spacing_ns = SECOND};
    check_spark(&spark, 100 * SECOND, 8, "        ");
    spark_add(&spark, 94 * SECOND, 0);
    spark_add(&spark, 95 * SECOND, 4 * GIB);
    spark_add(&spark, 95 * SECOND + 1, 2 * GIB); /* becomes one with the figure before */
    spark_add(&spark, 99 * SECOND, 8 * GIB);
    spark_add(&spark, 100 * SECOND, 2 * GIB);
    check_spark(&spark, 100 * SECOND, 8, " _-   ##"); /* zero is a figure; a figure holds until the next one begins */
    const struct spark_axis axis = spark_axis_of(&spark, 100 * SECOND, 8);
    assert_true(spark_cell(&axis, 100 * SECOND) == 7 && spark_cell(&axis, 93 * SECOND) == 0);
    assert_true(spark_cell(&axis, 92 * SECOND) < 0 && spark_cell(&axis, 101 * SECOND) == 8);
}

PLAIN_TEST(a_history_is_of_five_minutes_at_most)
{
    struct spark spark = {.spacing_ns = SECOND};
    for (int64_t second = 1; second <= 1000; second++)
        spark_add(&spark, second * SECOND, GIB);
    assert_true(spark.count <= SPARK_CAPACITY && spark.point[0].time_ns == 700 * SECOND);
    assert_true(spark_axis_of(&spark, 1000 * SECOND, 20).step_ns == 15 * SECOND);
    assert_true(spark_axis_of(&spark, 1000 * SECOND, 400).step_ns == SECOND);
    check_spark(&spark, 1000 * SECOND, 4, "####");
    struct spark fast = {.spacing_ns = SECOND / 10};
    for (int64_t i = 0; i < 100000; i++)
        spark_add(&fast, i * SECOND / 100, (uint64_t)i);
    assert_true(fast.count <= SPARK_CAPACITY);
}

PLAIN_TEST(a_wall_is_met_only_by_what_grows)
{
    assert_true(watch_time_to(10 * GIB, (int64_t)GIB) == 10 * SECOND);
    assert_true(watch_time_to(0, 1) == 0);
    assert_true(watch_time_to(GIB, 0) == WATCH_NEVER);
    assert_true(watch_time_to(GIB, -1) == WATCH_NEVER);
    assert_true(watch_time_to(GIB, WATCH_NO_RATE) == WATCH_NEVER);
    assert_true(watch_time_to(SG_UNKNOWN, 1) == WATCH_NEVER);
    assert_true(watch_time_to(INT64_MAX, 1) == WATCH_NEVER); /* three hundred years are no time to tell */
}

PLAIN_TEST(figures_as_text)
{
    assert_string_equal(watch_rate_text(WATCH_NO_RATE), "-");
    assert_string_equal(watch_rate_text(0), "0 B/s");
    assert_string_equal(watch_rate_text(3 * (int64_t)GIB / 2), "+1.5 GiB/s");
    assert_string_equal(watch_rate_text(-20 * (int64_t)MIB), "-20.0 MiB/s");
    assert_string_equal(watch_wall_text(WATCH_NEVER), "-");
    assert_string_equal(watch_wall_text(0), "0 s");
    assert_string_equal(watch_wall_text(59 * SECOND + SECOND - 1), "59 s");
    assert_string_equal(watch_wall_text(73 * SECOND), "1 min 13 s");
    assert_string_equal(watch_wall_text(3599 * SECOND), "59 min");
    assert_string_equal(watch_wall_text(7500 * SECOND), "2 h 5 min");
    assert_string_equal(watch_wall_text(86399 * SECOND), "23 h");
    assert_string_equal(watch_wall_text((10 * 86400 - 1) * SECOND), "9 d 23 h");
    assert_string_equal(watch_wall_text(10 * 86400 * SECOND), "10 d");
}

/* The columns count on it. */
PLAIN_TEST(no_rate_and_no_time_is_longer_than_its_column)
{
    for (uint64_t bytes = 1; bytes < UINT64_C(1) << 50; bytes += bytes / 200 + 1)
        assert_in_range(strlen(watch_rate_text(-(int64_t)bytes)), 5, WATCH_RATE_CELLS);
    for (int64_t seconds = 0; seconds < 9 * SECOND; seconds += seconds / 200 + 1)
        assert_in_range(strlen(watch_wall_text(seconds * SECOND)), 3, WATCH_WALL_CELLS);
}

static void check_layout(struct watch_layout layout, size_t head, size_t first, size_t list, size_t foot)
{
    assert_int_equal(layout.head, head);
    assert_int_equal(layout.first, first);
    assert_int_equal(layout.list, list);
    assert_int_equal(layout.foot, foot);
}

PLAIN_TEST(the_list_gives_way_to_the_foot_only_where_lines_are_left)
{
    check_layout(watch_lay_out(24, 7, 3, 5, 0), 7, 0, 3, 5);
    check_layout(watch_lay_out(24, 7, 11, 5, 0), 7, 0, 11, 5);
    check_layout(watch_lay_out(24, 7, 1000, 5, 0), 7, 0, 11, 5);
    check_layout(watch_lay_out(20, 7, 1000, 5, 0), 7, 0, 12, 0);
    check_layout(watch_lay_out(50, 7, 1000, 6, 0), 7, 0, 36, 6);
}

PLAIN_TEST(scrolling_ends_where_the_list_does)
{
    check_layout(watch_lay_out(20, 7, 1000, 5, 40), 7, 40, 12, 0);
    check_layout(watch_lay_out(20, 7, 1000, 5, SIZE_MAX / 2), 7, 988, 12, 0);
    check_layout(watch_lay_out(20, 7, 4, 0, 3), 7, 0, 4, 0);
}

/* Whatever is wanted, it is never more than there is. */
PLAIN_TEST(a_small_screen_keeps_a_line_for_the_keys)
{
    for (size_t rows = 0; rows < 40; rows++)
        for (size_t head = 0; head < 20; head++)
            for (size_t list = 0; list < 40; list += 13)
                for (size_t foot = 0; foot < 8; foot++) {
                    struct watch_layout layout = watch_lay_out(rows, head, list, foot, list);
                    assert_true(layout.head + layout.list + layout.foot + 1 <= (rows > 0 ? rows : 1));
                    assert_true(layout.first + layout.list <= list);
                    assert_true(rows < 4 || list == 0 || layout.list > 0);
                }
}

static void check_bar(uint64_t live, uint64_t peak, bool is_utf8, const char *expected)
{
    char *bar = watch_bar(8, live, peak, 64, is_utf8);
    assert_string_equal(bar, expected);
    free(bar);
}

PLAIN_TEST(a_bar_shows_what_is_held_and_the_peak)
{
    check_bar(0, 0, true, "        ");
    check_bar(8, 8, true, "█       ");
    check_bar(12, 28, true, "█▌░░    ");
    check_bar(1, 64, true, "▏░░░░░░░");
    check_bar(64, 64, true, "████████");
    check_bar(1000, 2000, true, "████████");
    check_bar(12, 28, false, "##--    ");
    check_bar(2, 2, false, "        ");
    char *bar = watch_bar(3, GIB, GIB, SG_UNKNOWN, true);
    assert_string_equal(bar, "   ");
    free(bar);
}

/* A job whose processes have gained these bytes within the last second. */
struct sample {
    struct model model;
    struct model_scope scope;
    struct model_job job;
    struct model_process process[2];
    struct watch_trace trace[2];
    struct watch watch;
};

static void make_sample(struct sample *sample, int64_t first_bytes, int64_t second_bytes)
{
    const int64_t gained[] = {first_bytes, second_bytes};
    static char name[] = "train", command[] = "python3";
    *sample = (struct sample){.job = {.name = name, .limit_bytes = SG_UNKNOWN, .process_count = 2}};
    sample->watch = (struct watch){.scope = &sample->scope, .model = &sample->model, .sampled_ns = SECOND};
    for (size_t i = 0; i < 2; i++) {
        struct model_process *process = &sample->process[i];
        struct watch_trace *trace = &sample->trace[i];
        process->pid = 1234567;
        process->start_ticks = i;
        process->state = SG_STATE_RUNNING;
        process->command = command;
        trace->key = (struct watch_key){.pid = process->pid, .start_ticks = i};
        trace->seen_ns = SECOND;
        watch_trend_add(&trace->live, 0, 2 * GIB);
        watch_trend_add(&trace->live, SECOND, 2 * GIB + (uint64_t)gained[i]);
        DL_APPEND(sample->job.processes, process);
        HASH_ADD(hh, sample->watch.traces, key, sizeof trace->key, trace);
    }
    sample->model.machine = (struct model_machine){.usable_bytes = SG_UNKNOWN, .total_bytes = 128 * GIB};
    DL_APPEND(sample->model.jobs, &sample->job);
}

/* What the table shows, 80 columns wide. The caller frees. */
static char *table_text(struct watch *watch)
{
    char *text;
    size_t bytes;
    struct style style = {.stream = open_memstream(&text, &bytes), .columns = 80, .is_terminal = true};
    watch_put_table(watch, &style);
    free(watch->rows.key);
    watch->rows = (struct watch_rows){NULL, 0};
    fclose(style.stream);
    return text;
}

PLAIN_TEST(the_longest_rate_leaves_every_column_its_place)
{
    struct sample sample;
    make_sample(&sample, (int64_t)(1023 * MIB + 920 * KIB), -(int64_t)(1023 * MIB + 920 * KIB));
    char *text = table_text(&sample.watch), *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        assert_int_equal(strlen(line), 80);
        assert_true(line[79] == 'D' || line[79] == '0');
    }
    free(text);
    text = table_text(&sample.watch);
    assert_non_null(strstr(text, "  +1023 MiB/s          -        0"));
    assert_non_null(strstr(text, "  -1023 MiB/s          -        0"));
    free(text);
    HASH_CLEAR(hh, sample.watch.traces);
}

/* The keys that a terminal's bytes make, however they are cut into reads. */
static void check_keys(const char *bytes, const int *expected)
{
    struct terminal_keys keys = {0};
    for (; *bytes != '\0'; bytes++) {
        int key = terminal_key(&keys, (unsigned char)*bytes);
        if (key != TERMINAL_NOTHING)
            assert_int_equal(key, *expected++);
    }
    assert_int_equal(*expected, TERMINAL_NOTHING);
}

PLAIN_TEST(keys_are_known_by_their_bytes)
{
    check_keys("q", (const int[]){'q', 0});
    check_keys("\033[A\033OB\033[5~\033[6~q",
               (const int[]){TERMINAL_UP, TERMINAL_DOWN, TERMINAL_PAGE_UP, TERMINAL_PAGE_DOWN, 'q', 0});
    check_keys("\033[H\033[F\033[1~\033[4~",
               (const int[]){TERMINAL_HOME, TERMINAL_END, TERMINAL_HOME, TERMINAL_END, 0});
    check_keys("\033[1;5A\033[15~\033[?1;2cq", (const int[]){TERMINAL_UP, 'q', 0});
    check_keys("\033\033[Bx\033qt", (const int[]){TERMINAL_DOWN, 'x', 't', 0}); /* Alt-q is no q */
    check_keys("\033[99999999999999999999~l", (const int[]){'l', 0});
    check_keys("\033[200~q\033[A\n\177\033[201~k", (const int[]){TERMINAL_PASTED | 'q', 'k', 0});
    check_keys("\033[200~\033[200~\033[201~k\033[201~j", (const int[]){'k', 'j', 0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rate_needs_two_samples),
        cmocka_unit_test(a_rate_is_of_the_last_five_seconds),
        cmocka_unit_test(samples_in_quick_succession_find_room),
        cmocka_unit_test(an_unknown_figure_begins_anew),
        cmocka_unit_test(a_history_has_a_cell_for_each_second_and_blanks_where_nothing_is_known),
        cmocka_unit_test(a_history_is_of_five_minutes_at_most),
        cmocka_unit_test(a_wall_is_met_only_by_what_grows),
        cmocka_unit_test(figures_as_text),
        cmocka_unit_test(no_rate_and_no_time_is_longer_than_its_column),
        cmocka_unit_test(the_list_gives_way_to_the_foot_only_where_lines_are_left),
        cmocka_unit_test(scrolling_ends_where_the_list_does),
        cmocka_unit_test(a_small_screen_keeps_a_line_for_the_keys),
        cmocka_unit_test(a_bar_shows_what_is_held_and_the_peak),
        cmocka_unit_test(the_longest_rate_leaves_every_column_its_place),
        cmocka_unit_test(keys_are_known_by_their_bytes),
    };
    return cmocka_run_group_tests_name("watch", tests, NULL, NULL);
}
