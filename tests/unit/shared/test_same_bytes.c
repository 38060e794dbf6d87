/*
 * test_same_bytes.c - shared memory counts once: the order in which ranges are counted, and what each adds.
 */
#include "fixture.h"

#include "shared/same_bytes.c"

static void fill(struct row *rows, uint32_t count, uint64_t seed)
{
    for (uint32_t i = 0; i < count; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        rows[i] = (struct row){.begin = i, .end = i + 1, .missing_bytes = seed >> 60};
    }
}

/* Each number of ranges is another shape of the heap. */
PLAIN_TEST(ranges_are_counted_from_the_one_that_misses_most)
{
    enum { MOST = 40, SEEDS = 20 };
    static struct row rows[MOST + 1];
    static struct gathering g = {.rows = rows};
    for (uint32_t count = 0; count <= MOST; count++)
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            uint64_t before = 0, after = 0;
            fill(rows, count, seed);
            rows[count] = (struct row){.begin = 4711}; /* no row of it */
            for (uint32_t i = 0; i < count; i++)
                before += rows[i].begin * rows[i].missing_bytes;
            g.row_count = count;
            sort_rows(&g);
            for (uint32_t i = 0; i < count; i++) {
                after += rows[i].begin * rows[i].missing_bytes;
                assert_true(i == 0 || rows[i - 1].missing_bytes >= rows[i].missing_bytes);
            }
            assert_int_equal(after, before);
            assert_int_equal(rows[count].begin, 4711);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_are_counted_from_the_one_that_misses_most),
    };
    return cmocka_run_group_tests_name("same_bytes", tests, NULL, NULL);
}
