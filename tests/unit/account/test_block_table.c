/*
 * test_block_table.c - the lock-free table. It is included as source, so that a test can put a slot into the states
 * that a mover leaves for an instant only.
 */
#include "fixture.h"

#include "base/atomics.h"

/* What another thread does at this very moment: called with the word that a store is about to write, or that a
 * compare-and-swap has just written. NULL: nothing. */
static void (*meanwhile)(uint64_t word);

static void let_others_run(uint64_t word)
{
    void (*now)(uint64_t) = meanwhile;
    if (now == NULL)
        return;
    meanwhile = NULL; /* what they do themselves is not interrupted */
    now(word);
    if (meanwhile == NULL)
        meanwhile = now;
}

static inline bool cas_u64_with_others(uint64_t *ptr, uint64_t *expected, uint64_t desired)
{
    bool is_done = sg_cas_u64(ptr, expected, desired);
    if (is_done)
        let_others_run(desired);
    return is_done;
}

static inline void store_u64_with_others(uint64_t *ptr, uint64_t value)
{
    let_others_run(value);
    sg_store(ptr, value);
}

#undef sg_store
#define sg_store store_u64_with_others
#define sg_cas_u64 cas_u64_with_others
#include "account/block_table.c"
#undef sg_cas_u64

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

/* ThreadSanitizer makes this 30 times slower: there an eighth of the work must do. */
#ifdef __SANITIZE_THREAD__
enum { SHORTER_SHIFT = 3 };
#else
enum { SHORTER_SHIFT = 0 };
#endif

enum { THREADS = 4 };

static struct sg_block_table table;

static int empty_table(void **unused)
{
    (void)unused;
    sg_block_table_destroy(&table);
    return 0;
}

/* Address-like keys: page-aligned blocks of a heap arena, 16 bytes behind the page as glibc has them. */
static uint64_t key_of(uint64_t number)
{
    return UINT64_C(0x7f0000000010) + number * 0x11000;
}

static uint64_t value_of(uint64_t number)
{
    return (number * UINT64_C(0x9e3779b97f4a7c15) & (SG_BLOCK_TABLE_VALUE_MASK >> 8)) | 1;
}

static void insert_range(uint64_t begin, uint64_t end)
{
    for (uint64_t i = begin; i < end; i++)
        if (sg_block_table_insert(&table, key_of(i), value_of(i), NULL) != 0)
            fail_msg("cannot insert number %lu", (unsigned long)i);
}

static uint64_t count_right(uint64_t begin, uint64_t end)
{
    uint64_t right = 0;
    for (uint64_t i = begin; i < end; i++)
        right += sg_block_table_find(&table, key_of(i)) == value_of(i);
    return right;
}

/* Resident bytes of all generations. */
static uint64_t resident_of(const struct sg_block_table *of)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), count = 0;
    for (uint32_t g = 0; g < of->newest; g++) {
        static unsigned char pages[32768];
        uint64_t bytes = of->generation[g]->bytes;
        assert_true(bytes / page < sizeof pages);
        assert_int_equal(mincore(of->generation[g], bytes, pages), 0);
        for (uint64_t i = 0; i < (bytes + page - 1) / page; i++)
            count += pages[i] & 1;
    }
    return count * page;
}

/* What generations that have been given back may keep of themselves: the page of their head and that of their end. */
static uint64_t kept_most(const struct sg_block_table *of)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), bytes = 0;
    for (uint32_t g = 0; g < of->first; g++) {
        uint64_t whole = (of->generation[g]->bytes + page - 1) / page * page;
        bytes += whole < 2 * SG_PAGE_MAX ? whole : 2 * SG_PAGE_MAX;
    }
    return bytes;
}

/* ---- one thread -------------------------------------------------------------------------------------------------- */

PLAIN_TEST(empty_table_holds_nothing)
{
    assert_int_equal(sg_block_table_find(&table, key_of(1)), 0);
    assert_int_equal(sg_block_table_remove(&table, key_of(1)), 0);
    assert_false(sg_block_table_mark(&table, key_of(1), 1, 2));
}

PLAIN_TEST(insert_find_remove)
{
    assert_int_equal(sg_block_table_insert(&table, 0x1000, 7, NULL), 0);
    assert_int_equal(sg_block_table_find(&table, 0x1000), 7);
    assert_int_equal(sg_block_table_find(&table, 0x1001), 0);
    assert_int_equal(sg_block_table_remove(&table, 0x1000), 7);
    assert_int_equal(sg_block_table_remove(&table, 0x1000), 0);
    assert_int_equal(sg_block_table_find(&table, 0x1000), 0);
}

