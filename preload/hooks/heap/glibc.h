/*
 * glibc.h - glibc's malloc by its own name, and the size that it writes before a block.
 *
 * malloc_usable_size costs a call for every block; the word before the block says the same (malloc/malloc.c of glibc,
 * unchanged since 2.3: the size of the chunk, and in its lowest three bits whether the chunk before it is in use,
 * whether this one has a mapping of its own, and whether it is of another arena than the main one). That is so only
 * where the next allocator is glibc's, nothing between us and it, and nothing in it switched on that moves the header:
 * sg_glibc_heap_is_next tells, and nobody may look at a header before. Reading any thread's own block: any time, also
 * in signal handlers.
 */
#ifndef SG_PRELOAD_HOOKS_HEAP_GLIBC_H
#define SG_PRELOAD_HOOKS_HEAP_GLIBC_H

#include "base/compiler.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* By these names no other library's are taken: glibc exports them for allocators that replace a part of its own. Weak,
 * and what they are is compared with what the hooks found. */
#define SG_GLIBC(type, name, ...) \
    extern type sg_glibc_##name(__VA_ARGS__) __asm__("__libc_" #name) __attribute__((weak))
SG_GLIBC(void *, malloc, size_t);
SG_GLIBC(void *, calloc, size_t, size_t);
SG_GLIBC(void *, realloc, void *, size_t);
SG_GLIBC(void, free, void *);

enum {
    SG_GLIBC_MAPPED = 2, /* a mapping of its own: another header, and not usual for a small block */
    SG_GLIBC_FLAGS = 7,
    SG_GLIBC_OVERHEAD = 8, /* of a block without one */
    SG_GLIBC_STEP = 16,
    SG_GLIBC_LEAST = 24, /* usable bytes of the smallest block */
};

static inline uint64_t sg_glibc_header(const void *ptr)
{
    return ((const uint64_t *)ptr)[-1];
}

/* Usable bytes of a block without a mapping of its own. */
static inline uint64_t sg_glibc_usable(uint64_t header)
{
    return (header & ~(uint64_t)SG_GLIBC_FLAGS) - SG_GLIBC_OVERHEAD;
}

/* Asks the real heap for a few blocks and looks whether all is as written above. Where it is not, no header is looked
 * at. */
bool sg_glibc_heap_is_next(void);

#endif
