/*
 * test_text.c - sentences without printf.
 */
#include "fixture.h"

#include "base/text.h"

PLAIN_TEST(pieces_follow_each_other)
{
    char buffer[128];
    struct sg_text text = sg_text_begin(buffer, sizeof buffer);
    assert_string_equal(buffer, "");
    sg_text_add(&text, "a ");
    sg_text_add_number(&text, 0);
    sg_text_add(&text, " ");
    sg_text_add_number(&text, UINT64_MAX);
    sg_text_add(&text, " ");
    sg_text_add_padded(&text, 7, 4);
    sg_text_add(&text, " ");
    sg_text_add_padded(&text, 12345, 4);
    sg_text_add(&text, " ");
    sg_text_add_hex(&text, 0xdeadbeef);
    sg_text_add(&text, " ");
    sg_text_add_size(&text, 12 * GIB);
    assert_string_equal(buffer, "a 0 18446744073709551615 0007 12345 00000000deadbeef 12.0 GiB");
    assert_int_equal(text.length, strlen(buffer));
}

PLAIN_TEST(what_does_not_fit_is_dropped)
{
    char buffer[16];
    memset(buffer, '#', sizeof buffer);
    struct sg_text text = sg_text_begin(buffer, 8);
    sg_text_add(&text, "12345");
    sg_text_add_number(&text, 67890);
    sg_text_add(&text, "more");
    assert_string_equal(buffer, "1234567");
    assert_int_equal(buffer[8], '#');
}

PLAIN_TEST(numbers_are_read)
{
    const char *cursor = " \t42 17x";
    assert_int_equal(sg_text_read_number(&cursor), 42);
    assert_int_equal(sg_text_read_number(&cursor), 17);
    assert_int_equal(*cursor, 'x');
    assert_int_equal(sg_text_read_number(&cursor), 0);
    assert_int_equal(*cursor, 'x');
    cursor = "18446744073709551615";
    assert_true(sg_text_read_number(&cursor) == UINT64_MAX);
    cursor = "18446744073709551616 ";
    assert_true(sg_text_read_number(&cursor) == UINT64_MAX);
    assert_int_equal(*cursor, ' ');
    cursor = "999999999999999999999999999999999999999999";
    assert_true(sg_text_read_number(&cursor) == UINT64_MAX);
    cursor = "-5";
    assert_int_equal(sg_text_read_number(&cursor), 0);
}

PLAIN_TEST(times_are_gmtimes)
{
    for (uint64_t seconds = 0; seconds < UINT64_C(250000000000); seconds += seconds < 8000000000u ? 43201 : 7776007) {
        char is[40], should_be[40];
        struct sg_text text = sg_text_begin(is, sizeof is);
        time_t when = (time_t)seconds;
        sg_text_add_time(&text, seconds);
        assert_true(strftime(should_be, sizeof should_be, "%Y%m%dT%H%M%S", gmtime(&when)) != 0);
        assert_string_equal(is, should_be);
    }
}

PLAIN_TEST(fields_are_found_by_their_whole_names)
{
    static const char text[] = "MemFree:        12 kB\nUid:\t1000\t1000\nactive_file_old 5\nactive_file 7\n";
    assert_int_equal(sg_text_read_field(text, "MemFree:", 99), 12);
    assert_int_equal(sg_text_read_field(text, "Uid:", 99), 1000);
    assert_int_equal(sg_text_read_field(text, "active_file", 99), 7);
    assert_int_equal(sg_text_read_field(text, "Free:", 99), 99);
    assert_int_equal(sg_text_read_field("", "MemFree:", 99), 99);
}

CHILD_TEST(files_are_read_whole_or_cut)
{
    char buffer[16];
    put_file("short", "hello");
    put_file("long", "0123456789abcdefXYZ");
    CHECK_EQUAL(sg_text_read_file(in_folder("short"), buffer, sizeof buffer), 5);
    CHECK_TEXT(buffer, "hello");
    CHECK_EQUAL(sg_text_read_file(in_folder("long"), buffer, sizeof buffer), 15);
    CHECK_TEXT(buffer, "0123456789abcde");
    CHECK_EQUAL(sg_text_read_file(in_folder("none"), buffer, sizeof buffer), -ENOENT);
    CHECK_TEXT(buffer, "");
    CHECK_EQUAL(sg_text_read_file("/proc", buffer, sizeof buffer), -EISDIR);
}

CHILD_TEST(reading_leaves_no_descriptor_and_no_errno)
{
    char buffer[64];
    int lowest = dup(0);
    CHECK(lowest >= 0 && close(lowest) == 0);
    put_file("file", "x");
    errno = 99;
    CHECK_EQUAL(sg_text_read_file(in_folder("none"), buffer, sizeof buffer), -ENOENT);
    CHECK_EQUAL(sg_text_read_file(in_folder("file"), buffer, sizeof buffer), 1);
    CHECK_EQUAL(sg_text_read_file("/proc", buffer, sizeof buffer), -EISDIR);
    CHECK_EQUAL(errno, 99);
    CHECK_EQUAL(dup(0), lowest);
}

static void check_rows(const char *text, size_t columns, const char *rows)
{
    char wrapped[128];
    strcpy(wrapped, text);
    sg_text_wrap(wrapped, strlen(wrapped), columns);
    CHECK_TEXT(wrapped, rows);
}

CHILD_TEST(rows_end_between_words)
{
    check_rows("ab cd ef\n", 5, "ab cd\nef\n");
    check_rows("ab cd ef\n", 4, "ab\ncd\nef\n");
    check_rows("ab cd\nef gh ij\n", 5, "ab cd\nef gh\nij\n");
    check_rows("\u00e4\u00e4 \u00e4\u00e4 ef\n", 5, "\u00e4\u00e4 \u00e4\u00e4\nef\n");
    check_rows("a longest b\n", 4, "a\nlongest\nb\n");
    check_rows(" indented\n", 4, " indented\n");
    check_rows("\033[2mab\033[0m cd\033[K ef\n", 5, "\033[2mab\033[0m cd\033[K\nef\n");
    check_rows("ab cd\033[0", 2, "ab\ncd\033[0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_follow_each_other),
        cmocka_unit_test(what_does_not_fit_is_dropped),
        cmocka_unit_test(numbers_are_read),
        cmocka_unit_test(times_are_gmtimes),
        cmocka_unit_test(fields_are_found_by_their_whole_names),
        cmocka_unit_test(files_are_read_whole_or_cut),
        cmocka_unit_test(rows_end_between_words),
        cmocka_unit_test(reading_leaves_no_descriptor_and_no_errno),
    };
    return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
