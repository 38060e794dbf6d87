/*
 * snapshot.h - the snapshot: the kernel's figures for all constraints at one moment. This file reads those of the
 * machine; cgroup.h adds each memory cgroup above this process.
 *
 * A snapshot opens, reads and closes its files. No descriptor is kept, because programs close and reuse descriptor
 * numbers. It takes about 9 us for the machine, and 15 to 25 us for each cgroup level with a limit.
 *
 * All functions need the decision lock: their buffers are static, because programs run on small stacks.
 */
#ifndef SG_PRELOAD_ADMIT_SNAPSHOT_H
#define SG_PRELOAD_ADMIT_SNAPSHOT_H

#include "sparkguard_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SG_CONSTRAINT_CAPACITY = 1 + SG_ENTRY_LEVELS };

/* A constraint bounds memory and has its own reserve: the machine, or a cgroup. */
struct sg_constraint {
    uint64_t limit_bytes;    /* MemTotal less the huge-page pool, or the cgroup's limit */
    uint64_t headroom_bytes; /* bytes that can still be taken; swap never counts */
    uint64_t reserve_bytes;
    uint64_t floor_bytes;
    uint32_t level;             /* of a cgroup: its index in the list of sg_cgroup_find */
    uint64_t hard_limit_bytes;  /* of a cgroup: memory.max alone */
    uint64_t used_bytes;        /* of a cgroup: the usage that counts against both limits */
    uint64_t unexplained_bytes; /* of a cgroup: kernel memory that no other counter explains, with managed memory */
    /* Managed memory that only the GPU touched: promised, yet headroom_bytes lacks it already. managed_pages.h sets
     * it. */
    uint64_t touched_bytes;
};

struct sg_snapshot {
    uint64_t time_ns; /* CLOCK_MONOTONIC; 0: no snapshot yet */
    bool is_valid;    /* false: neither /proc nor sysinfo(2) answered */
    bool is_whole;    /* /proc answered: no figure is 0 because it is unknown */
    uint32_t count;
    struct sg_constraint at[SG_CONSTRAINT_CAPACITY]; /* at[0] is the machine */
    uint64_t total_bytes;                            /* MemTotal */
    uint64_t cma_free_bytes;                         /* part of at[0].headroom that CUDA cannot use */
    uint64_t free_bytes;                             /* MemFree */
    uint64_t swap_free_bytes;                        /* SwapFree */
    bool has_cuda;                                   /* set by the caller: fill in unexplained_bytes */
    uint64_t unexplained_bytes; /* the part of MemTotal that no counter explains, with CUDA's memory; 0: unknown */
    uint64_t shared_bytes;      /* Shmem, pinned memory among it; valid with unexplained_bytes */
};

/* Reads the machine's figures and sets at[0] alone; cgroup.h adds the others. is_valid tells whether that worked. */
void sg_snapshot_refresh(struct sg_snapshot *snapshot);

/* The kernel's PATH_MAX, of a cgroup's directory for example. */
enum { SG_PATH_MAX = 4096 };

/* A dozen hierarchies of v1 may each have a path of 4 KiB in /proc/self/cgroup, but paths of 1 KiB are rare. */
enum { SG_SNAPSHOT_FILE_BYTES = 16384 };

/* Reads the file `path` below SPARKGUARD_SYSTEM_ROOT into a static buffer of 16 KiB, valid until the next call. Returns
 * its text, or NULL. */
const char *sg_snapshot_read(const char *path);

/* The field `total` of a file of the kernel less the `count` fields that explain parts of it; not below 0. Any
 * thread. */
uint64_t sg_snapshot_unexplained(const char *text, const char *total, const char *const *explained, size_t count);

/* The part of MemTotal that no counter of /proc/meminfo explains, in KiB: what CUDA programs hold, and what the driver
 * keeps. `meminfo`: the text of that file. Any thread. */
uint64_t sg_snapshot_unexplained_kib(const char *meminfo);

/* Sets a constraint's reserve and floor, which requests are compared with, from its limit_bytes, the options, what
 * sparkguard --set has set, and the user's bounds. */
void sg_snapshot_set_reserve(struct sg_constraint *constraint, bool is_machine);

/* The same for the watchdog, from limit_bytes and the options alone: neither sparkguard --set nor a user's bound
 * decides who is ended, or when. Options that leave nothing of the constraint count as not set. */
void sg_snapshot_set_danger_lines(struct sg_constraint *constraint, bool is_machine);

#endif
