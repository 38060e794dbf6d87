/*
 * tmpfs_ranges.h - what this process maps of shared memory: memory files (tmpfs, memfd), System V segments, shared
 * anonymous memory.
 *
 * The same bytes may have several addresses in this process and in others. They count once in a process (range_map.h)
 * and once in a job, and what is missing of them is promised once on the machine. So each process shows the others,
 * in its registry entry, the ranges of files that it maps, and how much of its promises is missing there. It shows
 * the SG_FILE_CAPACITY largest; what it does not show counts as if it were its own.
 */
#ifndef SG_PRELOAD_ACCOUNT_TMPFS_RANGES_H
#define SG_PRELOAD_ACCOUNT_TMPFS_RANGES_H

#include "base/lock.h"
#include "base/range_map.h"

#include <stdint.h>

/* Guards the map of this process's mappings, sg_tracker_maps (tracker.h), and of what they map here: both change
 * together. */
extern struct sg_lock sg_tracker_maps_lock;

/* The shared memory that COUNTED ranges of sg_tracker_maps map. Under sg_tracker_maps_lock. */
extern struct sg_range_map sg_tmpfs_mapped;

/* Shows what has changed in sg_tmpfs_mapped, around the change of what the process holds (`charge`). A range that is
 * gone promises nothing by its name any more; the promise itself stays until the next scan. Under
 * sg_tracker_maps_lock. */
void sg_tmpfs_show_changes(int64_t charge_bytes);

/* Shows everything: there is a new registry entry, or a segment. Takes sg_tracker_maps_lock. */
void sg_tmpfs_show(void);

/* Promises `bytes` of the units [begin, end). Under the decision lock; takes sg_tracker_maps_lock. */
void sg_tmpfs_promise(uint64_t begin, uint64_t end, uint64_t bytes);

/* A scan of the promises: begin; what is missing of units that were looked at; end, with what sg_ledger_end_scan is
 * told. add_missing under sg_tracker_maps_lock; begin and end take it. Under the decision lock. */
void sg_tmpfs_begin_scan(void);
void sg_tmpfs_add_missing(uint64_t begin, uint64_t end, uint64_t bytes);
void sg_tmpfs_end_scan(uint64_t promised_bytes, uint64_t sparse_bytes);

/* In a forked child, whose map may be torn: then it maps nothing that we know. Under no lock. */
void sg_tmpfs_refork(bool is_map_whole);

#endif