/* aarch64 has 52 with pages of 64 KiB, x86-64 56 with five levels. */
PLAIN_TEST(addresses_of_52_bits_are_keys_like_others)
{
    const uint64_t end = UINT64_C(1) << 52, page = 65536;
    for (uint64_t i = 1; i <= 1000; i++) {
        assert_int_equal(sg_block_table_insert(&table, end - i * page, value_of(i), NULL), 0);
        assert_int_equal(sg_block_table_insert(&table, end / 16 - i * page, value_of(i + 1000), NULL),
                         0); /* the same low 48 bits */
    }
    for (uint64_t i = 1; i <= 1000; i++) {
        assert_int_equal(sg_block_table_remove(&table, end - i * page), value_of(i));
        assert_int_equal(sg_block_table_find(&table, end / 16 - i * page), value_of(i + 1000));
    }
}

PLAIN_TEST(keys_and_values_it_cannot_hold_are_refused)
{
    const uint64_t bad_keys[] = {0, UINT64_MAX, UINT64_MAX - 1};
    for (size_t i = 0; i < SG_ARRAY_LENGTH(bad_keys); i++) {
        assert_int_equal(sg_block_table_insert(&table, bad_keys[i], 1, NULL), -EINVAL);
        assert_int_equal(sg_block_table_find(&table, bad_keys[i]), 0);
        assert_int_equal(sg_block_table_remove(&table, bad_keys[i]), 0);
    }
    assert_int_equal(sg_block_table_insert(&table, 1, 0, NULL), -EINVAL);
    assert_int_equal(sg_block_table_insert(&table, 1, SG_BLOCK_TABLE_VALUE_MASK + 1, NULL), -EINVAL);
    assert_int_equal(sg_block_table_insert(&table, UINT64_MAX - 2, SG_BLOCK_TABLE_VALUE_MASK, NULL), 0);
    assert_int_equal(sg_block_table_insert(&table, 1, 1, NULL), 0);
    assert_true(sg_block_table_find(&table, UINT64_MAX - 2) == SG_BLOCK_TABLE_VALUE_MASK);
}

PLAIN_TEST(stale_entry_is_replaced_and_told)
{
    uint64_t stale = 99;
    assert_int_equal(sg_block_table_insert(&table, 0x1000, 7, &stale), 0);
    assert_int_equal(stale, 0);
    assert_int_equal(sg_block_table_insert(&table, 0x1000, 8, &stale), 0);
    assert_int_equal(stale, 7);
    assert_int_equal(sg_block_table_find(&table, 0x1000), 8);
    assert_int_equal(sg_block_table_remove(&table, 0x1000), 8);
    assert_int_equal(sg_block_table_find(&table, 0x1000), 0);
}

PLAIN_TEST(mark_needs_the_exact_value)
{
    assert_int_equal(sg_block_table_insert(&table, 0x1000, 8, NULL), 0);
    assert_false(sg_block_table_mark(&table, 0x1000, 9, 1));
    assert_false(sg_block_table_mark(&table, 0x2000, 8, 1));
    assert_int_equal(sg_block_table_find(&table, 0x1000), 8);
    assert_true(sg_block_table_mark(&table, 0x1000, 8, 1));
    assert_false(sg_block_table_mark(&table, 0x1000, 8, 2));
    assert_int_equal(sg_block_table_remove(&table, 0x1000), 9);
}

PLAIN_TEST(exact_removal_needs_the_exact_value)
{
    assert_false(sg_block_table_remove_exact(&table, 0x1000, 8));
    assert_int_equal(sg_block_table_insert(&table, 0x1000, 8, NULL), 0);
    assert_false(sg_block_table_remove_exact(&table, 0x1000, 9));
    assert_false(sg_block_table_remove_exact(&table, 0x2000, 8));
    assert_int_equal(sg_block_table_find(&table, 0x1000), 8);
    assert_true(sg_block_table_remove_exact(&table, 0x1000, 8));
    assert_false(sg_block_table_remove_exact(&table, 0x1000, 8));
    assert_int_equal(sg_block_table_find(&table, 0x1000), 0);
}

PLAIN_TEST(grow_keeps_every_entry)
{
    enum { MANY = 1 << (20 - SHORTER_SHIFT) };
    for (uint64_t end = 256; end <= MANY; end *= 2) {
        insert_range(end == 256 ? 0 : end / 2, end);
        assert_int_equal(count_right(end == 256 ? 0 : end / 2, end), end == 256 ? end : end / 2);
    }
    assert_int_equal(count_right(0, MANY), MANY);
    assert_int_equal(count_right(MANY, MANY + 1000), 0);
    /* 256 * 2^13 slots are enough at a load of 3/4: growth was never forced by an entry that found no place. */
    assert_int_equal(table.newest, 14 - SHORTER_SHIFT);
    assert_true(sg_block_table_longest_step(&table) <= PROBE_MAX / 2);
    for (uint64_t i = 0; i < MANY; i++)
        if (sg_block_table_remove(&table, key_of(i)) != value_of(i))
            fail_msg("number %lu is lost", (unsigned long)i);
    assert_int_equal(count_right(0, MANY), 0);
}

