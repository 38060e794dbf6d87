/*
 * atomic_file.h - writes a document to a file that appears under its name only when it is complete.
 */
#ifndef SG_TOOLS_REPORT_ATOMIC_FILE_H
#define SG_TOOLS_REPORT_ATOMIC_FILE_H

#include <stdbool.h>
#include <stdio.h>

/* Returns whether the path exists and is not a regular file, such as /dev/stdout. Such a file is written in place. A
 * link is followed only if it is this user's or root's, in a folder where nobody else can make one; others are
 * replaced. */
bool report_output_is_in_place(const char *path);

/* Returns whether a name may be written to: a name that ends with `suffix` and is longer, "-" for stdout, or an
 * existing file that is not regular, such as /dev/stdout. */
bool report_output_may_write(const char *path, const char *suffix);

/* Calls `put` to write `content`, and closes stdout if that is the path. Returns the tool's exit status. On failure a
 * message on stderr says why `what`, such as "the drawing", could not be written. */
int report_output_write(const char *path, const char *what, void (*put)(FILE *stream, void *content), void *content);

#endif
