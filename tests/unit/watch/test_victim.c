/*
 * test_victim.c - who is to end, by the entries of a registry. It is included as source: the entries are made up here.
 */
#include "fixture.h"

#include "watch/victim.c"

#define NOW UINT64_C(100000000000)

static struct sg_registry *registry;
static uint32_t used;

static struct sg_registry_entry *live(uint64_t holds_bytes, uint32_t parent)
{
    struct sg_registry_entry *entry = sg_entry_at(registry, used++);
    entry->claim = used << 2 | SG_CLAIM_LIVE;
    entry->watched_ns = NOW;
    entry->holds_bounded_bytes = holds_bytes;
    entry->parent_entry = parent;
    entry->parent_claim = parent != 0 ? sg_entry_at(registry, parent - 1)->claim : 0;
    registry->entry_used = used;
    return entry;
}

static void begin(void)
{
    const struct sg_registry_layout layout = {sizeof(struct sg_registry_entry), 1};
    registry = calloc(1, SG_REGISTRY_BYTES(sizeof(struct sg_registry_entry)));
    CHECK(registry != NULL);
    sg_entry_note_layout(registry, layout);
    sg_entry_set_registry(registry);
}

/* The number, from 1 on, of the one that its own watchdog would end for `missing` bytes; 0: nobody. */
static uint32_t chosen(uint64_t missing)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < used; i++) {
        sg_entry_set_own(sg_entry_at(registry, i));
        if (!is_chosen(0, missing, NOW))
            continue;
        CHECK_EQUAL(found, 0); /* never two */
        found = i + 1;
    }
    return found;
}

CHILD_TEST(who_holds_most_ends)
{
    begin();
    live(100 * MIB, 0);
    live(110 * MIB, 0);
    CHECK_EQUAL(chosen(50 * MIB), 2);
}

CHILD_TEST(a_child_ends_before_a_parent_that_holds_as_much)
{
    begin();
    live(104 * MIB, 0);
    live(100 * MIB, 1);
    CHECK_EQUAL(chosen(50 * MIB), 2);
}

CHILD_TEST(a_parent_that_holds_a_sixteenth_more_ends_before_its_child)
{
    begin();
    live(107 * MIB, 0);
    live(100 * MIB, 1);
    CHECK_EQUAL(chosen(50 * MIB), 1);
}

CHILD_TEST(a_grandchild_ends_first_whatever_their_places)
{
    begin();
    live(102 * MIB, 0);
    live(100 * MIB, 3)->parent_claim = 3 << 2 | SG_CLAIM_LIVE; /* a child of the next one */
    live(101 * MIB, 1);
    CHECK_EQUAL(chosen(50 * MIB), 2);
}

CHILD_TEST(of_several_children_the_largest_ends)
{
    begin();
    live(104 * MIB, 0);
    live(100 * MIB, 1);
    live(102 * MIB, 1);
    live(99 * MIB, 1);
    CHECK_EQUAL(chosen(50 * MIB), 3);
}

CHILD_TEST(a_stranger_does_not_end_for_a_family_that_holds_more)
{
    begin();
    live(104 * MIB, 0);
    live(102 * MIB, 0);
    live(100 * MIB, 1);
    CHECK_EQUAL(chosen(50 * MIB), 3);
}

CHILD_TEST(a_family_frees_all_that_it_holds)
{
    begin();
    live(104 * MIB, 0);
    live(100 * MIB, 1);
    CHECK_EQUAL(chosen(203 * MIB), 2);
    CHECK_EQUAL(chosen(205 * MIB), 0);
}

CHILD_TEST(a_child_that_cannot_end_keeps_no_parent_alive)
{
    begin();
    live(100 * MIB, 0);
    live(100 * MIB, 1)->watched_ns = 0;
    sg_entry_set_own(sg_entry_at(registry, 0));
    CHECK(is_chosen(0, 50 * MIB, NOW));
}

CHILD_TEST(who_would_not_end_itself_is_nobody_to_wait_for)
{
    static const struct {
        enum sg_watchdog_choice watchdog;
        bool is_observing, can_end;
    } cases[] = {
        {SG_WATCHDOG_TERM, false, true},
        {SG_WATCHDOG_TERM, true, false},
        {SG_WATCHDOG_WARN, false, false},
        {SG_WATCHDOG_WARN, true, false},
    };
    begin();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sg_registry_entry *entry = live(0, 0);
        sg_options.watchdog = cases[i].watchdog;
        sg_options.mode_observe = cases[i].is_observing;
        sg_entry_set_own(entry);
        sg_victim_publish();
        CHECK_EQUAL(entry->watched_ns != 0, cases[i].can_end);
    }
}

CHILD_TEST(what_a_child_shares_its_parents_end_does_not_free)
{
    begin();
    live(150 * MIB, 0);
    live(10 * MIB, 1)->shared_bytes = 100 * MIB;
    live(60 * MIB, 0);
    CHECK_EQUAL(chosen(20 * MIB), 3);
}

CHILD_TEST(a_child_of_an_entry_that_another_process_has_by_now_is_nobodys)
{
    begin();
    live(104 * MIB, 0);
    live(100 * MIB, 1)->parent_claim = 99 << 2 | SG_CLAIM_LIVE;
    CHECK_EQUAL(chosen(50 * MIB), 1);
}

CHILD_TEST(entries_that_name_each_other_as_parents_hold_nobody_up)
{
    begin();
    live(100 * MIB, 2)->parent_claim = 2 << 2 | SG_CLAIM_LIVE;
    live(100 * MIB, 1);
    CHECK(chosen(50 * MIB) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_holds_most_ends),
        cmocka_unit_test(a_child_ends_before_a_parent_that_holds_as_much),
        cmocka_unit_test(a_parent_that_holds_a_sixteenth_more_ends_before_its_child),
        cmocka_unit_test(a_grandchild_ends_first_whatever_their_places),
        cmocka_unit_test(of_several_children_the_largest_ends),
        cmocka_unit_test(a_stranger_does_not_end_for_a_family_that_holds_more),
        cmocka_unit_test(a_family_frees_all_that_it_holds),
        cmocka_unit_test(a_child_that_cannot_end_keeps_no_parent_alive),
        cmocka_unit_test(who_would_not_end_itself_is_nobody_to_wait_for),
        cmocka_unit_test(what_a_child_shares_its_parents_end_does_not_free),
        cmocka_unit_test(a_child_of_an_entry_that_another_process_has_by_now_is_nobodys),
        cmocka_unit_test(entries_that_name_each_other_as_parents_hold_nobody_up),
    };
    return cmocka_run_group_tests_name("victim", tests, NULL, NULL);
}
