/*
 * heap.h - what fast.c and derived.c leave to heap.c: whatever is not usual, and everything behind other allocators
 * than glibc's.
 *
 * Any thread, any time, also in signal handlers.
 */
#ifndef SG_PRELOAD_HOOKS_HEAP_HEAP_H
#define SG_PRELOAD_HOOKS_HEAP_HEAP_H

#include "base/compiler.h"
#include "hooks/real.h"

#include <stddef.h>
#include <stdint.h>

/* What a thread notes of itself (enum sg_layer) while it is in the next allocator's malloc, calloc, realloc or free.
 * Nothing once they are known to be glibc's, which ask nobody else: then what a signal handler takes that interrupts
 * them counts, and one that leaves them by a longjmp leaves no note behind, by which all that the thread asks for later
 * would pass unseen. */
extern SG_INTERNAL uint32_t sg_heap_inside;

/* The next allocator checks what it is given, and ends the process over a bad block: its malloc_usable_size must not
 * be the first to see one. The size of each of its blocks is in the index, and no fast way is open. */
extern SG_INTERNAL uint32_t sg_heap_is_checking;

/* malloc or calloc of `size` bytes altogether. `caller`: where the program's call returns to. */
void *sg_heap_take(size_t size, enum sg_hook hook, const void *caller);

/* Judges and counts a small block that the real heap has already given. NULL: refused, and the block has gone back. */
void *sg_heap_admit(void *ptr, enum sg_hook hook);

/* The usable size of a block, by the next allocator. It may allocate to find out (tcmalloc's first answer does):
 * none of that is the program's. */
size_t sg_heap_usable_size(void *ptr);

/* free. */
void sg_heap_give_back(void *ptr);

/* A free that says how large the block is (C23): both functions of that kind. */
struct sg_heap_sized {
    sg_function real; /* the next allocator's own */
    size_t alignment; /* 0: it is not said */
    size_t size;
};
void sg_heap_give_back_sized(void *ptr, const struct sg_heap_sized *sized);

/* realloc or reallocarray. */
void *sg_heap_resize(void *ptr, size_t size, enum sg_hook hook, const void *caller);

/* This thread's untracked blocks have grown by `change` bytes. */
void sg_heap_settle(int64_t change);

#endif
