/*
 * cgroup.h - reads how much memory the cgroups above this process leave (cgroup version 2 and version 1).
 */
#ifndef SG_TOOLS_COMMON_CGROUP_H
#define SG_TOOLS_COMMON_CGROUP_H

#include <stddef.h>
#include <stdint.h>

/* A constraint with a reserve of its own: the machine, or one level of cgroups that has a limit. */
struct cgroup_constraint {
    uint64_t limit_bytes;
    uint64_t headroom_bytes; /* limit less usage; promises are not subtracted */
    uint64_t reserve_bytes;
    uint64_t floor_bytes;
};

/* Reads the levels of cgroups above this process that have a limit. Fills limit_bytes and headroom_bytes of at most
 * `capacity` elements of `out`; reserve_bytes and floor_bytes become SG_UNKNOWN. `root` is the prefix of /proc and /sys
 * (SPARKGUARD_SYSTEM_ROOT), "" for none. Returns the number of elements filled; 0 if nothing could be read. */
size_t cgroup_read(const char *root, struct cgroup_constraint *out, size_t capacity);

/* The files of one level of cgroups that sets a limit. SG_UNKNOWN: no limit, or the file is not there. */
struct cgroup_level {
    char path[256];          /* the cgroup, "/" for the mount point; cut if longer */
    uint64_t max_bytes;      /* memory.max, or memory.limit_in_bytes */
    uint64_t high_bytes;     /* memory.high */
    uint64_t swap_max_bytes; /* memory.swap.max; of cgroup version 1 SG_UNKNOWN */
};

/* Reads those levels that set any of the three, the process's own cgroup first. Returns the number of elements of `out`
 * that were filled. */
size_t cgroup_read_levels(const char *root, struct cgroup_level *out, size_t capacity);

#endif
