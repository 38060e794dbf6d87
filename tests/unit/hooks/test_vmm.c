/*
 * test_vmm.c - what a forked child does with the lists of CUDA's virtual memory. They are included as source, so that a
 * list can be left as another thread leaves it in the middle of a change.
 */
#include "fixture.h"

#include "hooks/cuda/vmm.c"

struct sg_lock sg_cuda_lock;

uint32_t sg_cuda_enter_site(enum sg_domain domain, const void *caller, uint64_t bytes)
{
    (void)domain;
    (void)caller;
    (void)bytes;
    return 0;
}

static struct slab *const slabs[] = {&memory_slab, &handle_slab, &mapping_slab};
enum { SLABS = sizeof slabs / sizeof slabs[0], ITEM_BYTES = 64 };

CHILD_TEST(a_child_leaves_lists_alone_that_another_thread_was_changing)
{
    struct sg_lock_state lock;
    for (unsigned i = 0; i < SLABS; i++) {
        CHECK(slab_allocate(slabs[i], ITEM_BYTES) != NULL);
        slabs[i]->unused = NULL; /* the other thread has stored one of two words */
    }
    sg_lock_acquire(&sg_cuda_lock, &lock);
    sg_vmm_atfork_child();
    for (unsigned i = 0; i < SLABS; i++)
        CHECK(slab_allocate(slabs[i], ITEM_BYTES) != NULL);
    sg_lock_acquire(&sg_cuda_lock, &lock); /* no thread of the child holds it */
}

CHILD_TEST(a_child_goes_on_with_lists_that_nobody_was_changing)
{
    for (unsigned i = 0; i < SLABS; i++) {
        char *first = slab_allocate(slabs[i], ITEM_BYTES), *second = slab_allocate(slabs[i], ITEM_BYTES);
        slab_free(slabs[i], first);
        sg_vmm_atfork_child();
        CHECK(slab_allocate(slabs[i], ITEM_BYTES) == first);
        CHECK(slab_allocate(slabs[i], ITEM_BYTES) == second + ITEM_BYTES);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_leaves_lists_alone_that_another_thread_was_changing),
        cmocka_unit_test(a_child_goes_on_with_lists_that_nobody_was_changing),
    };
    return cmocka_run_group_tests_name("lists of CUDA's virtual memory", tests, NULL, NULL);
}
