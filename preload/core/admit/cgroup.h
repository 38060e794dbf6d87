/*
 * cgroup.h - the memory cgroups above this process, as constraints of a snapshot (snapshot.h).
 *
 * All functions need the decision lock.
 */
#ifndef SG_PRELOAD_ADMIT_CGROUP_H
#define SG_PRELOAD_ADMIT_CGROUP_H

#include "admit/snapshot.h"

/* Finds the cgroup levels that bound memory and stores their identities, the lowest level first. Searches anew only
 * after a second. Returns the number of levels. */
uint32_t sg_cgroup_find(uint64_t identity[SG_CONSTRAINT_CAPACITY - 1]);

/* Calls `visit` for each cgroup above this process that is visible, whether it bounds memory or not, the lowest first.
 * `path`: the part of `directory` below the mount, "" for the mount. Each hierarchy that may bound memory is
 * visited. */
typedef void sg_cgroup_visit(const char *directory, const char *path, bool is_v2, void *data);
void sg_cgroup_visit_all(sg_cgroup_visit *visit, void *data);

/* The number in a file of such a directory; SG_UNKNOWN: "max", or it cannot be read. */
uint64_t sg_cgroup_limit(const char *directory, const char *file);

/* Calls `visit` for the cgroup `path` of another process, and for each above it, the lowest first, below every mount
 * where it may be. */
void sg_cgroup_visit_path(const char *path, sg_cgroup_visit *visit, void *data);

/* Reads the hard limit of such a directory (SG_UNKNOWN: none), and what of its usage no reclaim gives back. False:
 * there is no such cgroup, or its usage cannot be read. */
bool sg_cgroup_read(const char *directory, bool is_v2, uint64_t *hard_limit_bytes, uint64_t *used_bytes);

/* Reads the usage of the levels that sg_cgroup_find found last, and appends them as constraints to a valid snapshot.
 * Call it after sg_snapshot_refresh. */
void sg_cgroup_refresh(struct sg_snapshot *snapshot);

/* Stores the constraint with its hard limit only (memory.max without memory.high), which no process may exceed. False:
 * the cgroup has no hard limit. The machine has no other limit. Reserve and floor are those of the
 * watchdog (sg_snapshot_set_danger_lines). */
bool sg_cgroup_get_hard(const struct sg_constraint *constraint, bool is_machine, struct sg_constraint *out);

#endif
