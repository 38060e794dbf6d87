/*
 * history_file.h - this process's files in SPARKGUARD_HISTORY.
 *
 * Both functions may block. Not thread-safe: one thread at a time.
 */
#ifndef SG_PRELOAD_WATCH_HISTORY_FILE_H
#define SG_PRELOAD_WATCH_HISTORY_FILE_H

#include <stdbool.h>

/* Replaces the last copies of the segment and the time line, if the segment has changed since. `is_durable`: the copies
 * are on the disk at return; else the kernel writes them later. Returns 0 or -errno; after an error the last copy of
 * the segment is still there. */
long sg_history_save(bool is_durable);

/* In a forked child: nothing was saved yet, because the child has files of its own. */
void sg_history_forget(void);

#endif
