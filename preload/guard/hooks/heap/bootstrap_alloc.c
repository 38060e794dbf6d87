/*
 * bootstrap_alloc.c - see bootstrap_alloc.h. Before each block is one word: size * 8 + BLOCK_MARK. The mark is the one
 * of glibc's blocks that have a mapping of their own. Code that reads glibc's block headers (glibc.h) then does not
 * take the block for one of glibc's ordinary blocks.
 */
#include "hooks/heap/bootstrap_alloc.h"

#include "base/atomics.h"

#include <stdint.h>

enum { BLOCK_MARK = 2 };

_Alignas(16) char sg_bootstrap_buffer[SG_BOOTSTRAP_BYTES];
static uint64_t used;

void *sg_bootstrap_allocate(size_t size, size_t alignment)
{
    if (alignment < 16)
        alignment = 16;
    if (size > SG_BOOTSTRAP_BYTES || alignment > SG_BOOTSTRAP_BYTES)
        return NULL;
    uint64_t need = size + alignment + 16;
    uint64_t begin = sg_fetch_add(&used, need);
    if (begin + need > SG_BOOTSTRAP_BYTES)
        return NULL;
    uintptr_t block = ((uintptr_t)sg_bootstrap_buffer + begin + 16 + alignment - 1) & ~(uintptr_t)(alignment - 1);
    ((uint64_t *)block)[-1] = size << 3 | BLOCK_MARK;
    return (void *)block;
}

size_t sg_bootstrap_usable_size(const void *ptr)
{
    return (size_t)(((const uint64_t *)ptr)[-1] >> 3);
}
