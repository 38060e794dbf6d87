/*
 * test_tmpfs_ranges.c - what is published of shared memory while its ranges change.
 */
#include "fixture.h"

#include "account/tmpfs_ranges.h"
#include "shared/decision_lock.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

/* Units of a file, `at` bytes into it. */
static uint64_t unit(uint64_t file, uint64_t at)
{
    return (file << SG_SHARED_SHIFT) + at / SG_SHARED_UNIT;
}

/* Maps `bytes` of a file, or unmaps them. */
static void change(uint64_t file, uint64_t at, uint64_t bytes, uint32_t kind)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    CHECK_EQUAL(sg_range_map_set(&sg_tmpfs_mapped, unit(file, at), unit(file, at + bytes), kind, 0), 0);
    sg_tmpfs_show_changes(kind == SG_RANGE_COUNTED ? (int64_t)bytes : -(int64_t)bytes);
    sg_lock_release(&sg_tracker_maps_lock, &lock);
}

static void promise(uint64_t file, uint64_t at, uint64_t bytes)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_decision_lock, &lock);
    sg_tmpfs_promise(unit(file, at), unit(file, at + bytes), bytes);
    sg_lock_release(&sg_decision_lock, &lock);
}

static void begin_scan(struct sg_lock_state *lock)
{
    sg_lock_acquire(&sg_decision_lock, lock);
    sg_ledger_begin_scan();
    sg_tmpfs_begin_scan();
}

static void find(uint64_t file, uint64_t at, uint64_t bytes, uint64_t missing_bytes)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    sg_tmpfs_add_missing(unit(file, at), unit(file, at + bytes), missing_bytes);
    sg_lock_release(&sg_tracker_maps_lock, &lock);
}

static void end_scan(struct sg_lock_state *lock, uint64_t missing_bytes)
{
    sg_tmpfs_end_scan(&(struct sg_ledger_scan){.shared_bytes = missing_bytes});
    sg_lock_release(&sg_decision_lock, lock);
}

/* The missing bytes that are published of the range that begins with a file's first byte. */
static uint64_t shown(uint64_t file)
{
    for (unsigned i = 0; i < SG_FILE_CAPACITY && sg_own->file[i].begin != 0; i++)
        if (sg_own->file[i].begin == unit(file, 0))
            return sg_own->file[i].missing_bytes;
    return SG_BYTES_MAX;
}

CHILD_TEST(a_scan_keeps_what_it_found_while_another_file_is_mapped)
{
    struct sg_lock_state lock;
    for (unsigned file = 1; file <= 3; file += 2) { /* the new range is behind it, or before it */
        change(file, 0, MIB, SG_RANGE_COUNTED);
        promise(file, 0, MIB);
        CHECK_EQUAL(shown(file), MIB);
        begin_scan(&lock);
        find(file, 0, MIB, MIB / 2);
        change(2, 0, MIB, SG_RANGE_COUNTED);
        end_scan(&lock, MIB / 2);
        CHECK_EQUAL(shown(file), MIB / 2);
        CHECK_EQUAL(shown(2), 0);
        change(2, 0, MIB, SG_RANGE_NONE);
        change(file, 0, MIB, SG_RANGE_NONE);
    }
}

CHILD_TEST(a_scan_keeps_what_it_found_when_the_range_grows)
{
    struct sg_lock_state lock;
    change(1, 0, MIB, SG_RANGE_COUNTED);
    promise(1, 0, MIB);
    begin_scan(&lock);
    find(1, 0, MIB, MIB / 2);
    change(1, MIB, MIB, SG_RANGE_COUNTED);
    end_scan(&lock, MIB / 2);
    CHECK_EQUAL(shown(1), MIB / 2);
    promise(1, MIB, MIB);
    CHECK_EQUAL(shown(1), MIB / 2 + MIB);
}

CHILD_TEST(pages_that_a_scan_has_met_are_promised_once)
{
    struct sg_lock_state lock;
    change(1, 0, MIB, SG_RANGE_COUNTED);
    begin_scan(&lock);
    find(1, 0, MIB, MIB);
    end_scan(&lock, MIB);
    promise(1, 0, MIB); /* the call that mapped them settles after the scan */
    CHECK_EQUAL(sg_entry_sum(SG_SUM_SHARED), MIB);
    CHECK_EQUAL(shown(1), MIB);
}

CHILD_TEST(what_is_mapped_no_more_is_promised_no_more)
{
    change(1, 0, 4 * MIB, SG_RANGE_COUNTED);
    change(2, 0, MIB, SG_RANGE_COUNTED);
    promise(1, 0, 4 * MIB);
    promise(2, 0, MIB);
    change(1, 3 * MIB, MIB, SG_RANGE_NONE);
    CHECK_EQUAL(shown(1), 3 * MIB);
    CHECK_EQUAL(sg_entry_sum(SG_SUM_SHARED), 4 * MIB);
    change(2, 0, MIB, SG_RANGE_NONE);
    change(1, 0, 3 * MIB, SG_RANGE_NONE);
    CHECK_EQUAL(sg_entry_sum(SG_SUM_SHARED), 0);
    CHECK_EQUAL(sg_entry_sum(SG_SUM_PROMISED), 0);
}

CHILD_TEST(what_may_be_missing_in_the_rest_of_a_range_stays_promised)
{
    struct sg_lock_state lock;
    change(1, 0, 4 * MIB, SG_RANGE_COUNTED);
    promise(1, 0, 4 * MIB);
    begin_scan(&lock);
    find(1, 0, 4 * MIB, 3 * MIB);
    end_scan(&lock, 3 * MIB);
    change(1, 2 * MIB, 2 * MIB, SG_RANGE_NONE); /* 1 or 2 MiB of what is left have no pages */
    CHECK_EQUAL(sg_entry_sum(SG_SUM_SHARED), 2 * MIB);
    CHECK_EQUAL(sg_ledger_promised_bytes(), 2 * MIB);
}

CHILD_TEST(what_a_forked_child_may_map_stays_promised_until_the_next_scan)
{
    struct sg_lock_state lock;
    change(1, 0, MIB, SG_RANGE_COUNTED);
    promise(1, 0, MIB);
    sg_ledger_before_fork();
    change(1, 0, MIB, SG_RANGE_NONE);
    CHECK_EQUAL(sg_entry_sum(SG_SUM_SHARED), MIB);
    begin_scan(&lock);
    end_scan(&lock, 0);
    CHECK_EQUAL(sg_entry_sum(SG_SUM_SHARED), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_scan_keeps_what_it_found_while_another_file_is_mapped),
        cmocka_unit_test(a_scan_keeps_what_it_found_when_the_range_grows),
        cmocka_unit_test(pages_that_a_scan_has_met_are_promised_once),
        cmocka_unit_test(what_is_mapped_no_more_is_promised_no_more),
        cmocka_unit_test(what_a_forked_child_may_map_stays_promised_until_the_next_scan),
        cmocka_unit_test(what_may_be_missing_in_the_rest_of_a_range_stays_promised),
    };
    return cmocka_run_group_tests_name("tmpfs_ranges", tests, NULL, NULL);
}
