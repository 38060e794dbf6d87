/*
 * madvise.h - what other calls than those of madvise.c make resident.
 */
#ifndef SG_PRELOAD_HOOKS_MMAP_MADVISE_H
#define SG_PRELOAD_HOOKS_MMAP_MADVISE_H

#include <stdint.h>

/* What pinning `length` bytes at `begin` for a device would take: *absent_bytes become resident without a promise, and
 * *cache_bytes of page cache can be reclaimed no more, which are 0 where less than LARGE is pinned. Any thread, in a
 * call that counts. Takes sg_tracker_maps_lock. */
void sg_mmap_find_pinned(uintptr_t begin, uint64_t length, uint64_t *absent_bytes, uint64_t *cache_bytes);

#endif