PLAIN_TEST(regular_addresses_find_a_place_nearby)
{
    const uint64_t strides[] = {1, 16, 4096, 0x10000, 0x11000, 2 * MIB, GIB};
    for (size_t s = 0; s < SG_ARRAY_LENGTH(strides); s++) {
        for (uint64_t i = 0; i < 20000; i++)
            assert_int_equal(sg_block_table_insert(&table, UINT64_C(0x500000000000) + i * strides[s], i + 1, NULL), 0);
        assert_true(sg_block_table_longest_step(&table) <= PROBE_MAX / 2);
        assert_true(table.newest <= 8);
        sg_block_table_destroy(&table);
    }
}

PLAIN_TEST(growth_ends_and_gives_memory_back)
{
    insert_range(0, 3 << 14); /* fills 65536 slots to three quarters */
    for (uint64_t i = 3 << 14; i < (3 << 14) + 8192; i++) {
        insert_range(i, i + 1);
        assert_int_equal(sg_block_table_remove(&table, key_of(i)), value_of(i));
    }
    assert_int_equal(table.first + 1, table.newest);
    uint64_t newest = table.generation[table.newest - 1]->bytes, page = (uint64_t)sysconf(_SC_PAGESIZE);
    assert_true(resident_of(&table) < newest + page + kept_most(&table));
    assert_int_equal(count_right(0, 3 << 14), 3 << 14);
}

PLAIN_TEST(coming_and_going_does_not_grow_the_table)
{
    insert_range(0, 100);
    for (uint64_t i = 100; i < 200000; i++) {
        insert_range(i, i + 1);
        if (sg_block_table_remove(&table, key_of(i - 100)) != value_of(i - 100))
            fail_msg("number %lu is lost", (unsigned long)(i - 100));
    }
    assert_int_equal(table.newest, 1);
    assert_int_equal(used_of(table.generation[0]), 100);
}

PLAIN_TEST(an_entry_costs_at_most_64_bytes_while_growing)
{
    for (uint64_t end = 0; end < 400000; end += 2000) {
        insert_range(end, end + 2000);
        assert_true(resident_of(&table) <= 64 * (end + 2000) + kept_most(&table) + MIB);
    }
}

static void count_visit(void *context, uint64_t key, uint64_t value)
{
    uint8_t *seen = context;
    uint64_t number = (key - key_of(0)) / 0x11000;
    if (value == value_of(number))
        seen[number]++;
    else
        seen[number] = 200;
}

PLAIN_TEST(visit_sees_each_entry_once_when_quiet)
{
    static uint8_t seen[10000];
    insert_range(0, 10000);
    for (uint64_t i = 0; i < 10000; i += 3)
        (void)sg_block_table_remove(&table, key_of(i));
    memset(seen, 0, sizeof seen);
    sg_block_table_visit(&table, count_visit, seen);
    for (uint64_t i = 0; i < 10000; i++)
        assert_int_equal(seen[i], i % 3 != 0);
}

/* ---- states of a slot while it is moved (the head of block_table.c), one after the other ------------------------- */

static struct sg_block_table_slot *original_slot, *copy_slot;
static uint64_t reference; /* the state of the copy */

/* Key 1 sits in generation 0, a mover's copy in generation 1. */
static void begin_move(uint64_t original, uint64_t copy_state)
{
    sg_block_table_destroy(&table);
    assert_int_equal(sg_block_table_insert(&table, 1, 5, NULL), 0);
    assert_int_equal(grow(&table, 1), 0);
    uint32_t step = 0;
    original_slot = next_slot(table.generation[0], 1, &step);
    assert_non_null(original_slot);
    reference = COPY | (uint64_t)(original_slot - table.generation[0]->slot);
    struct spot spot;
    uint64_t ignored;
    assert_int_equal(put(&table, 1, reference, &ignored, &spot), 0);
    copy_slot = &spot.array->slot[spot.index];
    original_slot->value = original;
    copy_slot->value = copy_state == COPY ? reference : copy_state;
}

PLAIN_TEST(a_frozen_entry_answers_for_its_copy)
{
    begin_move(5 | FROZEN, COPY);
    assert_int_equal(sg_block_table_find(&table, 1), 5);
    assert_int_equal(sg_block_table_remove(&table, 1), 5);
    assert_int_equal(sg_block_table_remove(&table, 1), 0);
    assert_int_equal(sg_block_table_find(&table, 1), 0);
    assert_true(original_slot->value == (5 | FROZEN | DEAD));
    assert_true(copy_slot->value == reference); /* the mover's to take out */
}

PLAIN_TEST(a_copy_answers_after_its_original_has_moved)
{
    begin_move(5 | MOVED, COPY);
    assert_int_equal(sg_block_table_find(&table, 1), 5);
    assert_int_equal(sg_block_table_remove(&table, 1), 5);
    assert_true(copy_slot->value == (reference | DEAD));
    assert_int_equal(sg_block_table_find(&table, 1), 0);
    assert_int_equal(sg_block_table_remove(&table, 1), 0);
}

