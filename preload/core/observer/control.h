/*
 * control.h - the one way in which a tool writes to the registry: for sparkguard --set. The tool takes no entry of its
 * own. Not thread-safe.
 */
#ifndef SG_PRELOAD_OBSERVER_CONTROL_H
#define SG_PRELOAD_OBSERVER_CONTROL_H

#include "shared/settings.h"
#include "sparkguard_abi.h"

/* Maps the registry in `directory`. 0 or a negative errno number; -ENOENT: there is none; -EPROTO: there is none that
 * this version can share. */
int sg_control_begin(const char *directory);

/* The number of processes of the job that share the registry. */
uint32_t sg_control_count(uint64_t job);

/* Sets the words of *set that are not 0 for a job of which a process lives. `run`: SG_RUN of the job's first process,
 * where no process of the job has an entry. 0 or a negative errno number. -ENOENT: the job has ended, or does not share
 * this registry. -EBUSY: another process has been writing for a second, or is stopped. -ENOSPC: the registry is
 * full. */
int sg_control_set(uint64_t job, uint64_t run, const struct sg_settings *set);

/* Lowers the granted claim of a job to `bytes`; 0: gives it up. 0 or a negative errno number. -ENOENT: the job has
 * none.
 * -ERANGE: it is not larger. */
int sg_control_lower_claim(uint64_t job, uint64_t bytes);

/* Gives up the claim that process `pid` of the job has made: its launcher does not need it any more. */
void sg_control_give_up_claim(uint64_t job, uint32_t pid);

/* Wakes all who wait and all idle processes: they take over what was set. */
void sg_control_wake(void);

#endif
