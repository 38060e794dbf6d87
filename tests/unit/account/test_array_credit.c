/*
 * test_array_credit.c - freed arrays that a thread may take again: what is credit, what a scan and a peak make of it,
 * and what the scan promises meanwhile. tests/model/arrays.pml has the interleavings.
 */
#include "fixture.h"

#include "account/callsites.h"
#include "account/ledger.h"
#include "account/thread_record.h"
#include "account/tracker.h"
#include "base/atomics.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SITE = 5, OTHER_SITE = 6, BEFORE_CREDIT = 16 };

static struct sg_record *begin(void)
{
    sg_thread_enter();
    sg_ledger_set_slack(64 * MIB, 0);
    CHECK_EQUAL(sg_self.record->array_credit, 0);
    return sg_self.record;
}

static bool give(struct sg_record *record, uint64_t bytes, uint32_t site)
{
    return sg_ledger_give_array(record, bytes, site, sg_ledger_array_epoch());
}

/* Arrays of nothing, until the record may have credit. */
static void open_word(struct sg_record *record)
{
    for (int i = 0; i < BEFORE_CREDIT && (record->array_credit & SG_ARRAY_OPEN) == 0; i++)
        (void)give(record, 0, 0);
    CHECK_EQUAL(record->array_credit, SG_ARRAY_OPEN);
}

static bool take(struct sg_record *record, uint64_t bytes)
{
    bool is_site_counted;
    return sg_ledger_take_array(record, bytes, 0, &is_site_counted);
}

static char *enter(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK_EQUAL(sg_block_table_insert(&sg_tracker_blocks, (uintptr_t)memory, sg_block(bytes, SG_DOMAIN_HEAP, 0), NULL),
                0);
    sg_ledger_charge(SG_DOMAIN_HEAP, bytes);
    return memory;
}

CHILD_TEST(credit_is_given_from_the_sixteenth_array_on)
{
    struct sg_record *record = begin();
    sg_ledger_charge(SG_DOMAIN_HEAP, 20 * MIB);
    for (int i = 1; i < BEFORE_CREDIT; i++)
        CHECK(!give(record, MIB, 0));
    CHECK(!take(record, MIB));
    CHECK(give(record, MIB, 0));
    CHECK_EQUAL(sg_array_credit_bytes(record->array_credit), MIB);
    CHECK_EQUAL(sg_own->slot.granted_bytes, 20 * MIB);
    CHECK_EQUAL(sg_ledger_live_bytes(), 19 * MIB);
    CHECK_EQUAL(sg_ledger_live_heap_bytes(), 19 * MIB);
    CHECK(!take(record, MIB + 8));
    CHECK(take(record, MIB));
    CHECK_EQUAL(sg_ledger_live_bytes(), 20 * MIB);
    CHECK(!take(record, 8));
}

CHILD_TEST(sizes_that_are_no_whole_units_are_not_paid_from_credit)
{
    struct sg_record *record = begin();
    open_word(record);
    sg_ledger_charge(SG_DOMAIN_HEAP, 4 * MIB);
    CHECK(give(record, 2 * MIB, 0));
    CHECK(!take(record, MIB + 7));
    CHECK_EQUAL(sg_ledger_live_bytes(), 2 * MIB);
}

CHILD_TEST(others_take_no_growth_for_touched_promises_while_there_is_credit)
{
    struct sg_record *record = begin();
    open_word(record);
    sg_ledger_charge(SG_DOMAIN_HEAP, 4 * MIB);
    sg_entry_own()->scanned_anonymous_bytes = 100 * MIB;
    CHECK(give(record, MIB, 0));
    CHECK_EQUAL(sg_entry_own()->scanned_anonymous_bytes, 0);
}

/* As a fork leaves it beside a thread that moves the entry: nobody will end the move. */
CHILD_TEST(a_scan_ends_beside_an_entry_whose_mover_is_gone)
{
    struct sg_record *record = begin();
    char *memory = enter(MIB);
    uint64_t value = sg_block_table_find(&sg_tracker_blocks, (uintptr_t)memory);
    struct sg_block_table_slot *slot = (void *)sg_tracker_blocks.generation[0];
    while (slot->key != (uintptr_t)memory)
        slot++;
    CHECK_EQUAL(slot->value, value);
    slot->value |= UINT64_C(1) << 62; /* FROZEN */
    sg_ledger_begin_scan();
    (void)sg_tracker_scan();
    sg_ledger_end_scan(0, 0);
    for (int i = 0; i < 2 * BEFORE_CREDIT; i++) /* this array has no mark, so none becomes credit */
        CHECK(!give(record, 0, 0) || sg_array_credit_bytes(record->array_credit) == 0);
    CHECK(!give(record, MIB, 0));
    slot->value &= ~(UINT64_C(1) << 62);
    sg_ledger_begin_scan();
    (void)sg_tracker_scan();
    sg_ledger_end_scan(0, 0);
    for (int i = 0; i < BEFORE_CREDIT; i++)
        (void)give(record, 0, 0);
    CHECK(give(record, MIB, 0));
}