PLAIN_TEST(a_copy_of_a_removed_entry_is_nothing)
{
    begin_move(5 | FROZEN | DEAD, COPY);
    assert_int_equal(sg_block_table_find(&table, 1), 0);
    assert_int_equal(sg_block_table_remove(&table, 1), 0);
    begin_move(0, COPY);
    assert_int_equal(sg_block_table_find(&table, 1), 0);
    assert_int_equal(sg_block_table_remove(&table, 1), 0);
}

PLAIN_TEST(a_confirmed_copy_is_an_entry)
{
    begin_move(5 | MOVED, 5);
    assert_int_equal(sg_block_table_find(&table, 1), 5);
    assert_int_equal(sg_block_table_remove(&table, 1), 5);
    assert_true(copy_slot->key == KEY_GONE && copy_slot->value == 0);
}

PLAIN_TEST(an_inserter_who_missed_the_growth_moves_its_entry)
{
    assert_int_equal(sg_block_table_insert(&table, 1, 5, NULL), 0);
    struct sg_block_table_array *old = table.generation[0];
    uint32_t step = 0;
    struct sg_block_table_slot *slot = next_slot(old, 1, &step);
    assert_int_equal(grow(&table, 1), 0);
    move_slot(&table, old, (uint64_t)(slot - old->slot));
    assert_true(slot != NULL && slot->value == (5 | MOVED));
    assert_int_equal(sg_block_table_find(&table, 1), 5);
    step = 0;
    slot = next_slot(table.generation[1], 1, &step);
    assert_true(slot != NULL && slot->value == 5);
}

/* ---- schedules: what others do between two steps of one thread --------------------------------------------------- */

static uint64_t removed_meanwhile;
static uint32_t times_run;

static void scan_whole_generation(void)
{
    for (uint64_t i = 0; i < table.generation[table.first]->slots / MOVE_BATCH + 1; i++)
        help_growth(&table);
}

/* Others grow the table and scan the old generation while an inserter has its key in place, but not its value yet. */
static void grow_meanwhile(uint64_t word)
{
    if (word != value_of(7) || times_run++ != 0)
        return;
    assert_int_equal(grow(&table, 1), 0);
    scan_whole_generation();
    assert_int_equal(table.first, 0); /* an inserter is inside: not retired */
}

PLAIN_TEST(an_entry_put_into_a_generation_scanned_meanwhile_is_not_lost)
{
    insert_range(0, 5);
    times_run = 0;
    meanwhile = grow_meanwhile;
    insert_range(7, 8);
    meanwhile = NULL;
    assert_true(times_run > 0);
    help_growth(&table);
    assert_int_equal(table.first, 1);
    assert_int_equal(count_right(7, 8), 1);
    assert_int_equal(count_right(0, 5), 5);
    assert_int_equal(sg_block_table_remove(&table, key_of(7)), value_of(7));
    assert_int_equal(sg_block_table_remove(&table, key_of(7)), 0);
}

/* Somebody takes the entry out when the mover has just written `word_of_removal`. */
static uint64_t word_of_removal;

static void remove_meanwhile(uint64_t word)
{
    if (word != word_of_removal || times_run++ != 0)
        return;
    removed_meanwhile = search(&table, key_of(1), WISH_REMOVE, 0);
    assert_int_equal(search(&table, key_of(1), WISH_REMOVE, 0), 0);
    assert_int_equal(sg_block_table_find(&table, key_of(1)), 0);
}

PLAIN_TEST(an_entry_removed_at_any_step_of_its_move_is_gone_once_and_for_all)
{
    const uint64_t value = value_of(1);
    for (size_t i = 0; i < 5; i++) {
        insert_range(1, 3);
        const uint64_t copy = COPY | place_of(table.generation[0], key_of(1));
        const uint64_t steps[] = {value | FROZEN, key_of(1), copy, value | MOVED, value};
        assert_int_equal(grow(&table, 1), 0);
        word_of_removal = steps[i];
        times_run = 0;
        removed_meanwhile = 0;
        meanwhile = remove_meanwhile;
        scan_whole_generation();
        meanwhile = NULL;
        assert_true(times_run > 0);
        assert_int_equal(removed_meanwhile, value);
        assert_int_equal(sg_block_table_find(&table, key_of(1)), 0);
        assert_int_equal(sg_block_table_remove(&table, key_of(1)), 0);
        assert_int_equal(count_right(2, 3), 1);
        assert_int_equal(used_of(table.generation[1]), 1); /* the copy's slot is free again */
        assert_int_equal(sg_block_table_insert(&table, key_of(1), 99, NULL), 0);
        assert_int_equal(sg_block_table_remove(&table, key_of(1)), 99);
        sg_block_table_destroy(&table);
    }
}

/* A mover stops while its copy waits to be cleared; the key comes again, into a slot before that copy, and moves on. */
static uint64_t neighbour; /* a key with the same place in generation 1 */

