/*
 * boot.c - see boot.h. Each block is preceded by its size, times 8, plus the mark of a block that glibc would have in a mapping
 * of its own: what looks at glibc's headers (glibc_heap.h) takes it for nothing usual.
 */
#include "boot.h"

#include "atomics.h"

#include <stdint.h>

enum { BUFFER_BYTES = 32768, BLOCK_MARK = 2 };

static _Alignas(16) char buffer[BUFFER_BYTES];
static uint64_t used;

void *sg_boot_allocate(size_t size, size_t alignment)
{
    if (alignment < 16)
        alignment = 16;
    if (size > BUFFER_BYTES || alignment > BUFFER_BYTES)
        return NULL;
    uint64_t need = size + alignment + 16;
    uint64_t begin = sg_fetch_add(&used, need);
    if (begin + need > BUFFER_BYTES)
        return NULL;
    uintptr_t block = ((uintptr_t)buffer + begin + 16 + alignment - 1) & ~(uintptr_t)(alignment - 1);
    ((uint64_t *)block)[-1] = size << 3 | BLOCK_MARK;
    return (void *)block;
}

bool sg_boot_owns(const void *ptr)
{
    return (uintptr_t)ptr - (uintptr_t)buffer < BUFFER_BYTES;
}

size_t sg_boot_usable_size(const void *ptr)
{
    return (size_t)(((const uint64_t *)ptr)[-1] >> 3);
}
