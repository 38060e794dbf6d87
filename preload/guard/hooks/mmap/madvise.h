/*
 * madvise.h - what other calls than those of madvise.c make resident.
 */
#ifndef SG_PRELOAD_HOOKS_MMAP_MADVISE_H
#define SG_PRELOAD_HOOKS_MMAP_MADVISE_H

#include <stdint.h>

/* How many bytes become resident without a promise when `length` bytes at `begin` are pinned for a device. Any thread,
 * in a call that counts. Takes sg_tracker_maps_lock. */
uint64_t sg_mmap_pinned_bytes(uintptr_t begin, uint64_t length);

#endif
