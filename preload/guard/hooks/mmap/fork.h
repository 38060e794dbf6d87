/*
 * fork.h - ranges parked during a real call, and which mappings a forked child has.
 *
 * A call that unmaps or moves addresses frees them before it returns, so another thread may get the same addresses at
 * once. Before such a call the range map therefore moves its ranges to a parking place: addresses that no mapping can
 * have. Parked ranges stay counted. If another thread forks meanwhile, the child has no thread that would move them
 * back; the child settles them in sg_mmap_atfork_child.
 */
#ifndef SG_PRELOAD_HOOKS_MMAP_FORK_H
#define SG_PRELOAD_HOOKS_MMAP_FORK_H

#include <stdbool.h>
#include <stdint.h>

/* No mapping reaches this address: processors have at most 56 bits of user address. Higher bits tell the parking place
 * of a parked range, lower bits where the range came from. */
#define SG_MAP_MAX ((uintptr_t)1 << 57)

/* Moves the ranges of [begin, begin + bytes) to a parking place, and back. Under the maps lock; signals must stay
 * blocked from park to the last step. The real call keeps the first `kept_bytes` of them, and moves them to `wanted`
 * (0: to an address not known in advance). Both return 0, or an error for sg_mmap_change_end. */
int sg_mmap_park(uintptr_t begin, uint64_t bytes, uint64_t kept_bytes, uintptr_t wanted, uintptr_t *parked);
int sg_mmap_unpark(uintptr_t parked, uintptr_t begin, uint64_t bytes);

/* Notes an advice that madvise has carried out on [begin, end) and that says whether a forked child has the range or
 * its pages: MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK, MADV_KEEPONFORK. Takes the maps lock. */
void sg_mmap_note_advice(uintptr_t begin, uintptr_t end, int advice);

/* Notes that mlockall(MCL_FUTURE) or munlockall has succeeded, and tells which came last. While the lock is on, the
 * pages of each new mapping become resident within the call that makes the mapping. Any thread. */
void sg_mmap_lock_future(bool is_locked);
bool sg_mmap_locks_future(void);

/* Begins a forked child. If the parent was not changing the range map at the fork (`is_map_whole`), the child keeps the
 * ranges that it has. Otherwise the map was torn: no range is left, and the record says so. Memory locks end at a fork,
 * so the child's note of mlockall is cleared. */
void sg_mmap_atfork_child(bool is_map_whole);

#endif
