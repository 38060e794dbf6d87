/*
 * test_tracker.c - what is promised: granted, and not resident yet.
 */
#include "fixture.h"

#include "account/tracker.h"
#include "account/ledger.h"
#include "account/residency.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

#include <sys/mman.h>

#define HUGE_PAGE (2 * MIB)

/* Fresh memory on a boundary of huge pages, so that touching whole 2 MiB makes exactly those resident. */
static char *map_fresh(size_t bytes)
{
    char *memory = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory + (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE) % HUGE_PAGE;
}

static void touch(char *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 4096)
        *(volatile char *)(memory + i) = 1;
}

/* What this program has mapped and not touched beside what it was granted, and by how much the kernel's counters of
 * pages may be behind. */
enum { NEAR = 6 << 20 };

static char *take(size_t bytes, enum sg_domain domain)
{
    char *memory = map_fresh(bytes);
    sg_ledger_charge(domain, bytes);
    sg_ledger_promise(bytes, domain != SG_DOMAIN_MANAGED);
    return memory;
}

static uint64_t promised(void)
{
    (void)sg_tracker_scan();
    return sg_ledger_promised_bytes();
}

static bool is_near(uint64_t bytes, uint64_t expected)
{
    return bytes >= expected && bytes <= expected + NEAR;
}

CHILD_TEST(a_block_value_keeps_what_it_was_made_of)
{
    const uint64_t most = (UINT64_C(1) << 43) - 1;
    uint64_t block = sg_block(most, SG_DOMAIN_DEVICE, 5) | UINT64_C(31) << SG_BLOCK_SITE_SHIFT;
    CHECK(sg_block_size(block) == most);
    CHECK_EQUAL(sg_block_site(block), 31);
    CHECK_EQUAL(sg_block_domain(block), SG_DOMAIN_DEVICE);
    CHECK_EQUAL(sg_block_device(block), 5);
    CHECK((block & SG_BLOCK_SETTLED) == 0 && (block & ~SG_BLOCK_TABLE_VALUE_MASK) == 0);
    CHECK(sg_block_size(block | SG_BLOCK_SETTLED) == sg_block_size(block));
    CHECK_EQUAL(sg_block_device(block | SG_BLOCK_SETTLED), 5);
    CHECK_EQUAL(sg_block_site(sg_block(most, SG_DOMAIN_HEAP, 7)), 0);
}

CHILD_TEST(nothing_held_is_nothing_promised)
{
    CHECK_EQUAL(promised(), 0);
}

CHILD_TEST(what_is_touched_is_promised_no_more)
{
    SKIP_BESIDE_SHADOW();
    char *memory = take(64 * MIB, SG_DOMAIN_HEAP);
    CHECK_EQUAL(promised(), 64 * MIB);
    touch(memory, 32 * MIB);
    CHECK(is_near(promised(), 32 * MIB));
    touch(memory, 64 * MIB);
    CHECK(is_near(promised(), 0));
}

CHILD_TEST(an_observation_between_two_scans_lowers_the_promise)
{
    SKIP_BESIDE_SHADOW();
    char *memory = take(64 * MIB, SG_DOMAIN_MAPPED);
    touch(memory, 48 * MIB);
    sg_tracker_observe();
    CHECK(is_near(sg_ledger_promised_bytes(), 16 * MIB));
}

/* The .bss of a program, its stacks, the pages of files that it copies. */
CHILD_TEST(what_nobody_was_granted_touches_no_promise)
{
    char *others = map_fresh(64 * MIB);
    (void)take(48 * MIB, SG_DOMAIN_HEAP);
    CHECK_EQUAL(promised(), 48 * MIB);
    touch(others, 64 * MIB);
    CHECK_EQUAL(promised(), 48 * MIB);
    sg_tracker_observe();
    CHECK_EQUAL(sg_ledger_promised_bytes(), 48 * MIB);
}

CHILD_TEST(a_scan_raises_no_promise)
{
    char *memory = take(64 * MIB, SG_DOMAIN_HEAP);
    touch(memory, 64 * MIB);
    uint64_t before = promised();
    (void)map_fresh(64 * MIB); /* not granted */
    CHECK(promised() <= before);
}

CHILD_TEST(no_more_is_promised_than_held)
{
    (void)take(64 * MIB, SG_DOMAIN_HEAP);
    sg_ledger_release(SG_DOMAIN_HEAP, 48 * MIB);
    CHECK_EQUAL(sg_ledger_promised_bytes(), 16 * MIB);
}

