/*
 * test_pieces.c - the free room of a memory pool: which pieces are known, for which streams, and what is forgotten
 * when.
 */
#include "fixture.h"

#include "hooks/pool/pool_pieces.h"

#define BASE UINT64_C(0x7f0000000000)

enum { ONE = 1, OTHER = 2 };

static struct sg_pieces pieces;

static int forget(void **unused)
{
    (void)unused;
    sg_pieces_forget(&pieces);
    return 0;
}

static void free_in(uint64_t at, uint64_t bytes, uint32_t stream)
{
    uint32_t begun = sg_pieces_begin_free(&pieces, BASE + at, bytes, stream);
    sg_pieces_end_free(&pieces, BASE + at, bytes, begun, true);
}

static void nothing_is_known_at_first(void **unused)
{
    (void)unused;
    assert_false(sg_pieces_has(&pieces, 1, ONE));
    assert_int_equal(sg_pieces_bytes(&pieces), 0);
}

static void freed_block_is_there_for_its_stream_until_that_is_done(void **unused)
{
    (void)unused;
    sg_pieces_take(&pieces, BASE, 3 * MIB + 700, 0);
    free_in(0, 3 * MIB + 700, ONE);
    assert_true(sg_pieces_has(&pieces, 3 * MIB + 1024, ONE)); /* as the driver rounds it */
    assert_false(sg_pieces_has(&pieces, 3 * MIB + 1025, ONE));
    assert_false(sg_pieces_has(&pieces, MIB, OTHER));
    sg_pieces_see_done(&pieces, OTHER);
    assert_false(sg_pieces_has(&pieces, MIB, OTHER));
    sg_pieces_see_done(&pieces, ONE);
    assert_true(sg_pieces_has(&pieces, 3 * MIB, OTHER));
}

static void unknown_stream_finds_what_is_there_for_all(void **unused)
{
    (void)unused;
    sg_pieces_take(&pieces, BASE, MIB, 0);
    free_in(0, MIB, SG_STREAM_UNKNOWN);
    assert_false(sg_pieces_has(&pieces, MIB, SG_STREAM_UNKNOWN));
    sg_pieces_see_done(&pieces, SG_STREAM_UNKNOWN);
    assert_true(sg_pieces_has(&pieces, MIB, SG_STREAM_UNKNOWN));
}

static void what_is_being_freed_is_not_there_yet(void **unused)
{
    (void)unused;
    sg_pieces_take(&pieces, BASE, 4 * MIB, 0);
    uint32_t begun = sg_pieces_begin_free(&pieces, BASE, 4 * MIB, ONE);
    assert_false(sg_pieces_has(&pieces, MIB, ONE));
    sg_pieces_take(&pieces, BASE + MIB, MIB, 0); /* another thread was faster */
    sg_pieces_end_free(&pieces, BASE, 4 * MIB, begun, true);
    assert_int_equal(sg_pieces_bytes(&pieces), 3 * MIB);
    assert_true(sg_pieces_has(&pieces, 2 * MIB, ONE));
    assert_false(sg_pieces_has(&pieces, 3 * MIB, ONE));
}

static void free_that_ends_late_leaves_alone_what_is_being_freed_there_since(void **unused)
{
    (void)unused;
    sg_pieces_take(&pieces, BASE, 4 * MIB, 0);
    uint32_t first = sg_pieces_begin_free(&pieces, BASE, 4 * MIB, ONE);
    sg_pieces_take(&pieces, BASE, MIB, 0);
    uint32_t second = sg_pieces_begin_free(&pieces, BASE, MIB, ONE);
    sg_pieces_end_free(&pieces, BASE, 4 * MIB, first, true);
    assert_int_equal(sg_pieces_bytes(&pieces), 3 * MIB);
    sg_pieces_end_free(&pieces, BASE, MIB, second, true);
    assert_true(sg_pieces_has(&pieces, 4 * MIB, ONE));
}

static void free_that_failed_leaves_the_block(void **unused)
{
    (void)unused;
    sg_pieces_take(&pieces, BASE, MIB, 0);
    uint32_t begun = sg_pieces_begin_free(&pieces, BASE, MIB, ONE);
    sg_pieces_end_free(&pieces, BASE, MIB, begun, false);
    assert_int_equal(sg_pieces_bytes(&pieces), 0);
    assert_false(sg_pieces_has(&pieces, MIB, ONE));
}

static void pieces_that_touch_are_one_only_within_an_extent(void **unused)
{
    (void)unused;
    sg_pieces_take(&pieces, BASE, MIB, 0);
    sg_pieces_take(&pieces, BASE + MIB, MIB, 0);
    free_in(0, MIB, ONE);
    free_in(MIB, MIB, ONE);
    assert_int_equal(sg_pieces_bytes(&pieces), 2 * MIB);
    assert_false(sg_pieces_has(&pieces, 2 * MIB, ONE));
    sg_pieces_take(&pieces, BASE + MIB / 2, MIB, 0); /* across both */
    free_in(MIB / 2, MIB, ONE);
    assert_true(sg_pieces_has(&pieces, 2 * MIB, ONE));
}

