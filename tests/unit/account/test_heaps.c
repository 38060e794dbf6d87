/*
 * test_heaps.c - what of a writable MAP_NORESERVE mapping is expected to become resident.
 */
#include "fixture.h"

#include "account/predict/heaps.h"

CHILD_TEST(without_a_record_an_arena_is_touched_in_part_and_a_block_is_written_whole)
{
    CHECK(!sg_heaps_have_record());
    CHECK_EQUAL(sg_heaps_expected_bytes(GIB), GIB / 4);
    CHECK_EQUAL(sg_heaps_expected_bytes(1100 * MIB), 1100 * MIB);
    sg_heaps_note(255 * MIB, 255 * MIB);
    CHECK_EQUAL(sg_heaps_expected_bytes(64 * MIB), 16 * MIB);
}

CHILD_TEST(the_next_mapping_is_expected_to_become_what_the_earlier_ones_did)
{
    sg_heaps_note(GIB, GIB / 2);
    CHECK(sg_heaps_have_record());
    CHECK_EQUAL(sg_heaps_expected_bytes(GIB), GIB / 2);
    CHECK_EQUAL(sg_heaps_expected_bytes(1100 * MIB), 550 * MIB);
    sg_heaps_note(GIB, GIB);
    CHECK_EQUAL(sg_heaps_expected_bytes(GIB), GIB);
    sg_heaps_note(GIB, GIB + MIB); /* mapped between the two readings */
    CHECK_EQUAL(sg_heaps_expected_bytes(GIB), GIB);
    sg_heaps_note(GIB, 0);
    CHECK_EQUAL(sg_heaps_expected_bytes(GIB), GIB / 4);
}

CHILD_TEST(a_child_has_no_record)
{
    sg_heaps_note(GIB, GIB);
    sg_heaps_atfork_child();
    CHECK(!sg_heaps_have_record());
}

CHILD_TEST(a_reservation_is_larger_than_the_machine_or_the_first_and_for_a_whole_heap)
{
    CHECK(sg_heaps_is_reservation(16 * GIB + MIB, 16 * GIB));
    CHECK(sg_heaps_is_reservation(4 * GIB, 16 * GIB));
    CHECK(!sg_heaps_is_reservation(2 * GIB, 16 * GIB));
    CHECK(sg_heaps_is_reservation(10 * GIB, 16 * GIB));
    CHECK(!sg_heaps_is_reservation(5 * GIB + 8 * MIB, 16 * GIB)); /* a block of 5 GiB */
    sg_heaps_note(GIB, GIB);
    CHECK(!sg_heaps_is_reservation(4 * GIB, 16 * GIB)); /* mimalloc's later arenas */
    CHECK(sg_heaps_is_reservation(32 * GIB, 16 * GIB));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_record_an_arena_is_touched_in_part_and_a_block_is_written_whole),
        cmocka_unit_test(the_next_mapping_is_expected_to_become_what_the_earlier_ones_did),
        cmocka_unit_test(a_child_has_no_record),
        cmocka_unit_test(a_reservation_is_larger_than_the_machine_or_the_first_and_for_a_whole_heap),
    };
    return cmocka_run_group_tests_name("heaps", tests, NULL, NULL);
}
