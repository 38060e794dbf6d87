/*
 * bootstrap_alloc.h - memory for the heap calls that arrive while we are still looking for the real heap (dlsym may
 * allocate).
 *
 * A few kilobytes, handed out once and never reused. Any thread, any time.
 */
#ifndef SG_PRELOAD_BASE_BOOTSTRAP_ALLOC_H
#define SG_PRELOAD_BASE_BOOTSTRAP_ALLOC_H

#include "base/compiler.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory, or NULL when the buffer is used up. `alignment` is a power of two. */
void *sg_bootstrap_allocate(size_t size, size_t alignment);

enum { SG_BOOTSTRAP_BYTES = 32768 };
extern SG_INTERNAL char sg_bootstrap_buffer[SG_BOOTSTRAP_BYTES];

static inline bool sg_bootstrap_owns(const void *ptr)
{
    return (uintptr_t)ptr - (uintptr_t)sg_bootstrap_buffer < SG_BOOTSTRAP_BYTES;
}

/* Bytes that may be used behind a pointer of ours. */
size_t sg_bootstrap_usable_size(const void *ptr);

#endif