CHILD_TEST(what_is_given_back_is_promised_again)
{
    SKIP_BESIDE_SHADOW();
    char *memory = take(64 * MIB, SG_DOMAIN_HEAP);
    touch(memory, 64 * MIB);
    CHECK(is_near(promised(), 0));
    CHECK_EQUAL(sg_tracker_promisable_bytes((uintptr_t)memory, (uintptr_t)memory + 32 * MIB), 32 * MIB);
    CHECK(madvise(memory, 32 * MIB, MADV_DONTNEED) == 0);
    sg_ledger_promise(32 * MIB, true);
    CHECK(is_near(sg_ledger_promised_bytes(), 32 * MIB));
    CHECK(is_near(promised(), 32 * MIB));
    touch(memory, 32 * MIB);
    CHECK(is_near(promised(), 0));
}

/* An observation finds it in neither of two places otherwise: not writable, and its pages there. */
CHILD_TEST(memory_that_is_made_unwritable_hides_no_promise)
{
    SKIP_BESIDE_SHADOW();
    char *memory = take(64 * MIB, SG_DOMAIN_MAPPED);
    (void)take(32 * MIB, SG_DOMAIN_MAPPED);
    touch(memory, 64 * MIB);
    CHECK(is_near(promised(), 32 * MIB));
    sg_ledger_close_private(64 * MIB);
    CHECK(mprotect(memory, 64 * MIB, PROT_READ) == 0);
    CHECK(is_near(promised(), 32 * MIB));
    CHECK(mprotect(memory, 64 * MIB, PROT_READ | PROT_WRITE) == 0);
    sg_ledger_reopen_private(64 * MIB);
    CHECK(is_near(promised(), 32 * MIB));
    CHECK_EQUAL(sg_entry_own()->unwritable_bytes, 0);
}

CHILD_TEST(device_memory_promises_nothing_but_managed_memory_does)
{
    char *memory = take(16 * MIB, SG_DOMAIN_MANAGED);
    CHECK_EQUAL(
        sg_block_table_insert(&sg_tracker_cuda, (uintptr_t)memory, sg_block(16 * MIB, SG_DOMAIN_MANAGED, 0), NULL), 0);
    sg_ledger_charge(SG_DOMAIN_DEVICE, 64 * MIB);
    CHECK_EQUAL(promised(), 16 * MIB);
    CHECK_EQUAL(sg_entry_own()->slot.live_bytes, 16 * MIB);
    touch(memory, 16 * MIB);
    CHECK_EQUAL(promised(), 0);
    CHECK((sg_block_table_find(&sg_tracker_cuda, (uintptr_t)memory) & SG_BLOCK_SETTLED) != 0);
}

CHILD_TEST(a_shared_mapping_promises_what_is_not_resident)
{
    char *memory = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uintptr_t begin = (uintptr_t)memory;
    CHECK(memory != MAP_FAILED);
    CHECK_EQUAL(sg_range_map_set(&sg_tracker_maps, begin, begin + 8 * MIB, SG_RANGE_COUNTED, SG_RANGE_SHARED), 0);
    sg_ledger_charge(SG_DOMAIN_MAPPED, 8 * MIB);
    sg_ledger_promise(8 * MIB, false);
    CHECK_EQUAL(promised(), 8 * MIB);
    touch(memory, 2 * MIB);
    CHECK_EQUAL(promised(), 6 * MIB);
    CHECK_EQUAL(sg_entry_own()->shared_promised_bytes, 6 * MIB);
    touch(memory, 8 * MIB);
    CHECK_EQUAL(promised(), 0);
    struct sg_range range;
    CHECK(sg_range_map_next(&sg_tracker_maps, begin, &range));
    CHECK_EQUAL(range.flags, SG_RANGE_SETTLED | SG_RANGE_SHARED);
}

CHILD_TEST(a_sparse_mapping_promises_nothing_and_shows_what_is_resident)
{
    char *memory = map_fresh(8 * MIB);
    uintptr_t begin = (uintptr_t)memory;
    CHECK_EQUAL(sg_range_map_set(&sg_tracker_maps, begin, begin + 8 * MIB, SG_RANGE_SPARSE, SG_RANGE_COMMITTED), 0);
    touch(memory, 4 * MIB);
    CHECK_EQUAL(sg_tracker_scan(), 4 * MIB);
    CHECK_EQUAL(sg_own->sparse_resident_bytes, 4 * MIB);
}

CHILD_TEST(untouched_sparse_memory_holds_up_no_promise)
{
    SKIP_BESIDE_SHADOW();
    uintptr_t sparse = (uintptr_t)map_fresh(64 * MIB);
    CHECK_EQUAL(sg_range_map_set(&sg_tracker_maps, sparse, sparse + 64 * MIB, SG_RANGE_SPARSE, SG_RANGE_COMMITTED), 0);
    char *memory = take(48 * MIB, SG_DOMAIN_HEAP);
    touch(memory, 48 * MIB);
    touch((char *)sparse, 8 * MIB);
    CHECK(is_near(promised(), 0));
}

