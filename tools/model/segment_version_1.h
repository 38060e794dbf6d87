/*
 * segment_version_1.h - converts segments of ABI version 1. Such segments come from running processes with a library of
 * that version, and from the history.
 *
 * Both layouts are the same up to unaccounted_bytes. Memory files of version 1 have another layout and are dropped.
 * Call sites of version 1 lack at_peak_bytes and at_refusal_bytes; their library names may be longer and are cut.
 */
#ifndef SG_TOOLS_MODEL_SEGMENT_VERSION_1_H
#define SG_TOOLS_MODEL_SEGMENT_VERSION_1_H

#include <stddef.h>

/* Converts a complete segment of version 1 in place; other content does not change. `length` is the length of the
 * content and `capacity` that of the buffer, in bytes. Returns the new length. */
size_t model_segment_from_version_1(char *bytes, size_t length, size_t capacity);

#endif
