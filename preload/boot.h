/*
 * boot.h - memory for the heap calls that arrive while we are still looking for the real heap (dlsym may allocate).
 *
 * A few kilobytes, handed out once and never reused. Any thread, any time.
 */
#ifndef SG_BOOT_H
#define SG_BOOT_H

#include <stdbool.h>
#include <stddef.h>

/* Zeroed memory, or NULL when the buffer is used up. `alignment` is a power of two. */
void *sg_boot_allocate(size_t size, size_t alignment);

bool sg_boot_owns(const void *ptr);

/* Bytes that may be used behind a pointer of ours. */
size_t sg_boot_usable_size(const void *ptr);

#endif