CHILD_TEST(sparse_terabytes_that_were_never_writable_are_not_looked_at)
{
    CHECK_EQUAL(sg_range_map_set(&sg_tracker_maps, (uintptr_t)GIB, (uintptr_t)(1000 * GIB), SG_RANGE_SPARSE, 0), 0);
    CHECK_EQUAL(sg_tracker_scan(), 0);
    CHECK_EQUAL(sg_own->sparse_resident_bytes, 0);
}

/* Only a kernel that tells what is there at a cost of that (Linux 6.7) is asked about terabytes: by mincore it takes
 * minutes. */
CHILD_TEST(writable_sparse_terabytes_are_looked_at_where_that_is_cheap)
{
    char *memory = map_fresh(8 * MIB);
    uintptr_t middle = (uintptr_t)memory;
    touch(memory, 4 * MIB);
    CHECK_EQUAL(
        sg_range_map_set(&sg_tracker_maps, middle - 100 * GIB, middle + 8 * MIB, SG_RANGE_SPARSE, SG_RANGE_COMMITTED),
        0);
    CHECK_EQUAL(sg_range_map_set(&sg_tracker_maps, (uintptr_t)GIB, (uintptr_t)(1000 * GIB), SG_RANGE_SPARSE,
                                 SG_RANGE_COMMITTED),
                0);
    uint64_t begin = clock_ns();
    (void)sg_tracker_scan();
    CHECK(clock_ns() - begin < 60 * UINT64_C(1000000000)); /* limit: by mincore it takes minutes */
    if (sg_residency_is_cheap())
        CHECK(sg_own->sparse_resident_bytes >= 4 * MIB && sg_own->sparse_resident_bytes < GIB);
    else
        CHECK(sg_own->sparse_resident_bytes == SG_UNKNOWN);
}

CHILD_TEST(a_child_keeps_a_whole_map_and_forgets_a_torn_one)
{
    CHECK_EQUAL(sg_range_map_set(&sg_tracker_maps, 4096, 8192, SG_RANGE_RESERVED, 0), 0);
    struct sg_lock_state state;
    sg_lock_acquire(&sg_tracker_maps_lock, &state);
    sg_tracker_atfork_child(true);
    struct sg_range range;
    CHECK(sg_range_map_next(&sg_tracker_maps, 0, &range));
    CHECK(sg_lock_acquire_within(&sg_tracker_maps_lock, &state, 0));
    sg_tracker_atfork_child(false);
    CHECK(!sg_range_map_next(&sg_tracker_maps, 0, &range));
    CHECK_EQUAL(sg_own->faults, 1);
    CHECK_EQUAL(sg_range_map_set(&sg_tracker_maps, 4096, 8192, SG_RANGE_COUNTED, 0), 0);
}

CHILD_TEST(a_block_keeps_its_size_whatever_it_is_marked_as)
{
    const uint64_t marks[] = {SG_BLOCK_SETTLED, SG_BLOCK_INHERITED};
    for (size_t i = 0; i < SG_ARRAY_LENGTH(marks); i++) {
        uint64_t block = sg_block(2097136, SG_DOMAIN_HEAP, 0) | UINT64_C(31) << SG_BLOCK_SITE_SHIFT;
        CHECK_EQUAL(block & marks[i], 0);
        CHECK_EQUAL(sg_block_size(block | marks[i]), 2097136);
        CHECK_EQUAL(sg_block_site(block | marks[i]), 31);
        CHECK_EQUAL(sg_block_domain(block | marks[i]), SG_DOMAIN_HEAP);
    }
}

CHILD_TEST(a_map_that_is_looked_at_is_whole_and_one_that_is_changed_is_not)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    CHECK(sg_tracker_is_whole());
    sg_tracker_begin_change();
    CHECK(!sg_tracker_is_whole());
    sg_tracker_end_change();
    CHECK(sg_tracker_is_whole());
    sg_tracker_begin_change();
    sg_tracker_atfork_child(sg_tracker_is_whole()); /* a child's: whoever was at it does not exist there */
    CHECK(sg_tracker_is_whole());
}

/* How long one waits for the other; at most, in the best of several tries. */
enum { WAIT_NS = 1000000, LONGEST_NS = 50 * WAIT_NS, TRIES = 5000 }; /* so many, for the machine may have other work */

