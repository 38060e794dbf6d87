/*
 * test_thread_record.c - how many records are in use, where two threads take one at once.
 */
#include "fixture.h"

#include "base/atomics.h"
#include "shared/segment.h"

enum { MEANWHILE = 3 };
static bool is_alone;

/* Before the first exchange of the count, another thread has raised it. */
static bool cas_beside_another(uint32_t *word, uint32_t *expected, uint32_t desired)
{
    if (word == &sg_own->record_used && !is_alone)
        sg_store(word, (uint32_t)MEANWHILE);
    is_alone |= word == &sg_own->record_used;
    return sg_cas_u32(word, expected, desired);
}

#define sg_cas_u32 cas_beside_another
#include "account/thread_record.c"
#undef sg_cas_u32

CHILD_TEST(a_record_behind_the_count_of_another_thread_is_counted)
{
    search_from = MEANWHILE + 2;
    CHECK(claim_record(4711, 10) == &sg_own->record[MEANWHILE + 2]);
    CHECK_EQUAL(sg_own->record_used, MEANWHILE + 3);
}

CHILD_TEST(a_record_before_the_count_of_another_thread_lowers_nothing)
{
    search_from = 1;
    CHECK(claim_record(4711, 10) == &sg_own->record[1]);
    CHECK_EQUAL(sg_own->record_used, MEANWHILE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_behind_the_count_of_another_thread_is_counted),
        cmocka_unit_test(a_record_before_the_count_of_another_thread_lowers_nothing),
    };
    return cmocka_run_group_tests_name("thread_record", tests, NULL, NULL);
}
