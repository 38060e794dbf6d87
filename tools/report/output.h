/*
 * output.h - where the report writes: a file, stdout, or a file that is not regular.
 */
#ifndef SG_TOOLS_REPORT_OUTPUT_H
#define SG_TOOLS_REPORT_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

/* Returns whether a name may be written to: a name that ends with `suffix` and is longer, "-" for stdout, or an
 * existing file that is not regular, such as /dev/stdout. */
bool report_output_may_write(const char *path, const char *suffix);

/* Calls `put` to write `content`, and closes stdout if that is the path. Returns the tool's exit status. On failure a
 * message on stderr says why `what`, such as "the drawing", could not be written. */
int report_output_write(const char *path, const char *what, void (*put)(FILE *stream, void *content), void *content);

#endif