static uint64_t time_of(void (*call)(void))
{
    uint64_t begin = clock_ns();
    call();
    return clock_ns() - begin;
}

static bool is_immediate(void (*prepare)(void), void (*call)(void))
{
    for (int i = 0; i < TRIES; i++) {
        prepare();
        if (time_of(call) < WAIT_NS / 2)
            return true;
    }
    return false;
}

static void begin_and_end_fork(void)
{
    sg_tracker_begin_fork();
    sg_tracker_end_fork();
}

CHILD_TEST(a_fork_waits_for_a_change_but_not_for_ever)
{
    uint64_t took = UINT64_MAX;
    for (int i = 0; i < TRIES && took >= LONGEST_NS; i++) {
        if (i != 0)
            sg_tracker_end_fork();
        sg_tracker_begin_change(); /* nobody ends it */
        took = time_of(sg_tracker_begin_fork);
        CHECK(took >= WAIT_NS);
        CHECK(!sg_tracker_is_whole());
        sg_tracker_end_change();
    }
    CHECK(took < LONGEST_NS); /* pace: the best of all tries */
    CHECK(is_immediate(sg_tracker_end_fork, sg_tracker_begin_fork));
    CHECK(sg_tracker_is_whole());
}

CHILD_TEST(a_change_waits_for_a_fork_but_not_for_ever)
{
    uint64_t took = UINT64_MAX;
    for (int i = 0; i < TRIES && took >= LONGEST_NS; i++) {
        if (i != 0)
            sg_tracker_end_fork();
        uint64_t begin = clock_ns();
        sg_tracker_begin_fork(); /* nobody ends it */
        sg_tracker_wait_for_fork();
        took = clock_ns() - begin;
        CHECK(took >= WAIT_NS);
    }
    CHECK(took < LONGEST_NS); /* pace: the best of all tries */
    CHECK(is_immediate(begin_and_end_fork, sg_tracker_wait_for_fork));
}

static void *end_change_soon(void *begun)
{
    (void)begun;
    (void)usleep(100); /* pace: of the change */
    sg_tracker_end_change();
    return NULL;
}

/* Not until the time is over, that is. */
CHILD_TEST(a_fork_goes_on_as_soon_as_the_change_has_ended)
{
    bool is_soon = false;
    for (int i = 0; i < TRIES && !is_soon; i++) {
        pthread_t thread;
        if (i != 0)
            sg_tracker_end_fork();
        sg_tracker_begin_change();
        CHECK(pthread_create(&thread, NULL, end_change_soon, NULL) == 0);
        is_soon = time_of(sg_tracker_begin_fork) < WAIT_NS / 2;
        CHECK(pthread_join(thread, NULL) == 0);
    }
    CHECK(is_soon);
    CHECK(sg_tracker_is_whole());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_value_keeps_what_it_was_made_of),
        cmocka_unit_test(a_block_keeps_its_size_whatever_it_is_marked_as),
        cmocka_unit_test(nothing_held_is_nothing_promised),
        cmocka_unit_test(what_is_touched_is_promised_no_more),
        cmocka_unit_test(an_observation_between_two_scans_lowers_the_promise),
        cmocka_unit_test(what_nobody_was_granted_touches_no_promise),
        cmocka_unit_test(a_scan_raises_no_promise),
        cmocka_unit_test(no_more_is_promised_than_held),
        cmocka_unit_test(what_is_given_back_is_promised_again),
        cmocka_unit_test(memory_that_is_made_unwritable_hides_no_promise),
        cmocka_unit_test(device_memory_promises_nothing_but_managed_memory_does),
        cmocka_unit_test(a_shared_mapping_promises_what_is_not_resident),
        cmocka_unit_test(a_sparse_mapping_promises_nothing_and_shows_what_is_resident),
        cmocka_unit_test(untouched_sparse_memory_holds_up_no_promise),
        cmocka_unit_test(sparse_terabytes_that_were_never_writable_are_not_looked_at),
        cmocka_unit_test(writable_sparse_terabytes_are_looked_at_where_that_is_cheap),
        cmocka_unit_test(a_child_keeps_a_whole_map_and_forgets_a_torn_one),
        cmocka_unit_test(a_map_that_is_looked_at_is_whole_and_one_that_is_changed_is_not),
        cmocka_unit_test(a_fork_waits_for_a_change_but_not_for_ever),
        cmocka_unit_test(a_change_waits_for_a_fork_but_not_for_ever),
        cmocka_unit_test(a_fork_goes_on_as_soon_as_the_change_has_ended),
    };
    return cmocka_run_group_tests_name("index", tests, NULL, NULL);
}
