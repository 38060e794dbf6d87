/*
 * bootstrap_alloc.h - memory for heap calls that arrive before the real heap functions are found: dlsym, which finds
 * them, may allocate.
 *
 * The memory is a fixed buffer. Blocks are never freed or reused. Any thread, any time.
 */
#ifndef SG_PRELOAD_HOOKS_HEAP_BOOTSTRAP_ALLOC_H
#define SG_PRELOAD_HOOKS_HEAP_BOOTSTRAP_ALLOC_H

#include "base/compiler.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory, or NULL when the buffer is used up. `alignment` is a power of two. */
void *sg_bootstrap_allocate(size_t size, size_t alignment);

enum { SG_BOOTSTRAP_BYTES = 32768 };
extern SG_INTERNAL char sg_bootstrap_buffer[SG_BOOTSTRAP_BYTES];

/* Whether `ptr` is in the buffer, so that it must not be passed to the real free or realloc. */
static inline bool sg_bootstrap_owns(const void *ptr)
{
    return (uintptr_t)ptr - (uintptr_t)sg_bootstrap_buffer < SG_BOOTSTRAP_BYTES;
}

/* The size that was requested for a block of the buffer. */
size_t sg_bootstrap_usable_size(const void *ptr);

#endif