static void come_again_meanwhile(uint64_t word)
{
    if ((word & STATE_BITS) == COPY && times_run++ == 0)
        assert_int_equal(search(&table, key_of(1), WISH_REMOVE, 0), value_of(1));
    if (word != 0 || times_run++ != 1)
        return;
    struct spot spot;
    uint64_t ignored;
    struct sg_block_table_array *middle = table.generation[1];
    assert_int_equal(search(&table, neighbour, WISH_REMOVE, 0), 3);
    assert_int_equal(put(&table, key_of(1), value_of(2), &ignored, &spot), 0);
    assert_int_equal(spot.index, place_of(middle, key_of(1)));
    assert_int_equal(grow(&table, 2), 0);
    move_slot(&table, middle, spot.index);
    assert_int_equal(sg_block_table_find(&table, key_of(1)), value_of(2));
    assert_int_equal(search(&table, key_of(1), WISH_REMOVE, 0), value_of(2));
    assert_int_equal(sg_block_table_find(&table, key_of(1)), 0);
}

PLAIN_TEST(a_copy_left_by_a_stopped_mover_is_never_taken_for_a_later_entry)
{
    insert_range(1, 2);
    assert_int_equal(grow(&table, 1), 0);
    neighbour = 1;
    while (place_of(table.generation[1], neighbour) != place_of(table.generation[1], key_of(1)))
        neighbour++;
    struct spot spot;
    uint64_t ignored;
    assert_int_equal(put(&table, neighbour, 3, &ignored, &spot), 0);
    times_run = 0;
    meanwhile = come_again_meanwhile;
    move_slot(&table, table.generation[0], place_of(table.generation[0], key_of(1)));
    meanwhile = NULL;
    assert_true(times_run >= 2);
    assert_int_equal(sg_block_table_find(&table, key_of(1)), 0);
}

/* A slot gets another owner between the reads of its key and its value. */
PLAIN_TEST(a_slot_that_changed_its_key_answers_for_neither)
{
    insert_range(1, 2);
    struct sg_block_table_array *array = table.generation[0];
    struct sg_block_table_slot *slot = &array->slot[place_of(array, key_of(1))];
    assert_true(slot->key == key_of(1));
    slot->key = key_of(2); /* a search for key 1 has seen key 1 here and comes to the value only now */
    assert_int_equal(serve(&table, array, slot, key_of(1), WISH_FIND, 0), 0);
    assert_int_equal(serve(&table, array, slot, key_of(1), WISH_REMOVE, 0), 0);
    assert_true(slot->value == value_of(1));
}

/* Whoever looks at any step of a move finds the entry. */
static uint32_t missed_meanwhile;

static void find_meanwhile(uint64_t word)
{
    (void)word;
    times_run++;
    missed_meanwhile += sg_block_table_find(&table, key_of(1)) != value_of(1);
}

PLAIN_TEST(an_entry_is_found_at_every_step_of_its_move)
{
    insert_range(1, 2);
    assert_int_equal(grow(&table, 1), 0);
    times_run = missed_meanwhile = 0;
    meanwhile = find_meanwhile;
    scan_whole_generation();
    meanwhile = NULL;
    assert_true(times_run >= 5);
    assert_int_equal(missed_meanwhile, 0);
}

/* ---- several threads --------------------------------------------------------------------------------------------- */

struct churner {
    pthread_t thread;
    uint64_t number;
    uint64_t wrong;
    uint64_t inserted;
};

static uint64_t is_over;

static void start(struct churner *churners, void *(*body)(void *))
{
    for (uint64_t i = 0; i < THREADS; i++) {
        churners[i] = (struct churner){.number = i};
        assert_int_equal(pthread_create(&churners[i].thread, NULL, body, &churners[i]), 0);
    }
}

static uint64_t finish(struct churner *churners)
{
    uint64_t wrong = 0;
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(churners[i].thread, NULL), 0);
        wrong += churners[i].wrong;
    }
    return wrong;
}

/* Inserts, finds and removes keys of its own, more and more of them, and knows at every instant which are there. */
static void *churn_own_keys(void *context)
{
    enum { OWN = 20000 >> SHORTER_SHIFT, OPERATIONS = 200000 >> SHORTER_SHIFT };
    struct churner *churner = context;
    static uint8_t there[THREADS][OWN];
    uint8_t *mine = there[churner->number];
    uint64_t seed = churner->number + 1;
    memset(mine, 0, OWN);
    for (uint64_t i = 0; i < OPERATIONS; i++) {
        uint64_t most = 1 + i * OWN / OPERATIONS;
        uint64_t own = next_random(&seed) % most;
        uint64_t number = own * THREADS + churner->number;
        uint64_t found = sg_block_table_find(&table, key_of(number));
        churner->wrong += found != (mine[own] ? value_of(number) : 0);
        if (mine[own])
            churner->wrong += sg_block_table_remove(&table, key_of(number)) != value_of(number);
        else
            churner->wrong += sg_block_table_insert(&table, key_of(number), value_of(number), NULL) != 0;
        mine[own] = !mine[own];
        uint64_t other = next_random(&seed) % (OWN * THREADS);
        found = sg_block_table_find(&table, key_of(other));
        churner->wrong += found != 0 && found != value_of(other);
    }
    for (uint64_t own = 0; own < OWN; own++) {
        uint64_t number = own * THREADS + churner->number;
        churner->wrong += sg_block_table_find(&table, key_of(number)) != (mine[own] ? value_of(number) : 0);
    }
    return NULL;
}

