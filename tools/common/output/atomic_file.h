/*
 * atomic_file.h - writes a document to a file that appears under its name only when it is complete.
 */
#ifndef SG_TOOLS_COMMON_OUTPUT_ATOMIC_FILE_H
#define SG_TOOLS_COMMON_OUTPUT_ATOMIC_FILE_H

#include <stdbool.h>
#include <stdio.h>

/* Returns whether the path exists and is not a regular file, such as /dev/stdout. Such a file is written in place. A
 * link is followed only if it is this user's or root's, in a folder where nobody else can make one; others are
 * replaced, and so is another user's FIFO, which would keep this tool until somebody reads. */
bool atomic_file_is_in_place(const char *path);

/* Calls `put` to write `content`, and closes stdout if the path is "-". Returns 0, or the error. */
int atomic_file_write(const char *path, void (*put)(FILE *stream, void *content), void *content);

#endif
