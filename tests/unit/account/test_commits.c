/*
 * test_commits.c - what a managed heap is expected to touch of the address space that it has made writable.
 */
#include "fixture.h"

#include "account/commits.h"

CHILD_TEST(a_heap_on_the_record_that_shrinks_to_nearly_nothing_is_promised_in_full)
{
    const uint64_t kib = 1024;
    (void)sg_commits_set_on_record(true);
    sg_commits_note(0, 512 * kib);
    CHECK_EQUAL(sg_commits_end_scan(), 512 * kib);
    CHECK(!sg_commits_are_on_record());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_heap_on_the_record_that_shrinks_to_nearly_nothing_is_promised_in_full),
    };
    return cmocka_run_group_tests_name("commits", tests, NULL, NULL);
}
