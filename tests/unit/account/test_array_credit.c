/*
 * test_array_credit.c - freed arrays that a thread may take again: what is credit, what a peak makes of it, and what is
 * promised ahead. tests/model/promise.pml has the interleavings.
 */
#include "fixture.h"

#include "account/callsites.h"
#include "account/ledger.h"
#include "account/thread_record.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

#include <pthread.h>
#include <unistd.h>

enum { SITE = 5, OTHER_SITE = 6, BEFORE_CREDIT = 16 };

static struct sg_record *begin(void)
{
    sg_thread_enter();
    sg_ledger_set_array_credit(64 * MIB);
    CHECK_EQUAL(sg_self.record->array_credit, 0);
    return sg_self.record;
}

static bool give(struct sg_record *record, uint64_t bytes, uint32_t site)
{
    return sg_ledger_give_array(record, bytes, site);
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
    sg_ledger_set_array_credit(MIB); /* near the reserve: what there is may be used, and nothing is added */
    CHECK(take(record, 30 * MIB));
    CHECK(!give(record, 8, 0));
    sg_ledger_set_array_credit(UINT64_MAX);
    CHECK(!give(record, 30 * MIB + 8, 0));
    CHECK_EQUAL(sg_ledger_live_bytes(), 166 * MIB);
    sg_ledger_set_array_credit(0);
    CHECK(!take(record, 8));
    CHECK_EQUAL(sg_own->slot.granted_bytes, 166 * MIB);
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

CHILD_TEST(credit_and_the_next_array_are_promised_ahead)
{
    struct sg_record *record = begin();
    const uint64_t most = 8 * MIB; /* eight times the credit */
    open_word(record);
    sg_ledger_charge(SG_DOMAIN_HEAP, 40 * MIB);
    CHECK(give(record, 256 * KIB, 0) && take(record, 256 * KIB));
    CHECK_EQUAL(record->ahead_most_bytes, SG_ARRAY_AHEAD); /* at least */
    CHECK(give(record, MIB, 0));
    for (int i = 0; record->ahead_most_bytes != most; i++)
        CHECK(i < 8 && take(record, MIB) && give(record, MIB, 0));
    CHECK_EQUAL(record->ahead_bytes, most);
    uint64_t promised = sg_own->slot.promised_bytes;
    for (int i = 0; i < 7; i++)
        CHECK(take(record, MIB) && give(record, MIB, 0));
    CHECK_EQUAL(record->ahead_bytes, MIB);
    CHECK_EQUAL(sg_own->slot.promised_bytes, promised);
    CHECK(take(record, MIB) && give(record, MIB, 0)); /* filled up: eight arrays more may have no pages */
    CHECK_EQUAL(record->ahead_bytes, most);
    CHECK_EQUAL(sg_own->slot.promised_bytes, promised + most);
    CHECK_EQUAL(sg_entry_own()->shared_promised_bytes, record->ahead_most_bytes);
    CHECK(give(record, 16 * MIB, 0)); /* more credit than that */
    CHECK_EQUAL(record->ahead_bytes, SG_ARRAY_CREDIT_MAX);
}

/* Whatever it finds of the memory: a thread may take an array while it goes on. */
CHILD_TEST(a_scan_leaves_what_is_promised_ahead)
{
    struct sg_record *record = begin();
    open_word(record);
    sg_ledger_charge(SG_DOMAIN_HEAP, 40 * MIB);
    CHECK(give(record, MIB, 0));
    const struct sg_ledger_scan nothing = {.missing_bytes = 0};
    sg_ledger_begin_scan();
    sg_ledger_end_scan(&nothing);
    CHECK_EQUAL(sg_own->slot.promised_bytes, record->ahead_most_bytes);
    CHECK_EQUAL(sg_array_credit_bytes(record->array_credit), MIB);
    sg_ledger_take_back_record(record);
    sg_ledger_begin_scan();
    sg_ledger_end_scan(&nothing);
    CHECK_EQUAL(sg_own->slot.promised_bytes, 0);
}

CHILD_TEST(credit_of_an_idle_thread_is_given_back)
{
    struct sg_record *record = begin();
    open_word(record);
    sg_ledger_charge(SG_DOMAIN_HEAP, 20 * MIB);
    CHECK(give(record, 5 * MIB, 0));
    sg_ledger_take_back_idle_arrays();
    CHECK(give(record, MIB, 0));
    sg_ledger_take_back_idle_arrays();
    CHECK_EQUAL(sg_array_credit_bytes(record->array_credit), 6 * MIB);
    sg_ledger_take_back_idle_arrays(); /* it has freed none since */
    CHECK_EQUAL(record->array_credit, 0);
    CHECK_EQUAL(sg_own->slot.granted_bytes, 14 * MIB);
    open_word(record);
    CHECK(give(record, MIB, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(credit_is_given_from_the_sixteenth_array_on),
        cmocka_unit_test(sizes_that_are_no_whole_units_are_not_paid_from_credit),
        cmocka_unit_test(credit_has_a_bound_and_only_whole_units),
        cmocka_unit_test(a_charge_that_raises_a_peak_takes_credit_back),
        cmocka_unit_test(a_call_site_counts_an_array_until_the_credit_is_gone),
        cmocka_unit_test(credit_of_an_ended_thread_is_given_back),
        cmocka_unit_test(credit_and_the_next_array_are_promised_ahead),
        cmocka_unit_test(a_scan_leaves_what_is_promised_ahead),
        cmocka_unit_test(credit_of_an_idle_thread_is_given_back),
    };
    return cmocka_run_group_tests_name("array_credit", tests, NULL, NULL);
}
