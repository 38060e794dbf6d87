/*
 * timeline.h - how usable memory and live bytes went: a file beside the segment, of one size however long the run.
 *
 * It thins itself: samples closer than the interval are one, and when there is no room for another, neighbours become
 * one and the interval doubles. What is kept of several is the least usable memory, and the most that was live with
 * what it was made of.
 *
 * It begins when a process becomes worth it (256 MiB or CUDA), marks a phase or is refused something; from then on
 * every look at the machine is a sample: the watchdog's, those of decisions, marks and refusals. What a large request
 * took is added to it. Nothing is done for malloc and free.
 */
#ifndef SG_PRELOAD_ACCOUNT_TIMELINE_H
#define SG_PRELOAD_ACCOUNT_TIMELINE_H

#include "sparkguard_abi.h"

/* Begins it, once: a load where it has begun or could not. Any thread, outside the decision lock. */
void sg_timeline_begin(void);

/* What the last snapshot at the machine saw is a sample. Under the decision lock. */
void sg_timeline_sample(void);

/* This process's, as it is written to; NULL: none. It stays mapped until a fork, in the child. */
const struct sg_timeline *sg_timeline_current(void);

/* One more sample; `line` has sample_count of them and an interval. One thread at a time. */
void sg_timeline_add(struct sg_timeline *line, const struct sg_sample *sample);

/* A copy as it was in one instant; what is just being added to the last sample leaves that out. */
void sg_timeline_copy(struct sg_timeline *copy, const struct sg_timeline *line);

/* The file was removed: makes another with the same samples. Under the decision lock. */
void sg_timeline_make_anew(void);

/* The process leaves nothing: removes the file, and another may begin. */
void sg_timeline_drop(void);

/* In a forked child: the time line is the parent's. */
void sg_timeline_refork(void);

#endif
