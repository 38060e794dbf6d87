/*
 * boot.c - see boot.h. Each block is preceded by its size.
 */
#include "boot.h"

#include "atomics.h"

#include <stdint.h>

enum { BUFFER_BYTES = 32768 };

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
    ((uint64_t *)block)[-1] = size;
    return (void *)block;
}

bool sg_boot_owns(const void *ptr)
{
    return (uintptr_t)ptr - (uintptr_t)buffer < BUFFER_BYTES;
}

size_t sg_boot_usable_size(const void *ptr)
{
    return (size_t)((const uint64_t *)ptr)[-1];
}
