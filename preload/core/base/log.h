/*
 * log.h - lines on standard error.
 *
 * A line is written to descriptor 2 by one write. Descriptor 2 must be the standard error that the program started with
 * (same device and inode), or a terminal. Nothing is written if 2 was closed at the start, because the program may have
 * opened a data file or a socket there. On a terminal, the line replaces what stands before the cursor, such as a
 * progress bar, and is broken between words at the width that the terminal had at the start; a file gets no escape
 * sequences and whole lines. Never blocks, never raises a signal (file.h), never allocates. Any
 * thread.
 */
#ifndef SG_PRELOAD_BASE_LOG_H
#define SG_PRELOAD_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

/* Notes device and inode of descriptor 2. Set-up calls it once; further calls do nothing. */
void sg_log_begin(void);

/* Writes `line` and a newline, or nothing if the write would block. `line` has no newline and is cut to 1024 bytes;
 * control characters become '?'. */
void sg_log_line(const char *line);

/* The same for two lines that no line of another thread or process comes between. Both together are cut to 1024 bytes.
 */
void sg_log_lines(const char *first, const char *second);

/* Limits messages to one per second. True: the caller may print, and *last_ns is set to now. `last_ns` (atomic) belongs
 * to one kind of message and is 0 at first. */
bool sg_log_may_speak(uint64_t *last_ns);

#endif
