/*
 * snapshot.h - what the machine still has: one look at the kernel's counters. cgroup.h adds every memory cgroup above
 * us.
 *
 * A look opens, reads and closes (no kept descriptors: programs close and reuse numbers): about 9 us for the machine
 * and 15 to 25 us for each cgroup level that has a limit. Not thread-safe: under the decision lock only (admission.c),
 * because the buffers are static; programs run on small stacks.
 */
#ifndef SG_PRELOAD_ADMIT_SNAPSHOT_H
#define SG_PRELOAD_ADMIT_SNAPSHOT_H

#include "sparkguard_abi.h"

#include <stdbool.h>
#include <stdint.h>

enum { SG_CONSTRAINT_CAPACITY = 1 + SG_ENTRY_LEVELS };

/* Something that bounds memory and keeps its own reserve: the machine, or a cgroup. */
struct sg_constraint {
    uint64_t limit_bytes;    /* MemTotal less the pool of huge pages, or the cgroup's limit */
    uint64_t headroom_bytes; /* what could still be had of it; swap is never headroom */
    uint64_t reserve_bytes;
    uint64_t floor_bytes;
    uint32_t level;            /* of a cgroup: its place in the list of sg_cgroup_find */
    uint64_t hard_limit_bytes; /* of a cgroup: memory.max alone */
    uint64_t used_bytes;       /* of a cgroup: what counts against either limit */
    uint64_t
        unexplained_bytes; /* of a cgroup: the kernel's memory that no other counter explains, managed memory too */
    uint64_t
        touched_bytes; /* managed memory that only the GPU touched: promised, and in the headroom (managed_pages.h) */
};

struct sg_snapshot {
    uint64_t time_ns; /* CLOCK_MONOTONIC; 0: no look yet */
    bool is_valid;    /* false: neither /proc nor sysinfo(2) answered */
    uint32_t count;
    struct sg_constraint at[SG_CONSTRAINT_CAPACITY]; /* at[0] is the machine */
    uint64_t total_bytes;                            /* MemTotal */
    uint64_t cma_free_bytes;                         /* part of at[0].headroom that CUDA cannot use */
    uint64_t free_bytes;                             /* MemFree */
    uint64_t idle_cache_bytes;                       /* Inactive(file) */
    uint64_t swap_free_bytes;                        /* SwapFree */
    bool has_cuda;                                   /* set by the caller: unexplained_bytes are wanted */
    uint64_t unexplained_bytes; /* of MemTotal what no counter explains: CUDA's memory is a part; 0: not told */
};

/* What the machine says: its constraint alone (cgroup.h adds others). */
void sg_snapshot_refresh(struct sg_snapshot *look);

/* Reads `path` below SPARKGUARD_SYSTEM_ROOT into the static scratch buffer: its text, or NULL. */
const char *sg_snapshot_read(const char *path);

/* Whether `bytes` could be populated without anybody being swapped out, as far as the last snapshot knows: there is no
 * swap, or so much idle page cache that the kernel takes nothing else. */
bool sg_snapshot_swaps_nobody(const struct sg_snapshot *look, uint64_t bytes);

/* Of the text of a meminfo, in its units: what of MemTotal no counter explains. */
uint64_t sg_snapshot_unexplained(const char *text);

/* Sets reserve and floor of a constraint from the options. */
void sg_snapshot_set_reserve(struct sg_constraint *constraint, bool is_machine);

#endif
