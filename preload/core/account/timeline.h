/*
 * timeline.h - the time line: usable memory and live bytes over time, in a file beside the segment.
 *
 * The file has one size (64 KiB), however long the run. Samples closer together than the interval are merged. When the
 * file is full, neighbouring samples are merged and the interval doubles. A merged sample keeps the lowest usable
 * memory, and the highest live bytes with their domains.
 *
 * The time line begins when the process holds 256 MiB, uses CUDA, marks a phase or is refused a request. From then on
 * each snapshot of the machine gives a sample: those of the watchdog, of decisions, marks and refusals. A sample after
 * a large request includes the bytes of that request. malloc and free on the fast path add no samples.
 */
#ifndef SG_PRELOAD_ACCOUNT_TIMELINE_H
#define SG_PRELOAD_ACCOUNT_TIMELINE_H

#include "sparkguard_abi.h"

/* Begins the time line, once. Costs one load if it has begun or could not begin. Any thread; not under
 * sg_decision_lock, which this function takes. */
void sg_timeline_begin(void);

/* Adds the last snapshot of the machine and the live bytes as a sample. Under sg_decision_lock. */
void sg_timeline_sample(void);

/* This process's time line, which other threads write to; NULL: none. It stays mapped until a fork, in the child. */
const struct sg_timeline *sg_timeline_current(void);

/* Adds a sample to `line`, whose sample_count and interval_ns are set. One thread at a time per time line. */
void sg_timeline_add(struct sg_timeline *line, const struct sg_sample *sample);

/* Copies a time line as it was at one instant, after at most four tries. A last sample that is being changed meanwhile
 * is left out. Any thread. */
void sg_timeline_copy(struct sg_timeline *copy, const struct sg_timeline *line);

/* Makes a new file with the same samples, if the old file was removed. Under sg_decision_lock. */
void sg_timeline_make_anew(void);

/* Removes the file of a process that leaves no record. Another time line may begin afterwards. */
void sg_timeline_drop(void);

/* In a forked child: unmaps the time line, which is the parent's. */
void sg_timeline_atfork_child(void);

#endif
