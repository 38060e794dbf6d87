/*
 * atomic_file.h - a document that the user wants in a file: whole under its name, or not there at all.
 */
#ifndef SG_TOOLS_REPORT_ATOMIC_FILE_H
#define SG_TOOLS_REPORT_ATOMIC_FILE_H

#include <stdbool.h>
#include <stdio.h>

/* Whether there is something that is no regular file, as /dev/stdout or a link: that is written in place and stays. */
bool report_output_is_in_place(const char *path);

/* Whether a name may be written to: one that ends with `suffix` and is more than that, "-" for stdout, or something
 * there that is no regular file, as /dev/stdout. */
bool report_output_may_write(const char *path, const char *suffix);

/* Has `put` write `content`, and ends stdout where that is the path. Exit status of the tool; says on stderr why
 * `what`, as in "the drawing", could not be written. */
int report_output_write(const char *path, const char *what, void (*put)(FILE *stream, void *content), void *content);

#endif
