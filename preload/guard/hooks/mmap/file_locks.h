/*
 * file_locks.h - the page cache that a memory lock would pin.
 */
#ifndef SG_PRELOAD_HOOKS_MMAP_FILE_LOCKS_H
#define SG_PRELOAD_HOOKS_MMAP_FILE_LOCKS_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes of [begin, end) in mappings of ordinary files that are not locked yet. Their pages leave MemAvailable when they
 * are locked, whether they are resident before or not. Private mappings that may
 * be written to count only `with_private`: the lock would pin copies instead. 0 if the kernel does not tell. Reads
 * /proc/self/maps; makes one system call for each mapping of a file. Takes sg_tracker_maps_lock. */
uint64_t sg_mmap_unlocked_file_bytes(uintptr_t begin, uintptr_t end, bool with_private);

#endif
