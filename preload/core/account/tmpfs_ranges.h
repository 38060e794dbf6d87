/*
 * tmpfs_ranges.h - the shared memory that this process maps: memory files (tmpfs, memfd), System V segments, shared
 * anonymous memory.
 *
 * The same bytes may be mapped several times in this process and in others. They count once in a process (range_map.h)
 * and once in a job. Their missing pages are promised once on the machine. Therefore each process publishes in its
 * registry entry the ranges of files that it maps, and how many of its promised bytes are missing in each range. The
 * first SG_FILE_CAPACITY are in the entry, further ones behind all entries in the registry's file. Of more than
 * SG_MORE_FILES_CAPACITY further ones the smallest count as private memory.
 *
 * A unit is SG_SHARED_UNIT bytes of a file; its number has the file in its upper bits (range_map.h).
 */
#ifndef SG_PRELOAD_ACCOUNT_TMPFS_RANGES_H
#define SG_PRELOAD_ACCOUNT_TMPFS_RANGES_H

#include "account/ledger.h"
#include "base/lock.h"
#include "base/range_map.h"

#include <stdint.h>

/* Protects sg_tracker_maps (tracker.h), the map of this process's mappings, and sg_tmpfs_mapped: both change
 * together. */
extern struct sg_lock sg_tracker_maps_lock;

/* The units that COUNTED ranges of sg_tracker_maps map. Under sg_tracker_maps_lock. */
extern struct sg_range_map sg_tmpfs_mapped;

/* Publishes the changes of sg_tmpfs_mapped and charges `charge_bytes` (negative: releases them) to the mapped domain.
 * Meanwhile other processes can tell that ranges and sums do not match yet. The missing bytes of an unmapped range are
 * promised no more. The promised sum keeps them until the next scan if only a part is unmapped and it is unknown in
 * which part they are missing, if a scan is going on, or after a fork. Under sg_tracker_maps_lock. */
void sg_tmpfs_show_changes(int64_t charge_bytes);

/* Publishes all ranges again, after the process got a new registry entry or segment. Takes sg_tracker_maps_lock. */
void sg_tmpfs_show(void);

/* Promises `bytes` of the units [begin, end), less what a scan has met of them since they were mapped. Under
 * sg_decision_lock; takes sg_tracker_maps_lock. */
void sg_tmpfs_promise(uint64_t begin, uint64_t end, uint64_t bytes);

/* A scan of the promises: begin; add the missing bytes of each range of units that was checked; end, with the arguments
 * of sg_ledger_end_scan. All under sg_decision_lock. add_missing also under sg_tracker_maps_lock, which begin and end
 * take themselves. */
void sg_tmpfs_begin_scan(void);
void sg_tmpfs_add_missing(uint64_t begin, uint64_t end, uint64_t bytes);
void sg_tmpfs_end_scan(const struct sg_ledger_scan *found);

/* In a forked child. If the map may be torn (`is_map_whole` false), the child forgets all ranges. Under no lock. */
void sg_tmpfs_atfork_child(bool is_map_whole);

#endif
