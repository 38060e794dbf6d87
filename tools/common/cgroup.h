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

#endif