PLAIN_TEST(threads_with_keys_of_their_own_lose_nothing)
{
    struct churner churners[THREADS];
    start(churners, churn_own_keys);
    assert_int_equal(finish(churners), 0);
    assert_true(table.newest > 4);
}

/* Each round: a full generation, one thread makes it grow, the others take out what is being moved, each entry once. */
enum { RACE_KEYS = 190, RACE_ROUNDS = 1000 };
static pthread_barrier_t race_barrier;
static uint64_t race_removed[RACE_KEYS];

static void *race_round(void *context)
{
    struct churner *churner = context;
    for (int round = 0; round < RACE_ROUNDS; round++) {
        (void)pthread_barrier_wait(&race_barrier);
        if (churner->number == 0) {
            for (uint64_t i = RACE_KEYS; i < RACE_KEYS + 40; i++)
                churner->wrong += sg_block_table_insert(&table, key_of(i), value_of(i), NULL) != 0;
        } else {
            for (uint64_t i = 0; i < RACE_KEYS; i++) {
                uint64_t key = churner->number == 1 ? i : RACE_KEYS - 1 - i;
                uint64_t value = sg_block_table_remove(&table, key_of(key));
                churner->wrong += value != 0 && value != value_of(key);
                sg_fetch_add(&race_removed[key], (uint64_t)(value != 0));
                churner->wrong += sg_block_table_find(&table, key_of(key)) != 0;
            }
        }
        (void)pthread_barrier_wait(&race_barrier);
        (void)pthread_barrier_wait(&race_barrier);
    }
    return NULL;
}

PLAIN_TEST(what_is_removed_while_it_is_moved_goes_once_and_stays_away)
{
    struct churner churners[THREADS];
    assert_int_equal(pthread_barrier_init(&race_barrier, NULL, THREADS + 1), 0);
    start(churners, race_round);
    uint64_t wrong = 0;
    for (int round = 0; round < RACE_ROUNDS; round++) {
        insert_range(0, RACE_KEYS);
        memset(race_removed, 0, sizeof race_removed);
        (void)pthread_barrier_wait(&race_barrier);
        (void)pthread_barrier_wait(&race_barrier);
        for (uint64_t i = 0; i < RACE_KEYS; i++)
            wrong += race_removed[i] != 1 || sg_block_table_find(&table, key_of(i)) != 0;
        wrong += count_right(RACE_KEYS, RACE_KEYS + 40) != 40;
        sg_block_table_destroy(&table);
        (void)pthread_barrier_wait(&race_barrier);
    }
    assert_int_equal(finish(churners), 0);
    assert_int_equal(wrong, 0);
    (void)pthread_barrier_destroy(&race_barrier);
}

/* All find an empty table at once, and each makes an array for it. */
static void *insert_the_first(void *context)
{
    struct churner *churner = context;
    for (int round = 0; round < RACE_ROUNDS; round++) {
        (void)pthread_barrier_wait(&race_barrier);
        churner->wrong += sg_block_table_insert(&table, key_of(churner->number), value_of(churner->number), NULL) != 0;
        (void)pthread_barrier_wait(&race_barrier);
        (void)pthread_barrier_wait(&race_barrier);
    }
    return NULL;
}

static unsigned long mapped_pages(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu", &pages), 1);
    (void)fclose(file);
    return pages;
}

PLAIN_TEST(of_arrays_made_at_once_one_serves_and_the_others_are_given_back)
{
    struct churner churners[THREADS];
    uint64_t wrong = 0;
    unsigned long before = 0;
    assert_int_equal(pthread_barrier_init(&race_barrier, NULL, THREADS + 1), 0);
    start(churners, insert_the_first);
    for (int round = 0; round < RACE_ROUNDS; round++) {
        (void)pthread_barrier_wait(&race_barrier);
        (void)pthread_barrier_wait(&race_barrier);
        wrong += table.newest != 1 || count_right(0, THREADS) != THREADS;
        sg_block_table_destroy(&table);
        before = round == 0 ? mapped_pages() : before;
        (void)pthread_barrier_wait(&race_barrier);
    }
    unsigned long after = mapped_pages();
    assert_int_equal(finish(churners), 0);
    assert_int_equal(wrong, 0);
#ifndef __SANITIZE_THREAD__                              /* what it maps itself is of the same figure */
    assert_in_range(after, 0, before + RACE_ROUNDS / 4); /* and so are the libc's heaps */
#endif
    (void)pthread_barrier_destroy(&race_barrier);
}

