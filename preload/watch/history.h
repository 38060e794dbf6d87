/*
 * history.h - what survives the process and the machine: copies of its segment and time line in SPARKGUARD_HISTORY, at
 * most 5 s old.
 *
 * Kept by a helper (service_thread.h) of its own, in processes that leave evidence (sg_segment_is_evidence). Its file
 * system may block for as long as it likes: nobody waits for it but for a moment, before fork and at the end. The
 * helper has a table of descriptors of its own, so nothing that the program does to its own reaches ours, and ours take
 * none of its numbers. Not kept below the reserve alone: what happened there is what one wants to know after the power
 * was cut.
 */
#ifndef SG_PRELOAD_WATCH_HISTORY_H
#define SG_PRELOAD_WATCH_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

/* Begins to keep it, if there is reason to. Behind a request, outside all layers and locks. */
void sg_history_consider(void);

/* The record has just been marked with the process's end: has it saved, and waits for that a tenth of a second at most.
 * With `may_begin` also where no helper is there: not in a signal handler. */
void sg_history_end(bool may_begin);

/* sg_watchdog_end_helpers: the helper's part. And in a forked child. */
bool sg_history_stop(void);
void sg_history_await(uint64_t until_ns);
void sg_history_refork(void);

#endif
