/*
 * glibc.c - see glibc.h.
 */
#include "hooks/heap/glibc.h"

#include "hooks/real.h"

#include <malloc.h>
#include <stdlib.h>

/* Returns whether glibc gives `usable` bytes for a request of `size`. glibc adds one step where the rest of a chunk
 * would be too small to be a block. */
static bool is_size_of_glibc(size_t size, uint64_t usable)
{
    uint64_t expected =
        (size + SG_GLIBC_OVERHEAD + SG_GLIBC_STEP - 1) / SG_GLIBC_STEP * SG_GLIBC_STEP - SG_GLIBC_OVERHEAD;
    if (expected < SG_GLIBC_LEAST)
        expected = SG_GLIBC_LEAST;
    return usable == expected || usable == expected + SG_GLIBC_STEP;
}

/* Allocates a block and compares its header with malloc_usable_size. The header is read only if malloc_usable_size has
 * answered as glibc does. valgrind, the sanitizers and glibc with memory tags answer otherwise. */
static bool is_header_as_known(size_t size)
{
    void *ptr = sg_glibc_malloc(size);
    if (ptr == NULL)
        return false;
    uint64_t usable = SG_REAL(malloc_usable_size)(ptr);
    bool is_known = is_size_of_glibc(size, usable);
    if (is_known) {
        uint64_t header = sg_glibc_header(ptr);
        is_known = (header & SG_GLIBC_MAPPED) == 0 && sg_glibc_usable(header) == usable;
    }
    sg_glibc_free(ptr);
    return is_known;
}

bool sg_glibc_heap_is_next(void)
{
    static const size_t sizes[] = {1, 24, 25, 40, 1000, 5001};
    if (sg_glibc_malloc == NULL || SG_REAL(malloc) != sg_glibc_malloc || SG_REAL(calloc) != sg_glibc_calloc ||
        SG_REAL(realloc) != sg_glibc_realloc || SG_REAL(free) != sg_glibc_free || SG_REAL(malloc_usable_size) == NULL)
        return false;
    for (unsigned i = 0; i < SG_ARRAY_LENGTH(sizes); i++)
        if (!is_header_as_known(sizes[i]))
            return false;
    return true;
}