CHILD_TEST(credit_has_a_bound_and_only_whole_units)
{
    struct sg_record *record = begin();
    open_word(record);
    sg_ledger_charge(SG_DOMAIN_HEAP, 200 * MIB);
    CHECK(!give(record, 1 * MIB + 4, 0));
    CHECK(!give(record, SG_ARRAY_MAX, 0));
    CHECK(give(record, 30 * MIB, 0) && give(record, 30 * MIB, 0));
    CHECK(!give(record, 5 * MIB, 0));
    CHECK(give(record, 4 * MIB, 0));
    sg_ledger_set_slack(MIB, 0); /* near the reserve: what there is may be used, and nothing is added */
    CHECK(take(record, 30 * MIB));
    CHECK(!give(record, 8, 0));
    sg_ledger_set_slack(UINT64_MAX, 0);
    CHECK(!give(record, 30 * MIB + 8, 0));
    CHECK_EQUAL(sg_ledger_live_bytes(), 166 * MIB);
    sg_ledger_set_slack(0, 0);
    CHECK(!take(record, 8));
    CHECK_EQUAL(sg_own->slot.granted_bytes, 166 * MIB);
}

CHILD_TEST(a_scan_takes_credit_back_and_lets_none_be_given)
{
    struct sg_record *record = begin();
    open_word(record);
    sg_ledger_charge(SG_DOMAIN_HEAP, 20 * MIB);
    CHECK(give(record, 6 * MIB, 0));
    uint32_t before = sg_ledger_array_epoch();
    sg_ledger_begin_scan();
    CHECK_EQUAL(record->array_credit, 0);
    CHECK_EQUAL(sg_own->slot.granted_bytes, 14 * MIB);
    for (int i = 0; i < 2 * BEFORE_CREDIT; i++)
        CHECK(!give(record, MIB, 0));
    sg_ledger_end_scan(0, 0);
    for (int i = 0; i < 2 * BEFORE_CREDIT; i++) /* removed from the table before or in that scan */
        CHECK(!sg_ledger_give_array(record, MIB, 0, before) && !sg_ledger_give_array(record, MIB, 0, before + 1));
    for (int i = 0; i < BEFORE_CREDIT; i++)
        (void)give(record, 0, 0);
    CHECK(give(record, MIB, 0));
    CHECK_EQUAL(sg_ledger_live_bytes(), 13 * MIB);
}

CHILD_TEST(a_charge_that_raises_a_peak_takes_credit_back)
{
    struct sg_record *record = begin();
    open_word(record);
    sg_ledger_charge(SG_DOMAIN_HEAP, 20 * MIB);
    CHECK(give(record, 16 * MIB, 0));
    sg_ledger_charge(SG_DOMAIN_MAPPED, 10 * MIB); /* 14 MiB live: below the peak, but 30 with the credit */
    CHECK_EQUAL(sg_own->peak_seen_bytes, 20 * MIB);
    CHECK_EQUAL(sg_own->slot.granted_bytes, 14 * MIB);
    CHECK_EQUAL(record->array_credit, SG_ARRAY_OPEN);
    CHECK(give(record, 2 * MIB, 0));
    (void)sg_ledger_turn_peak();
    CHECK_EQUAL(sg_own->phase_peak_bytes, 12 * MIB);
    CHECK(give(record, MIB, 0));
    sg_ledger_turn_domain_peaks();
    CHECK_EQUAL(sg_own->domain[SG_DOMAIN_HEAP].recent_peak_bytes, MIB);
}

static struct sg_callsite *site_at(uint32_t number)
{
    return &sg_own->site[SG_CALLSITES_HEAP][number];
}

