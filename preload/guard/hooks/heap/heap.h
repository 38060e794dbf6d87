/*
 * heap.h - the slow path of the heap: every case that fast.c and derived.c do not handle themselves.
 *
 * Any thread may call these functions at any time, also in a signal handler.
 */
#ifndef SG_PRELOAD_HOOKS_HEAP_HEAP_H
#define SG_PRELOAD_HOOKS_HEAP_HEAP_H

#include "base/compiler.h"
#include "hooks/real.h"

#include <stddef.h>
#include <stdint.h>

/* The layer (enum sg_layer) that a thread sets while it is in malloc, calloc, realloc or free of the next allocator. It
 * is 0 once the next allocator is known to be glibc's, which calls no other allocator. Then allocations of a signal
 * handler that interrupts glibc are counted. A handler that leaves glibc by a longjmp leaves no layer set, so that
 * later allocations of the thread are still counted. */
extern SG_INTERNAL uint32_t sg_heap_inside;

/* Not 0 if the next allocator checks each block that it is given and ends the process over a bad one. Its
 * malloc_usable_size must not be the first function to see a bad block. Therefore the size of each block is kept in the
 * block table, and no fast path is open. */
extern SG_INTERNAL uint32_t sg_heap_is_checking;

/* Allocates `size` bytes in all by malloc or calloc. `caller` is the return address of the program's call. Returns NULL
 * with errno ENOMEM if the request is refused. */
void *sg_heap_take(size_t size, enum sg_hook hook, const void *caller);

/* Judges and counts a small block that the real heap has already allocated. Returns NULL with errno ENOMEM if the block
 * is refused; it has then been freed. */
void *sg_heap_admit(void *ptr, enum sg_hook hook);

/* Returns the usable size of a block, as the next allocator gives it. The allocator may allocate to answer (tcmalloc
 * does at its first answer); such blocks are not counted as the program's. */
size_t sg_heap_usable_size(void *ptr);

/* Counts and frees a block. NULL is allowed. Keeps errno. */
void sg_heap_give_back(void *ptr);

/* Frees a block whose size the program says: free_sized and free_aligned_sized (C23). */
struct sg_heap_sized {
    sg_function real; /* the function of the next allocator */
    size_t alignment; /* 0 for free_sized */
    size_t size;
};
void sg_heap_give_back_sized(void *ptr, const struct sg_heap_sized *sized);

/* Resizes a block by realloc, for realloc and reallocarray (`hook`). Returns NULL with errno ENOMEM if the request is
 * refused; the block then stays as it was. */
void *sg_heap_resize(void *ptr, size_t size, enum sg_hook hook, const void *caller);

/* Counts that this thread's blocks outside the block table have grown by `change` bytes. */
void sg_heap_settle(int64_t change);

#endif
