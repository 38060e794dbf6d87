/*
 * cgroup.h - what the memory cgroups above this process leave it, version 2 or 1.
 */
#ifndef SG_TOOLS_COMMON_CGROUP_H
#define SG_TOOLS_COMMON_CGROUP_H

#include <stddef.h>
#include <stdint.h>

/* Something that bounds memory and keeps its own reserve: the machine, or one level of cgroups that has a limit. */
struct cgroup_constraint {
    uint64_t limit_bytes;
    uint64_t headroom_bytes; /* what is left of it, before promises */
    uint64_t reserve_bytes;
    uint64_t floor_bytes;
};

/* Fills limit and headroom of at most `room` levels, and returns how many. `root` is the prefix of /proc and /sys
 * (SPARKGUARD_SYSTEM_ROOT), "" for none. */
size_t cgroup_read(const char *root, struct cgroup_constraint *out, size_t room);

#endif
