/*
 * fork.h - where the index keeps what a real call moves or takes away meanwhile, and what of the mappings a forked
 * child has.
 *
 * The addresses that a call lets go of may be another thread's at once, so what was known of them waits, still counted,
 * at a place that no mapping can have. In a child that was forked just then, the thread that would come back for it
 * does not exist.
 */
#ifndef SG_PRELOAD_HOOKS_MMAP_FORK_H
#define SG_PRELOAD_HOOKS_MMAP_FORK_H

#include <stdbool.h>
#include <stdint.h>

/* No mapping reaches beyond, and the place of what is parked tells where it came from (56 bits are the most that a
 * processor has). */
#define SG_MAP_MAX ((uintptr_t)1 << 57)

/* Both under the maps' lock, with signals held from the first to the last (base/lock.h). `kept_bytes` of it may be at
 * `wanted` soon (0: nobody knows where). */
int sg_map_park(uintptr_t begin, uint64_t bytes, uint64_t kept_bytes, uintptr_t wanted, uintptr_t *parked);
int sg_map_unpark(uintptr_t parked, uintptr_t begin, uint64_t bytes);

/* What madvise was told of [begin, end), and has done: whether a forked child has it. */
void sg_map_note_advice(uintptr_t begin, uintptr_t end, int advice);

/* mlockall(MCL_FUTURE) has succeeded, or munlockall. While it holds, the pages of each new mapping come with the call
 * that makes the mapping. */
void sg_map_lock_future(bool is_locked);
bool sg_map_locks_future(void);

/* In a forked child. A whole index keeps what the child has. Of a torn one nothing is left, and the figures say so.
 * Nothing locks the child's memory. */
void sg_map_refork(bool is_map_whole);

#endif
