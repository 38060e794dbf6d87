/*
 * job.h - the peak of the job: the most bytes that all its processes held at one time, for the report. Any thread, any
 * time.
 *
 * A process that grows sums up all processes of the job after its own change. If several processes grow at the same
 * moment, the last of them sees all changes. So the sum is never below what the job holds while no call is under way.
 *
 * Bytes that move during the summing may be counted twice. A new peak is therefore summed up a second time, and the
 * lower sum counts. Before the second sum, entries of killed processes are marked dead.
 */
#ifndef SG_PRELOAD_SHARED_JOB_H
#define SG_PRELOAD_SHARED_JOB_H

#include "base/atomics.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

/* Sums up what all processes of the job hold now, and raises the peak. */
void sg_job_add_up(void);

/* Call when this process's `granted_bytes` have grown; they include bytes it was forked with. Costs a few loads if no
 * other process has a registry entry. */
static SG_INLINE void sg_job_note_peak(uint64_t granted_bytes)
{
    if (granted_bytes > sg_load_relaxed(&sg_own->job_peak_bytes) || sg_load_relaxed(&sg_own->slot.sparse_bytes) != 0 ||
        sg_load(&sg_entry_registry()->entry_used) > 1)
        sg_job_add_up();
}

/* A scan found `bytes` of this process's MAP_NORESERVE mappings resident. They count in SPARKGUARD_LIMIT. */
void sg_job_note_sparse(uint64_t bytes);

/* In a forked child: forgets the sums of the other processes. */
void sg_job_atfork_child(void);

/* Raises this process's peak to the one that processes without a record have left in its registry entry. */
static inline void sg_job_take_left_peak(void)
{
    sg_raise_to(&sg_own->job_peak_bytes, sg_load_relaxed(&sg_entry_own()->slot.reported_peak_bytes));
}

/* For a process that ends without a record: leaves its peak in the registry entries of all other processes of the
 * job. */
void sg_job_leave_peak(void);

#endif
