/*
 * segment_version_1.h - segments of ABI version 1. A running process may still have a library of that version, and the
 * history keeps its files.
 *
 * Up to unaccounted_bytes the two layouts are the same. Version 1 shows memory files of another kind, which are left
 * out here, and call sites without what they held at the peak and at the last refusal, but with longer names.
 */
#ifndef SG_TOOLS_MODEL_SEGMENT_VERSION_1_H
#define SG_TOOLS_MODEL_SEGMENT_VERSION_1_H

#include <stddef.h>

/* Turns the first `length` of `room` bytes into a segment of this version, if they are a whole one of version 1.
 * Returns the length of the result. */
size_t model_segment_from_version_1(char *bytes, size_t length, size_t room);

#endif
