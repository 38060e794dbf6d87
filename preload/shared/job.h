/*
 * job.h - the most that all processes of the job held at one time, for the report. Any thread, any time.
 *
 * A process that takes more adds up what all have now, after its own change, so that of several that grow at one
 * moment the last one finds them all. The sum is never below what the job holds while no call is under way. Bytes
 * that move while the sum is made may be found twice: so it is added up again before it counts, and the lower sum
 * does. A process that was killed is looked for before that.
 */
#ifndef SG_PRELOAD_SHARED_JOB_H
#define SG_PRELOAD_SHARED_JOB_H

#include "base/atomics.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

/* Adds up what all processes of the job hold now. */
void sg_job_add_up(void);

/* This process holds more than before: `granted_bytes`, of which it may have been forked with some. Others are
 * looked for only where there are some on the machine. */
static SG_INLINE void sg_job_note_peak(uint64_t granted_bytes)
{
    if (granted_bytes > sg_load_relaxed(&sg_own->job_peak_bytes) || sg_load_relaxed(&sg_own->slot.sparse_bytes) != 0 ||
        sg_load(&sg_entry_registry()->entry_used) > 1)
        sg_job_add_up();
}

/* A scan found `bytes` resident of this process's MAP_NORESERVE mappings, which count in SPARKGUARD_LIMIT. */
void sg_job_note_sparse(uint64_t bytes);

/* The bytes that the job's processes of another version hold, at each look at them. */
void sg_job_note_foreign(uint64_t bytes);

/* In a forked child: nothing is known of the others. */
void sg_job_refork(void);

/* Takes over what others have seen that leave no record. */
void sg_job_read_mail(void);

/* This process leaves no record: what it has seen goes to all others of the job that run. */
void sg_job_send_mail(void);

#endif
