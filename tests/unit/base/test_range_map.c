/*
 * test_range_map.c - the ordered index of mappings, against a model: one element per page of a small address space.
 */
#include "fixture.h"

#include "base/range_map.h"

enum { PAGES = 512, OPERATIONS = 100000, SITES = 4, UNITS = 64, FILES = 3 };

#define BASE UINT64_C(0x7f0000000000)

struct page {
    uint32_t kind;
    uint32_t flags;
    uint64_t source;
};

static struct sg_range_map ranges, shared;
static struct page model[PAGES];

static int empty_ranges(void **unused)
{
    (void)unused;
    sg_range_map_destroy(&ranges);
    sg_range_map_destroy(&shared);
    memset(model, 0, sizeof model);
    return 0;
}

static uintptr_t at(uint64_t page)
{
    return BASE + page * 4096;
}

static uint32_t count_ranges(void)
{
    uint32_t count = 0;
    struct sg_range range;
    for (uintptr_t address = 0; sg_range_map_next(&ranges, address, &range); address = range.end)
        count++;
    return count;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static void model_change(uint64_t begin, uint64_t end, bool is_commit, uint32_t flags)
{
    for (uint64_t i = begin; i < end; i++) {
        bool is_sparse = model[i].kind == SG_RANGE_SPARSE && (model[i].flags & SG_RANGE_COMMITTED) == 0;
        if (is_commit && (model[i].kind == SG_RANGE_RESERVED || is_sparse))
            model[i].flags |= SG_RANGE_COMMITTED;
        if (is_commit && is_sparse)
            model[i].flags &= ~(uint32_t)SG_RANGE_INHERITED;
        if (is_commit && model[i].kind == SG_RANGE_RESERVED)
            model[i].kind = SG_RANGE_COUNTED;
        if (model[i].kind != SG_RANGE_NONE)
            model[i].flags |= flags;
    }
}

static void model_move(uint64_t from, uint64_t to, uint64_t pages, bool is_copy)
{
    for (uint64_t i = 0; i < pages; i++) {
        model[to + i] = model[from + i];
        if (!is_copy)
            model[from + i] = (struct page){0, 0, 0};
    }
}

static uint64_t model_bytes(uint64_t begin, uint64_t end, uint32_t kind)
{
    uint64_t pages = 0;
    for (uint64_t i = begin; i < end; i++)
        pages += model[i].kind == kind;
    return pages * 4096;
}

/* How often a unit of a file is mapped by COUNTED pages. */
static uint32_t model_times(uint64_t source)
{
    uint32_t times = 0;
    for (uint64_t i = 0; i < PAGES; i++)
        times += model[i].kind == SG_RANGE_COUNTED && model[i].source == source;
    return times;
}

/* The counted bytes, of shared memory each unit once: by a walk over all units of all files. */
static uint64_t model_counted_bytes(void)
{
    uint64_t pages = 0;
    for (uint64_t i = 0; i < PAGES; i++)
        pages += model[i].kind == SG_RANGE_COUNTED && model[i].source == 0;
    for (uint64_t file = 1; file <= FILES; file++)
        for (uint64_t unit = 0; unit < UNITS + PAGES; unit++)
            pages += model_times(file << SG_SHARED_SHIFT | unit) != 0;
    return pages * 4096;
}

/* Every page as the model has it, in order, and neighbours of equal attributes merged. */
static bool is_like_model(void)
{
    struct sg_range range, before = {0, 0, 0, 0, 0};
    uint64_t page = 0;
    for (uintptr_t address = 0; sg_range_map_next(&ranges, address, &range); address = range.end) {
        if (range.begin < before.end || range.end <= range.begin || range.kind == SG_RANGE_NONE)
            return false;
        if (range.begin == before.end && range.kind == before.kind && range.flags == before.flags &&
            range.source == sg_range_source_at(&before, before.end))
            return false;
        for (; page < (range.begin - BASE) / 4096; page++)
            if (model[page].kind != SG_RANGE_NONE)
                return false;
        for (; page < (range.end - BASE) / 4096; page++)
            if (model[page].kind != range.kind || model[page].flags != range.flags ||
                model[page].source != sg_range_source_at(&range, at(page)))
                return false;
        before = range;
    }
    for (; page < PAGES; page++)
        if (model[page].kind != SG_RANGE_NONE)
            return false;
    return true;
}

/* What is kept of each call site, against a walk over all ranges. */
static bool are_sites_right(void)
{
    uint64_t bytes[SITES] = {0};
    uint32_t count[SITES] = {0};
    struct sg_range range;
    for (uintptr_t address = 0; sg_range_map_next(&ranges, address, &range); address = range.end)
        if (range.kind == SG_RANGE_COUNTED) {
            bytes[range.flags >> SG_RANGE_SITE_SHIFT] += range.end - range.begin;
            count[range.flags >> SG_RANGE_SITE_SHIFT]++;
        }
    for (unsigned i = 1; i < SITES; i++)
        if (ranges.site[i].bytes != bytes[i] || ranges.site[i].count != count[i])
            return false;
    return ranges.site[0].bytes == 0;
}

static int random_operation(uint64_t *seed)
{
    uint64_t begin = next_random(seed) % PAGES;
    uint64_t most = next_random(seed) % 8 == 0 ? PAGES : 16; /* mostly short ones, so that there are many ranges */
    uint64_t pages = next_random(seed) % most;
    uint32_t kind = (uint32_t)(next_random(seed) % 4), flags = (uint32_t)(next_random(seed) % 16);
    bool is_copy = next_random(seed) % 4 == 0;
    uint64_t to = next_random(seed) % PAGES;
    if (begin + pages > PAGES)
        pages = PAGES - begin;
    uint64_t end = begin + pages;
    switch (next_random(seed) % 6) {
    case 0:
        model_change(begin, end, true, 0);
        return sg_range_map_commit(&ranges, at(begin), at(end));
    case 1:
        model_change(begin, end, false, flags);
        return sg_range_map_flag(&ranges, at(begin), at(end), flags);
    case 2:
        if (to + pages > PAGES || (to < end && begin < to + pages))
            return 0; /* mremap knows no overlap */
        model_move(begin, to, pages, is_copy);
        return sg_range_map_move(&ranges, at(begin), at(to), pages * 4096, is_copy);
    case 3:
        for (uint64_t i = begin; i < end; i++)
            model[i].flags &= ~flags;
        return sg_range_map_unflag(&ranges, at(begin), at(end), flags);
    default:
        break;
    }
    uint64_t file = next_random(seed) % (FILES + 1), unit = next_random(seed) % UNITS;
    uint64_t source = file != 0 ? file << SG_SHARED_SHIFT | unit : 0;
    flags |= (uint32_t)(next_random(seed) % SITES) << SG_RANGE_SITE_SHIFT;
    for (uint64_t i = begin; i < end; i++)
        model[i] = kind == SG_RANGE_NONE ? (struct page){0, 0, 0}
                                         : (struct page){kind, flags, source != 0 ? source + (i - begin) : 0};
    return sg_range_map_set_shared(&ranges, at(begin), at(end), kind, flags, source);
}

/* How much [begin, end) would take away, and bring if it became COUNTED, where no unit is in it twice. */
static void check_what_comes_and_goes(uint64_t begin, uint64_t end)
{
    uint64_t leaving = 0, coming = 0;
    for (uint64_t i = begin; i < end; i++) {
        uint32_t times = model[i].source != 0 ? model_times(model[i].source) : 0;
        leaving += model[i].kind == SG_RANGE_COUNTED && (model[i].source == 0 || times == 1);
        coming += model[i].kind == SG_RANGE_RESERVED && times == 0;
    }
    assert_int_equal(sg_range_map_leaving_bytes(&ranges, at(begin), at(end)), leaving * 4096);
    assert_int_equal(sg_range_map_coming_bytes(&ranges, at(begin), at(end)), coming * 4096);
}

PLAIN_TEST(random_operations_agree_with_the_model)
{
    uint64_t seed = 20261120;
    ranges.shared = &shared;
    for (int i = 0; i < OPERATIONS; i++) {
        assert_int_equal(random_operation(&seed), 0);
        if (!are_sites_right())
            fail_msg("after operation %d: a call site's sums are wrong", i);
        if (i % 64 == 0 && ranges.counted_bytes != model_counted_bytes())
            fail_msg("after operation %d: %lu bytes counted", i, (unsigned long)ranges.counted_bytes);
        if (i % 4 == 0 && !is_like_model())
            fail_msg("after operation %d: not like the model", i);
        uint64_t begin = next_random(&seed) % PAGES, end = begin + next_random(&seed) % (PAGES + 1 - begin);
        uint32_t kind = 1 + (uint32_t)(next_random(&seed) % 3);
        uint64_t bytes = model_bytes(begin, end, kind);
        if (i % 16 == 0)
            assert_int_equal(sg_range_map_bytes(&ranges, at(begin), at(end), kind), bytes);
        if (i % 256 == 0)
            check_what_comes_and_goes(begin, end);
    }
    assert_int_equal(sg_range_map_set(&ranges, at(0), at(PAGES), SG_RANGE_NONE, 0), 0);
    assert_int_equal(ranges.counted_bytes, 0);
    assert_int_equal(shared.chunk_count, 0);
}

/* ---- one behaviour each ------------------------------------------------------------------------------------------ */

PLAIN_TEST(neighbours_of_equal_attributes_are_one_range)
{
    assert_int_equal(sg_range_map_set(&ranges, at(0), at(2), SG_RANGE_COUNTED, 0), 0);
    assert_int_equal(sg_range_map_set(&ranges, at(4), at(6), SG_RANGE_COUNTED, 0), 0);
    assert_int_equal(count_ranges(), 2);
    assert_int_equal(sg_range_map_set(&ranges, at(2), at(4), SG_RANGE_COUNTED, 0), 0);
    assert_int_equal(count_ranges(), 1);
    assert_int_equal(sg_range_map_set(&ranges, at(6), at(8), SG_RANGE_RESERVED, SG_RANGE_SHARED), 0);
    assert_int_equal(sg_range_map_commit(&ranges, at(6), at(8)), 0);
    assert_int_equal(sg_range_map_set(&ranges, at(8), at(9), SG_RANGE_RESERVED, SG_RANGE_SHARED), 0);
    assert_int_equal(count_ranges(), 3);
    assert_int_equal(sg_range_map_commit(&ranges, at(8), at(9)), 0);
    assert_int_equal(count_ranges(), 2);
    assert_int_equal(ranges.counted_bytes, 9 * 4096);
}

PLAIN_TEST(a_hole_splits_a_range)
{
    assert_int_equal(sg_range_map_set(&ranges, at(0), at(10), SG_RANGE_COUNTED, SG_RANGE_SETTLED), 0);
    assert_int_equal(sg_range_map_set(&ranges, at(3), at(5), SG_RANGE_NONE, 0), 0);
    struct sg_range range;
    assert_true(sg_range_map_next(&ranges, at(3), &range));
    assert_true(range.begin == at(5) && range.end == at(10) && range.flags == SG_RANGE_SETTLED);
    assert_int_equal(ranges.counted_bytes, 8 * 4096);
    assert_int_equal(sg_range_map_bytes(&ranges, at(2), at(6), SG_RANGE_COUNTED), 2 * 4096);
}

PLAIN_TEST(shared_memory_counts_once_however_often_it_is_mapped)
{
    const uint64_t file = UINT64_C(7) << SG_SHARED_SHIFT;
    ranges.shared = &shared;
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(
            sg_range_map_set_shared(&ranges, at(100 * i), at(100 * i + 50), SG_RANGE_COUNTED, 0, file + 10 * i), 0);
    assert_int_equal(ranges.counted_bytes, 70 * 4096);
    assert_int_equal(sg_range_map_unmapped_bytes(&ranges, file + 60, file + 80), 10 * 4096);
    assert_int_equal(sg_range_map_set(&ranges, at(100), at(150), SG_RANGE_NONE, 0), 0);
    assert_int_equal(ranges.counted_bytes, 70 * 4096);
    assert_int_equal(sg_range_map_set(&ranges, at(0), at(50), SG_RANGE_NONE, 0), 0);
    assert_int_equal(ranges.counted_bytes, 50 * 4096);
}

PLAIN_TEST(neighbours_in_the_address_space_that_are_none_in_their_file_stay_two_ranges)
{
    const uint64_t file = UINT64_C(7) << SG_SHARED_SHIFT;
    assert_int_equal(sg_range_map_set_shared(&ranges, at(0), at(2), SG_RANGE_COUNTED, 0, file), 0);
    assert_int_equal(sg_range_map_set_shared(&ranges, at(2), at(4), SG_RANGE_COUNTED, 0, file), 0);
    assert_int_equal(count_ranges(), 2);
    assert_int_equal(sg_range_map_set_shared(&ranges, at(2), at(4), SG_RANGE_COUNTED, 0, file + 2), 0);
    assert_int_equal(count_ranges(), 1);
}

PLAIN_TEST(sixty_thousand_ranges)
{
    enum { MANY = 60000 };
    uint64_t seed = 7, expected = 0;
    static uint32_t order[MANY];
    for (uint32_t i = 0; i < MANY; i++)
        order[i] = i;
    for (uint32_t i = MANY - 1; i > 0; i--) {
        uint32_t other = (uint32_t)(next_random(&seed) % (i + 1)), one = order[i];
        order[i] = order[other];
        order[other] = one;
    }
    for (uint32_t i = 0; i < MANY; i++)
        assert_int_equal(sg_range_map_set(&ranges, at(2 * order[i]), at(2 * order[i] + 1), SG_RANGE_COUNTED, 0), 0);
    assert_int_equal(count_ranges(), MANY);
    assert_int_equal(ranges.counted_bytes, MANY * UINT64_C(4096));
    for (uint32_t i = 0; i < MANY; i += 2)
        assert_int_equal(sg_range_map_set(&ranges, at(2 * order[i]), at(2 * order[i] + 1), SG_RANGE_NONE, 0), 0);
    for (uint32_t i = 1; i < MANY; i += 2)
        expected += sg_range_map_bytes(&ranges, at(2 * order[i]), at(2 * order[i] + 1), SG_RANGE_COUNTED) == 4096;
    assert_int_equal(expected, MANY / 2);
    assert_int_equal(count_ranges(), MANY / 2);
    assert_int_equal(sg_range_map_set(&ranges, 0, UINTPTR_MAX, SG_RANGE_NONE, 0), 0);
    assert_int_equal(ranges.counted_bytes, 0);
    assert_int_equal(ranges.chunk_count, 0);
}

PLAIN_TEST(chunks_are_used_again)
{
    for (int round = 0; round < 20; round++) {
        for (uint64_t i = 0; i < 40000; i++)
            assert_int_equal(sg_range_map_set(&ranges, at(2 * i), at(2 * i + 1), SG_RANGE_COUNTED, 0), 0);
        assert_int_equal(sg_range_map_set(&ranges, at(0), at(100000), SG_RANGE_NONE, 0), 0);
    }
    assert_true(ranges.pool_used < 1000);
}

PLAIN_TEST(a_full_index_says_so_and_stays_true)
{
    uint64_t held = 0, walked = 0;
    int result = 0;
    while (result == 0 && held < 2 * 4096 * 170) {
        result = sg_range_map_set(&ranges, at(2 * held), at(2 * held + 1), SG_RANGE_COUNTED, 0);
        held += result == 0;
    }
    assert_int_equal(result, -ENOMEM);
    assert_true(held > 300000);
    struct sg_range range;
    for (uintptr_t address = 0; sg_range_map_next(&ranges, address, &range); address = range.end)
        walked += range.end - range.begin;
    assert_int_equal(walked, held * 4096);
    assert_int_equal(ranges.counted_bytes, walked);
    assert_int_equal(sg_range_map_set(&ranges, at(0), at(1000), SG_RANGE_NONE, 0), 0);
    assert_int_equal(sg_range_map_set(&ranges, at(2), at(3), SG_RANGE_COUNTED, 0), 0);
    assert_int_equal(ranges.counted_bytes, (held - 500 + 1) * 4096);
}

PLAIN_TEST(addresses_of_52_bits_are_told_from_those_of_48)
{
    const uintptr_t high = ((uintptr_t)1 << 52) - 65536, low = high & (((uintptr_t)1 << 48) - 1);
    assert_int_equal(sg_range_map_set(&ranges, high, high + 65536, SG_RANGE_COUNTED, 0), 0);
    assert_int_equal(sg_range_map_bytes(&ranges, low, low + 65536, SG_RANGE_COUNTED), 0);
    assert_int_equal(sg_range_map_set(&ranges, low, low + 65536, SG_RANGE_COUNTED, 0), 0);
    assert_int_equal(count_ranges(), 2);
    assert_int_equal(sg_range_map_set(&ranges, high, high + 4096, SG_RANGE_NONE, 0), 0);
    assert_int_equal(sg_range_map_bytes(&ranges, 0, UINTPTR_MAX, SG_RANGE_COUNTED), 2 * 65536 - 4096);
    struct sg_range range;
    assert_true(sg_range_map_next(&ranges, low + 65536, &range));
    assert_int_equal(range.begin, high + 4096);
}

PLAIN_TEST(what_is_open_is_private_sparse_and_writable)
{
    const uint32_t open = SG_RANGE_COMMITTED;
    assert_int_equal(sg_range_map_set(&ranges, at(0), at(10), SG_RANGE_SPARSE, 0), 0); /* not writable yet */
    assert_int_equal(sg_range_map_set(&ranges, at(20), at(30), SG_RANGE_COUNTED, open), 0);
    assert_int_equal(sg_range_map_set(&ranges, at(40), at(50), SG_RANGE_SPARSE, open | SG_RANGE_SHARED), 0);
    assert_int_equal(ranges.open_bytes, 0);
    assert_int_equal(sg_range_map_commit(&ranges, at(2), at(6)), 0);
    assert_int_equal(ranges.open_bytes, 4 * 4096);
    assert_int_equal(sg_range_map_shut(&ranges, at(0), at(4), true), 0);
    assert_int_equal(sg_range_map_shut(&ranges, at(0), at(4), true), 0);
    assert_int_equal(ranges.open_bytes, 2 * 4096);
    assert_int_equal(sg_range_map_shut(&ranges, at(3), at(50), false), 0);
    assert_int_equal(ranges.open_bytes, 3 * 4096);
    assert_int_equal(sg_range_map_shut(&ranges, at(0), at(50), false), 0);
    assert_int_equal(count_ranges(), 5);
    assert_int_equal(sg_range_map_move(&ranges, at(4), at(60), 4096, false), 0);
    assert_int_equal(ranges.open_bytes, 4 * 4096);
    assert_int_equal(sg_range_map_set(&ranges, at(0), at(100), SG_RANGE_NONE, 0), 0);
    assert_int_equal(ranges.open_bytes, 0);
}

PLAIN_TEST(the_end_of_the_address_space_is_an_address_like_others)
{
    uintptr_t end = UINTPTR_MAX & ~(uintptr_t)4095;
    assert_int_equal(sg_range_map_set(&ranges, end - 4096, end, SG_RANGE_COUNTED, 0), 0);
    assert_int_equal(sg_range_map_set(&ranges, 0, 4096, SG_RANGE_COUNTED, 0), 0);
    assert_int_equal(sg_range_map_bytes(&ranges, 0, UINTPTR_MAX, SG_RANGE_COUNTED), 8192);
    assert_int_equal(sg_range_map_set(&ranges, 0, 4096, SG_RANGE_COUNTED, SG_RANGE_SETTLED), 0);
    assert_int_equal(count_ranges(), 2);
    struct sg_range range;
    assert_false(sg_range_map_next(&ranges, end, &range));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(random_operations_agree_with_the_model, empty_ranges),
        cmocka_unit_test_teardown(neighbours_of_equal_attributes_are_one_range, empty_ranges),
        cmocka_unit_test_teardown(a_hole_splits_a_range, empty_ranges),
        cmocka_unit_test_teardown(shared_memory_counts_once_however_often_it_is_mapped, empty_ranges),
        cmocka_unit_test_teardown(neighbours_in_the_address_space_that_are_none_in_their_file_stay_two_ranges,
                                  empty_ranges),
        cmocka_unit_test_teardown(sixty_thousand_ranges, empty_ranges),
        cmocka_unit_test_teardown(chunks_are_used_again, empty_ranges),
        cmocka_unit_test_teardown(a_full_index_says_so_and_stays_true, empty_ranges),
        cmocka_unit_test_teardown(addresses_of_52_bits_are_told_from_those_of_48, empty_ranges),
        cmocka_unit_test_teardown(what_is_open_is_private_sparse_and_writable, empty_ranges),
        cmocka_unit_test_teardown(the_end_of_the_address_space_is_an_address_like_others, empty_ranges),
    };
    return cmocka_run_group_tests_name("ranges", tests, NULL, NULL);
}
