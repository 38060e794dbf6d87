/*
 * history_file.h - one process's file in SPARKGUARD_HISTORY. May block; for one thread at a time.
 */
#ifndef SG_PRELOAD_WATCH_HISTORY_FILE_H
#define SG_PRELOAD_WATCH_HISTORY_FILE_H

#include <stdbool.h>

/* Puts a copy of the segment in place of the last one, if it has changed since, and with it one of the time line.
 * 0 or -errno; then the last copy is still there. With `is_durable` the copy is on the disk when this returns; else the
 * kernel writes it later. */
long sg_history_save(bool is_durable);

/* In a forked child, whose file is another one. */
void sg_history_forget(void);

#endif
