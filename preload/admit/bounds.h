/*
 * bounds.h - the administrator's bounds of this process's user (/etc/sparkguard.conf, sparkguard_bounds.h).
 *
 * They are read once, at the first decision, and hold until the next exec. They do not hold for what root has set with
 * sparkguard --set. The user is the real one, so a setuid program does not escape them.
 */
#ifndef SG_PRELOAD_ADMIT_BOUNDS_H
#define SG_PRELOAD_ADMIT_BOUNDS_H

#include <stdbool.h>
#include <stdint.h>

/* Reads the file. The job's first process reports a line that cannot be read on stderr. Under the decision lock, before
 * the first snapshot. */
void sg_bounds_read(void);

/* Whether the user's jobs have a largest limit. Any thread. */
bool sg_bounds_have_limit(void);

/* Returns `limit_bytes` (0: no limit), at most the largest limit of the user; a percentage refers to
 * `machine_bytes`, and does not count while that is 0. Any thread. */
uint64_t sg_bounds_limit(uint64_t limit_bytes, uint64_t machine_bytes);

/* Whether the limit, or the machine's reserve, of this many bytes is the user's bound. Any thread. */
bool sg_bounds_are_limit(uint64_t limit_bytes, uint64_t machine_bytes);
bool sg_bounds_are_reserve(uint64_t reserve_bytes, uint64_t machine_bytes);

/* Returns the user's smallest reserve of a machine of `machine_bytes`; 0: none. Any thread. */
uint64_t sg_bounds_reserve(uint64_t machine_bytes);

#endif
