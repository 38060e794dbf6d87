/*
 * glibc.h - glibc's malloc by its own names, and the size that it writes before each block.
 *
 * malloc_usable_size costs a call for every block. The word before the block (its header) says the same: the size of
 * the chunk, and in its lowest three bits whether the chunk before it is in use, whether this chunk has a mapping of
 * its own, and whether it belongs to another arena than the main one. glibc's malloc/malloc.c has had this layout since
 * 2.3. What a block with a mapping of its own loses to its header differs: 16 bytes, and 8 since glibc 2.43. Such
 * blocks are asked for by malloc_usable_size.
 *
 * The header may be read only if the next allocator is glibc's, if nothing lies between glibc and this library, and if
 * no option of glibc that moves the header is on. sg_glibc_heap_is_next finds out; nothing may read a header before.
 * After that, any thread may read the header of a block that it owns at any time, also in a signal handler.
 */
#ifndef SG_PRELOAD_HOOKS_HEAP_GLIBC_H
#define SG_PRELOAD_HOOKS_HEAP_GLIBC_H

#include "base/compiler.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* These names are always glibc's own functions: glibc exports them for allocators that replace a part of its own. They
 * are weak, and their addresses are compared with what the hooks found. */
#define SG_GLIBC(type, name, ...) \
    extern type sg_glibc_##name(__VA_ARGS__) __asm__("__libc_" #name) __attribute__((weak))
SG_GLIBC(void *, malloc, size_t);
SG_GLIBC(void *, calloc, size_t, size_t);
SG_GLIBC(void *, realloc, void *, size_t);
SG_GLIBC(void, free, void *);

enum {
    SG_GLIBC_MAPPED = 2, /* the block has a mapping of its own: another header, and not usual for a small block */
    SG_GLIBC_FLAGS = 7,
    SG_GLIBC_OVERHEAD = 8, /* bytes of a chunk that are not usable, without a mapping of its own */
    SG_GLIBC_STEP = 16,
    SG_GLIBC_LEAST = 24, /* usable bytes of the smallest block */
};

/* Returns the header of a block of glibc's heap. */
static inline uint64_t sg_glibc_header(const void *ptr)
{
    return ((const uint64_t *)ptr)[-1];
}

/* Returns the usable bytes of a block without a mapping of its own. */
static inline uint64_t sg_glibc_usable(uint64_t header)
{
    return (header & ~(uint64_t)SG_GLIBC_FLAGS) - SG_GLIBC_OVERHEAD;
}

/* Allocates a few blocks from the real heap and checks that their headers are as described above. Returns false if any
 * is not: then no header may be read. */
bool sg_glibc_heap_is_next(void);

#endif
