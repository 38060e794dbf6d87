/*
 * heap_early - blocks taken before the constructors of all libraries, ours included, are counted, and again
 * when they go; the process has a job all the same.
 */
#include "heap_case.h"

#include <malloc.h>

static void *early_block[40], *early_large;

static void allocate_early(void)
{
    for (size_t i = 0; i < 40; i++)
        early_block[i] = i % 2 == 0 ? malloc(i * 5000) : calloc(1, i * 5000);
    early_large = malloc(3 * MIB);
    early_block[39] = realloc(early_block[39], 100);
    free(early_block[20]);
    early_block[20] = NULL;
}

/* Before the constructors of all libraries, ours included. */
__attribute__((section(".preinit_array"), used)) static void (*const preinit)(void) = allocate_early;

int main(void)
{
    live_begin();
    CHECK(segment->job[0] != '\0');
    uint64_t sum = malloc_usable_size(early_large), before = live(SG_DOMAIN_HEAP);
    for (size_t i = 0; i < 40; i++)
        sum += early_block[i] != NULL ? malloc_usable_size(early_block[i]) : 0;
    CHECK(sum > 3 * MIB);
    CHECK(before >= sum);
    for (size_t i = 0; i < 40; i++)
        free(early_block[i]);
    free(early_large);
    CHECK_EQUAL(before - live(SG_DOMAIN_HEAP), sum);
    CHECK(live(SG_DOMAIN_HEAP) < 256 * 1024); /* what libc and libstdc++ keep */
    CHECK_EQUAL(segment->unmatched_frees, 0);
    return 0;
}