/* One thread owns an address that comes and goes, with another value each time, beside a growing table; the others have
 * seen it and take out what they saw. Now and then it waits until they have. */
static uint64_t taken_count, taken_sum, missed_count, missed_sum;

enum { OWN_ROUNDS = 400000 >> SHORTER_SHIFT, LEFT_EVERY = 1000 };

static void *own_or_take(void *context)
{
    struct churner *churner = context;
    for (uint64_t i = 1; churner->number == 0 && i <= OWN_ROUNDS; i++) {
        churner->wrong += sg_block_table_insert(&table, key_of(0), i, NULL) != 0;
        if (i % 16 == 0)
            churner->wrong += sg_block_table_insert(&table, key_of(i), value_of(i), NULL) != 0;
        while (i % LEFT_EVERY == 0 && sg_block_table_find(&table, key_of(0)) != 0)
            (void)sched_yield();
        uint64_t value = sg_block_table_remove(&table, key_of(0));
        churner->wrong += value != i && value != 0;
        missed_count += value == 0;
        missed_sum += value == 0 ? i : 0;
    }
    if (churner->number == 0)
        sg_store(&is_over, 1u);
    while (churner->number != 0 && !sg_load(&is_over)) {
        uint64_t value = sg_block_table_find(&table, key_of(0));
        (void)sched_yield();
        if (value != 0 && sg_block_table_remove_exact(&table, key_of(0), value)) {
            sg_fetch_add(&taken_count, 1u);
            sg_fetch_add(&taken_sum, value);
        }
    }
    return NULL;
}

PLAIN_TEST(what_was_seen_is_taken_out_and_nothing_else)
{
    struct churner churners[THREADS];
    is_over = taken_count = taken_sum = missed_count = missed_sum = 0;
    start(churners, own_or_take);
    assert_int_equal(finish(churners), 0);
    assert_true(taken_count >= OWN_ROUNDS / LEFT_EVERY);
    assert_int_equal(taken_count, missed_count);
    assert_int_equal(taken_sum, missed_sum);
    assert_true(table.newest > 4);
}

/* Keys that come and stay or go, so that the table keeps growing, up to a bound. */
static void *churn_until_over(void *context)
{
    struct churner *churner = context;
    uint64_t base = 100000 + churner->number * 1000000;
    for (uint64_t i = 0; i < 200000 && !sg_load(&is_over); i++) {
        churner->wrong += sg_block_table_insert(&table, key_of(base + i), value_of(base + i), NULL) != 0;
        if (i % 2 != 0)
            churner->wrong += sg_block_table_remove(&table, key_of(base + i)) != value_of(base + i);
    }
    return NULL;
}

enum { STABLE = 1000 };

static void see_stable(void *context, uint64_t key, uint64_t value)
{
    uint64_t number = (key - key_of(0)) / 0x11000;
    if (number < STABLE && value == value_of(number))
        ((uint8_t *)context)[number] = 1;
}

PLAIN_TEST(visit_during_growth_sees_every_entry_that_stays)
{
    struct churner churners[THREADS];
    uint64_t missed = 0;
    insert_range(0, STABLE);
    is_over = 0;
    start(churners, churn_until_over);
    for (int round = 0; round < 50 >> SHORTER_SHIFT; round++) {
        uint8_t seen[STABLE] = {0};
        sg_block_table_visit(&table, see_stable, seen);
        for (int i = 0; i < STABLE; i++)
            missed += !seen[i];
    }
    sg_store(&is_over, 1);
    assert_int_equal(finish(churners), 0);
    assert_int_equal(missed, 0);
}

PLAIN_TEST(a_mark_made_during_growth_is_kept)
{
    struct churner churners[THREADS];
    const uint64_t bit = UINT64_C(1) << 60;
    static bool is_marked[STABLE];
    uint64_t wrong = 0, marked = 0;
    insert_range(0, STABLE);
    memset(is_marked, 0, sizeof is_marked);
    is_over = 0;
    start(churners, churn_until_over);
    for (uint64_t i = 0; i < STABLE; i++) {
        is_marked[i] = sg_block_table_mark(&table, key_of(i), value_of(i), bit);
        marked += is_marked[i];
        wrong += (sg_block_table_find(&table, key_of(i)) & bit) != (is_marked[i] ? bit : 0);
    }
    sg_store(&is_over, 1);
    assert_int_equal(finish(churners), 0);
    for (uint64_t i = 0; i < STABLE; i++)
        wrong += sg_block_table_find(&table, key_of(i)) != (value_of(i) | (is_marked[i] ? bit : 0));
    assert_int_equal(wrong, 0);
    assert_true(marked > STABLE / 2);
}

/* ---- no memory --------------------------------------------------------------------------------------------------- */

