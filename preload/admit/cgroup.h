/*
 * cgroup.h - the memory cgroups above this process, as constraints of a look (snapshot.h). Under the decision lock.
 */
#ifndef SG_PRELOAD_ADMIT_CGROUP_H
#define SG_PRELOAD_ADMIT_CGROUP_H

#include "admit/snapshot.h"

/* Finds the levels that bound memory, once a second; their number, and their identities. */
uint32_t sg_cgroup_find(uint64_t identity[SG_CONSTRAINT_CAPACITY - 1]);

/* Adds the levels found last behind the constraints of a look that is valid. After sg_snapshot_refresh. */
void sg_cgroup_look(struct sg_snapshot *look);

/* The same constraint with its hard limit only: what no process may pass. False: it has none (a cgroup with
 * memory.high alone). */
bool sg_cgroup_get_hard(const struct sg_constraint *constraint, bool is_machine, struct sg_constraint *out);

/* The cgroup this process is in, below SPARKGUARD_SYSTEM_ROOT, if it is a v2 one that bounds memory; else NULL. */
const char *sg_cgroup_own(void);

/* Whether that one may use no swap at all (memory.swap.max). */
bool sg_cgroup_is_swapless(void);

#endif
