/*
 * test_bootstrap_alloc.c - the allocator that serves before there is a heap.
 */
#include "fixture.h"

#include "hooks/heap/bootstrap_alloc.h"

#include <pthread.h>

CHILD_TEST(boot_memory_is_zeroed_aligned_and_known)
{
    int other = 0;
    for (size_t alignment = 1; alignment <= 4096; alignment *= 2) {
        char *block = sg_bootstrap_allocate(100, alignment);
        CHECK(block != NULL);
        CHECK_EQUAL((uintptr_t)block % (alignment < 16 ? 16 : alignment), 0);
        CHECK_EQUAL(sg_bootstrap_usable_size(block), 100);
        CHECK(sg_bootstrap_owns(block) && sg_bootstrap_owns(block + 99));
        for (int i = 0; i < 100; i++)
            CHECK_EQUAL(block[i], 0);
        memset(block, 0xff, 100); /* the next one must not see this, nor this one's size */
    }
    CHECK(!sg_bootstrap_owns(NULL) && !sg_bootstrap_owns(&other));
}

CHILD_TEST(boot_memory_ends_with_null)
{
    CHECK(sg_bootstrap_allocate((size_t)-1, 16) == NULL);
    CHECK(sg_bootstrap_allocate(1, (size_t)1 << 40) == NULL);
    int blocks = 0;
    for (char *block; blocks < 100 && (block = sg_bootstrap_allocate(1000, 16)) != NULL; blocks++)
        CHECK(sg_bootstrap_owns(block) && sg_bootstrap_owns(block + 999));
    CHECK(blocks >= 20 && blocks <= 32);
    CHECK(sg_bootstrap_allocate(1000, 16) == NULL);
}

static void *take_boot_memory(void *context)
{
    char **blocks = context;
    for (int i = 0; i < 50; i++)
        if ((blocks[i] = sg_bootstrap_allocate(64, 16)) != NULL)
            memset(blocks[i], 1 + i, 64);
    return NULL;
}

CHILD_TEST(boot_memory_is_handed_out_once)
{
    pthread_t threads[4];
    static char *blocks[4][50];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, take_boot_memory, blocks[i]) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 4; i++)
        for (int b = 0; b < 50; b++) {
            CHECK(blocks[i][b] != NULL);
            CHECK_EQUAL(sg_bootstrap_usable_size(blocks[i][b]), 64);
            CHECK(blocks[i][b][0] == 1 + b && blocks[i][b][63] == 1 + b);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boot_memory_is_zeroed_aligned_and_known),
        cmocka_unit_test(boot_memory_ends_with_null),
        cmocka_unit_test(boot_memory_is_handed_out_once),
    };
    return cmocka_run_group_tests_name("bootstrap_alloc", tests, NULL, NULL);
}