static void set_address_space(rlim_t bytes)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    limit.rlim_cur = bytes;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

CHILD_TEST(without_memory_insert_says_so_and_the_table_stays_usable)
{
    struct rlimit before;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    set_address_space(1);
    if (mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) {
        set_address_space(before.rlim_cur);
        SKIP("RLIMIT_AS has no effect here (qemu-user)");
    }
    CHECK_EQUAL(sg_block_table_insert(&table, key_of(0), value_of(0), NULL), -ENOMEM);
    set_address_space(before.rlim_cur);
    CHECK_EQUAL(sg_block_table_insert(&table, key_of(0), value_of(0), NULL), 0);
    set_address_space(1);
    uint64_t held = 1;
    while (held < 100000 && sg_block_table_insert(&table, key_of(held), value_of(held), NULL) == 0)
        held++;
    CHECK_EQUAL(held, FIRST_SLOTS); /* a full generation serves to its last slot */
    CHECK_EQUAL(sg_block_table_insert(&table, key_of(held), value_of(held), NULL), -ENOMEM);
    CHECK_EQUAL(count_right(0, held), held);
    CHECK_EQUAL(sg_block_table_remove(&table, key_of(7)), value_of(7));
    CHECK_EQUAL(sg_block_table_find(&table, key_of(7)), 0);
    CHECK_EQUAL(sg_block_table_insert(&table, key_of(held), value_of(held), NULL), 0);
    set_address_space(before.rlim_cur);
    for (uint64_t i = held + 1; i < 5000; i++)
        CHECK_EQUAL(sg_block_table_insert(&table, key_of(i), value_of(i), NULL), 0);
    CHECK_EQUAL(count_right(8, 5000), 5000 - 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(empty_table_holds_nothing, empty_table),
        cmocka_unit_test_teardown(insert_find_remove, empty_table),
        cmocka_unit_test_teardown(addresses_of_52_bits_are_keys_like_others, empty_table),
        cmocka_unit_test_teardown(keys_and_values_it_cannot_hold_are_refused, empty_table),
        cmocka_unit_test_teardown(stale_entry_is_replaced_and_told, empty_table),
        cmocka_unit_test_teardown(mark_needs_the_exact_value, empty_table),
        cmocka_unit_test_teardown(exact_removal_needs_the_exact_value, empty_table),
        cmocka_unit_test_teardown(grow_keeps_every_entry, empty_table),
        cmocka_unit_test_teardown(regular_addresses_find_a_place_nearby, empty_table),
        cmocka_unit_test_teardown(growth_ends_and_gives_memory_back, empty_table),
        cmocka_unit_test_teardown(coming_and_going_does_not_grow_the_table, empty_table),
        cmocka_unit_test_teardown(an_entry_costs_at_most_64_bytes_while_growing, empty_table),
        cmocka_unit_test_teardown(visit_sees_each_entry_once_when_quiet, empty_table),
        cmocka_unit_test_teardown(a_frozen_entry_answers_for_its_copy, empty_table),
        cmocka_unit_test_teardown(a_copy_answers_after_its_original_has_moved, empty_table),
        cmocka_unit_test_teardown(a_copy_of_a_removed_entry_is_nothing, empty_table),
        cmocka_unit_test_teardown(a_confirmed_copy_is_an_entry, empty_table),
        cmocka_unit_test_teardown(an_inserter_who_missed_the_growth_moves_its_entry, empty_table),
        cmocka_unit_test_teardown(an_entry_put_into_a_generation_scanned_meanwhile_is_not_lost, empty_table),
        cmocka_unit_test_teardown(an_entry_removed_at_any_step_of_its_move_is_gone_once_and_for_all, empty_table),
        cmocka_unit_test_teardown(a_copy_left_by_a_stopped_mover_is_never_taken_for_a_later_entry, empty_table),
        cmocka_unit_test_teardown(a_slot_that_changed_its_key_answers_for_neither, empty_table),
        cmocka_unit_test_teardown(an_entry_is_found_at_every_step_of_its_move, empty_table),
        cmocka_unit_test_teardown(threads_with_keys_of_their_own_lose_nothing, empty_table),
        cmocka_unit_test_teardown(what_is_removed_while_it_is_moved_goes_once_and_stays_away, empty_table),
        cmocka_unit_test_teardown(of_arrays_made_at_once_one_serves_and_the_others_are_given_back, empty_table),
        cmocka_unit_test_teardown(what_was_seen_is_taken_out_and_nothing_else, empty_table),
        cmocka_unit_test_teardown(visit_during_growth_sees_every_entry_that_stays, empty_table),
        cmocka_unit_test_teardown(a_mark_made_during_growth_is_kept, empty_table),
        cmocka_unit_test_teardown(without_memory_insert_says_so_and_the_table_stays_usable, empty_table),
    };
    return cmocka_run_group_tests_name("table", tests, NULL, NULL);
}