CHILD_TEST(a_call_site_counts_an_array_until_the_credit_is_gone)
{
    struct sg_record *record = begin();
    bool is_counted = false;
    open_word(record);
    sg_ledger_charge(SG_DOMAIN_HEAP, 40 * MIB);
    for (int i = 0; i < 20; i++)
        (void)sg_callsites_add(SG_CALLSITES_HEAP, SITE, MIB);
    (void)sg_callsites_add(SG_CALLSITES_HEAP, OTHER_SITE, 3 * MIB);
    CHECK(give(record, MIB, SITE) && give(record, MIB, SITE));
    CHECK_EQUAL(sg_array_site(record->array_credit), SITE);
    CHECK_EQUAL(sg_array_site_bytes(record->array_credit), 2 * MIB);
    CHECK_EQUAL(sg_array_site_count(record->array_credit), 2);
    CHECK_EQUAL(site_at(SITE)->live_bytes, 20 * MIB);

    CHECK(sg_ledger_take_array(record, MIB, SITE, &is_counted) && is_counted);
    CHECK_EQUAL(sg_array_site_count(record->array_credit), 1);
    CHECK(give(record, 3 * MIB, OTHER_SITE)); /* there is a part for one call site only */
    CHECK_EQUAL(site_at(SITE)->live_bytes, 19 * MIB);
    CHECK_EQUAL(site_at(SITE)->live_count, 19);
    CHECK_EQUAL(sg_array_site(record->array_credit), OTHER_SITE);
    CHECK(sg_ledger_take_array(record, MIB, SITE, &is_counted) && !is_counted);
    CHECK_EQUAL(sg_array_site_bytes(record->array_credit), 3 * MIB);

    sg_ledger_take_back_arrays();
    CHECK_EQUAL(site_at(OTHER_SITE)->live_bytes, 0);
    CHECK_EQUAL(site_at(OTHER_SITE)->live_count, 0);
    for (int i = 0; i < 19; i++) /* more than the word can count */
        CHECK(give(record, MIB, SITE));
    CHECK_EQUAL(sg_array_credit_bytes(record->array_credit), 19 * MIB);
    CHECK_EQUAL(site_at(SITE)->live_count - sg_array_site_count(record->array_credit), 0);
    sg_ledger_take_back_arrays();
    CHECK_EQUAL(site_at(SITE)->live_bytes, 0);
    CHECK_EQUAL(site_at(SITE)->live_count, 0);
}

static void *have_credit(void *unused)
{
    (void)unused;
    sg_thread_enter();
    struct sg_record *record = sg_self.record;
    for (int i = 0; i < BEFORE_CREDIT; i++)
        (void)give(record, 0, 0);
    CHECK(give(record, 5 * MIB, 0));
    return record;
}

CHILD_TEST(credit_of_an_ended_thread_is_given_back)
{
    pthread_t thread;
    void *record;
    (void)begin();
    sg_ledger_charge(SG_DOMAIN_HEAP, 20 * MIB);
    CHECK(pthread_create(&thread, NULL, have_credit, NULL) == 0);
    CHECK(pthread_join(thread, &record) == 0);
    CHECK_EQUAL(sg_own->slot.granted_bytes, 20 * MIB);
    for (int i = 0; i < 5000 && sg_own->slot.granted_bytes != 15 * MIB; i++) {
        (void)usleep(i < 10 ? 0 : 1000); /* poll: the kernel counts it no more, a moment after its join */
        sg_thread_reap(4);
    }
    CHECK_EQUAL(sg_own->slot.granted_bytes, 15 * MIB);
    CHECK_EQUAL(((struct sg_record *)record)->array_credit, 0);
}

CHILD_TEST(a_scan_marks_every_array_that_it_has_seen)
{
    char *small = enter(512 * KIB), *large = enter(4 * MIB);
    (void)sg_tracker_scan();
    CHECK((sg_block_table_find(&sg_tracker_blocks, (uintptr_t)small) & SG_BLOCK_SCANNED) != 0);
    CHECK((sg_block_table_find(&sg_tracker_blocks, (uintptr_t)large) & SG_BLOCK_SCANNED) != 0);
    CHECK_EQUAL(sg_block_size(sg_block_table_find(&sg_tracker_blocks, (uintptr_t)large)), 4 * MIB);
}

CHILD_TEST(an_array_on_its_way_from_the_credit_to_the_table_is_promised)
{
    (void)begin();
    uint64_t before = sg_tracker_scan().promised_bytes;
    sg_tracker_begin_paying(sg_self.record, 8 * MIB);
    CHECK_EQUAL(sg_tracker_scan().promised_bytes, before + 8 * MIB);
    sg_tracker_begin_paying(sg_self.record, 2 * MIB); /* in a signal handler */
    CHECK_EQUAL(sg_tracker_scan().promised_bytes, before + 10 * MIB);
    sg_tracker_end_paying(sg_self.record, 2 * MIB);
    sg_tracker_end_paying(sg_self.record, 8 * MIB);
    CHECK_EQUAL(sg_tracker_scan().promised_bytes, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(credit_is_given_from_the_sixteenth_array_on),
        cmocka_unit_test(sizes_that_are_no_whole_units_are_not_paid_from_credit),
        cmocka_unit_test(others_take_no_growth_for_touched_promises_while_there_is_credit),
        cmocka_unit_test(a_scan_ends_beside_an_entry_whose_mover_is_gone),
        cmocka_unit_test(credit_has_a_bound_and_only_whole_units),
        cmocka_unit_test(a_scan_takes_credit_back_and_lets_none_be_given),
        cmocka_unit_test(a_charge_that_raises_a_peak_takes_credit_back),
        cmocka_unit_test(a_call_site_counts_an_array_until_the_credit_is_gone),
        cmocka_unit_test(credit_of_an_ended_thread_is_given_back),
        cmocka_unit_test(a_scan_marks_every_array_that_it_has_seen),
        cmocka_unit_test(an_array_on_its_way_from_the_credit_to_the_table_is_promised),
    };
    return cmocka_run_group_tests_name("array_credit", tests, NULL, NULL);
}
