/*
 * test_context_list.c - the numbers of contexts. The list is included as source, so that another thread can come
 * between two of its loads.
 */
#include "fixture.h"

#include "hooks/cuda/call.h"

/* Loads until another thread notes the end of the context with number 1; negative: not again. */
static int loads_left = -1;

static void let_others_run(void);

#undef sg_load_acquire
#define sg_load_acquire(ptr) (let_others_run(), __atomic_load_n((ptr), __ATOMIC_ACQUIRE))
#include "hooks/cuda/contexts.c"

struct sg_lock sg_cuda_lock;

static void let_others_run(void)
{
    if (loads_left-- == 0)
        sg_context_forget(1);
}

sg_function sg_real_driver_once(sg_function *known, const char *name)
{
    (void)known;
    (void)name;
    return NULL;
}

static void who_looks_for_a_handle_that_was_given_again_never_finds_the_ended_one(void **unused)
{
    CUcontext handle = (CUcontext)(uintptr_t)0x1000;
    (void)unused;
    for (int loads = 0; loads < 8; loads++) {
        loads_left = -1;
        sg_context_enter(handle);
        sg_context_set_ending(1, true);
        sg_context_enter(handle); /* the driver has ended the first, but that is not noted yet */
        loads_left = loads;
        assert_int_equal(sg_context_number(handle), 2);
        loads_left = -1;
        if (contexts[1].handle != NULL)
            sg_context_forget(1);
        sg_context_forget(2);
    }
    assert_int_equal(context_count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_looks_for_a_handle_that_was_given_again_never_finds_the_ended_one),
    };
    return cmocka_run_group_tests_name("context list", tests, NULL, NULL);
}
