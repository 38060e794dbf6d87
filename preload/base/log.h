/*
 * log.h - the few lines people see.
 *
 * A line goes to descriptor 2 by one write, if that is still the standard error that the program started with: the
 * same device and inode. A terminal will do as well. Never if 2 was closed at the start: a program may well open its
 * data or its socket there. Never blocks, never raises SIGPIPE, allocates nothing. Any thread.
 */
#ifndef SG_PRELOAD_BASE_LOG_H
#define SG_PRELOAD_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

/* Remembers what descriptor 2 is; set-up calls it once. */
void sg_log_begin(void);

/* Writes `line` (without a newline, at most 1 KiB); control characters as '?'. */
void sg_log_line(const char *line);

/* True at most once a second, for the caller who may speak now. */
bool sg_log_may_speak(uint64_t *last_ns);

#endif
