/*
 * test_text.c - sentences without printf, and the boot allocator that serves before there is a heap.
 */
#include "fixture.h"

#include "base/bootstrap_alloc.h"
#include "base/text.h"

#include <pthread.h>

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

/* ---- boot allocator ---------------------------------------------------------------------------------------------- */

CHILD_TEST(boot_memory_is_zeroed_aligned_and_known)
{
    int other = 0;
    for (size_t alignment = 1; alignment <= 4096; alignment *= 2) {
        char *block = sg_bootstrap_allocate(100, alignment);
        CHECK(block != NULL);
        CHECK_EQUAL((uintptr_t)block % (alignment < 16 ? 16 : alignment), 0);
        CHECK_EQUAL(sg_bootstrap_usable_size(block), 100);
        CHECK(sg_bootstrap_owns(block) && sg_bootstrap_owns(block + 99));
        for (int i = 0; i < 100; i++)
            CHECK_EQUAL(block[i], 0);
        memset(block, 0xff, 100); /* the next one must not see this, nor this one's size */
    }
    CHECK(!sg_bootstrap_owns(NULL) && !sg_bootstrap_owns(&other));
}

CHILD_TEST(boot_memory_ends_with_null)
{
    CHECK(sg_bootstrap_allocate((size_t)-1, 16) == NULL);
    CHECK(sg_bootstrap_allocate(1, (size_t)1 << 40) == NULL);
    int blocks = 0;
    for (char *block; blocks < 100 && (block = sg_bootstrap_allocate(1000, 16)) != NULL; blocks++)
        CHECK(sg_bootstrap_owns(block) && sg_bootstrap_owns(block + 999));
    CHECK(blocks >= 20 && blocks <= 32);
    CHECK(sg_bootstrap_allocate(1000, 16) == NULL);
}

static void *take_boot_memory(void *context)
{
    char **blocks = context;
    for (int i = 0; i < 50; i++)
        if ((blocks[i] = sg_bootstrap_allocate(64, 16)) != NULL)
            memset(blocks[i], 1 + i, 64);
    return NULL;
}

CHILD_TEST(boot_memory_is_handed_out_once)
{
    pthread_t threads[4];
    static char *blocks[4][50];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, take_boot_memory, blocks[i]) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 4; i++)
        for (int b = 0; b < 50; b++) {
            CHECK(blocks[i][b] != NULL);
            CHECK_EQUAL(sg_bootstrap_usable_size(blocks[i][b]), 64);
            CHECK(blocks[i][b][0] == 1 + b && blocks[i][b][63] == 1 + b);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_follow_each_other),
        cmocka_unit_test(what_does_not_fit_is_dropped),
        cmocka_unit_test(numbers_are_read),
        cmocka_unit_test(times_are_gmtimes),
        cmocka_unit_test(files_are_read_whole_or_cut),
        cmocka_unit_test(reading_leaves_no_descriptor_and_no_errno),
        cmocka_unit_test(boot_memory_is_zeroed_aligned_and_known),
        cmocka_unit_test(boot_memory_ends_with_null),
        cmocka_unit_test(boot_memory_is_handed_out_once),
    };
    return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