static void rest_of_what_the_pool_has_grown_is_there(void **unused)
{
    (void)unused;
    sg_pieces_take(&pieces, BASE, MIB, 32 * MIB);
    sg_pieces_add(&pieces, BASE + MIB, 31 * MIB);
    assert_true(sg_pieces_has(&pieces, 31 * MIB, OTHER));
    sg_pieces_take(&pieces, BASE + MIB, MIB, 0);
    assert_false(sg_pieces_has(&pieces, 31 * MIB, OTHER));
    assert_true(sg_pieces_has(&pieces, 30 * MIB, OTHER));
}

static void only_extents_without_a_block_are_forgotten(void **unused)
{
    (void)unused;
    sg_pieces_take(&pieces, BASE, 8 * MIB, 0);
    sg_pieces_take(&pieces, BASE + 8 * MIB, 6 * MIB, 0);
    free_in(0, 8 * MIB, ONE);
    free_in(8 * MIB, 6 * MIB, SG_STREAM_DONE);
    sg_pieces_take(&pieces, BASE, MIB, 0);
    sg_pieces_forget_empty(&pieces, true);
    assert_int_equal(sg_pieces_bytes(&pieces), 7 * MIB);
    free_in(0, MIB, ONE);
    sg_pieces_forget_empty(&pieces, true);
    assert_int_equal(sg_pieces_bytes(&pieces), 8 * MIB); /* its stream may be busy */
    sg_pieces_forget_empty(&pieces, false);
    assert_int_equal(sg_pieces_bytes(&pieces), 0);
}

static void only_whole_growths_that_are_free_for_all_go_for_certain(void **unused)
{
    (void)unused;
    assert_int_equal(sg_pieces_least_empty_bytes(&pieces), UINT64_MAX);
    sg_pieces_take(&pieces, BASE, 31 * MIB, 32 * MIB);
    sg_pieces_add(&pieces, BASE + 31 * MIB, MIB);
    sg_pieces_take(&pieces, BASE + 64 * MIB, 8 * MIB, 0); /* in a growth that nobody knows */
    free_in(64 * MIB, 8 * MIB, SG_STREAM_DONE);
    assert_int_equal(sg_pieces_sure_bytes(&pieces), 0);
    assert_int_equal(sg_pieces_least_empty_bytes(&pieces), 8 * MIB);
    free_in(0, 31 * MIB, ONE);
    assert_int_equal(sg_pieces_sure_bytes(&pieces), 0);
    sg_pieces_see_done(&pieces, ONE);
    assert_int_equal(sg_pieces_sure_bytes(&pieces), 32 * MIB);
    sg_pieces_take(&pieces, BASE + 31 * MIB, 2 * MIB, 0); /* so it was another growth */
    free_in(31 * MIB, 2 * MIB, SG_STREAM_DONE);
    assert_int_equal(sg_pieces_sure_bytes(&pieces), 0);
}

static void what_is_being_freed_goes_not_for_certain(void **unused)
{
    (void)unused;
    sg_pieces_take(&pieces, BASE, MIB, MIB);
    sg_pieces_begin_free(&pieces, BASE, MIB, SG_STREAM_DONE);
    assert_int_equal(sg_pieces_sure_bytes(&pieces), 0);
    assert_int_equal(sg_pieces_least_empty_bytes(&pieces), MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(nothing_is_known_at_first, forget),
        cmocka_unit_test_teardown(freed_block_is_there_for_its_stream_until_that_is_done, forget),
        cmocka_unit_test_teardown(unknown_stream_finds_what_is_there_for_all, forget),
        cmocka_unit_test_teardown(what_is_being_freed_is_not_there_yet, forget),
        cmocka_unit_test_teardown(free_that_ends_late_leaves_alone_what_is_being_freed_there_since, forget),
        cmocka_unit_test_teardown(free_that_failed_leaves_the_block, forget),
        cmocka_unit_test_teardown(pieces_that_touch_are_one_only_within_an_extent, forget),
        cmocka_unit_test_teardown(rest_of_what_the_pool_has_grown_is_there, forget),
        cmocka_unit_test_teardown(only_extents_without_a_block_are_forgotten, forget),
        cmocka_unit_test_teardown(only_whole_growths_that_are_free_for_all_go_for_certain, forget),
        cmocka_unit_test_teardown(what_is_being_freed_goes_not_for_certain, forget),
    };
    return cmocka_run_group_tests_name("pieces", tests, NULL, NULL);
}
