/*
 * bounds.h - the administrator's bounds of this process's user (/etc/sparkguard.conf, sparkguard_bounds.h).
 *
 * They are read at the first decision, and at the first one after the process has changed its user or groups, and hold
 * for what sparkguard --set has set as well. The user is the real one, so a setuid program does not escape them.
 * Percentages refer to the machine's memory, and do not count while that is unknown (0).
 */
#ifndef SG_PRELOAD_ADMIT_BOUNDS_H
#define SG_PRELOAD_ADMIT_BOUNDS_H

#include <stdbool.h>
#include <stdint.h>

/* Reads the file. The job's first process reports on stderr what it may not or cannot read. Errors: the next call tries
 * again. Under the decision lock, before the first snapshot. */
void sg_bounds_read(void);

/* The user or the groups of this process have changed: the next decision reads the file again. Any thread. */
void sg_bounds_forget(void);

/* Whether the user's jobs have a largest limit. Any thread. */
bool sg_bounds_have_limit(void);

/* Returns `limit_bytes` (0: no limit), at most the user's largest limit, and notes in the slot which of them it is. Any
 * thread. */
uint64_t sg_bounds_limit(uint64_t limit_bytes, uint64_t machine_bytes);

/* Returns the machine's reserve, at least the user's smallest one, and notes in the slot which of them it is.
 * *floor_bytes becomes at least a quarter of the bound. Any thread. */
uint64_t sg_bounds_reserve(uint64_t reserve_bytes, uint64_t *floor_bytes, uint64_t machine_bytes);

#endif
