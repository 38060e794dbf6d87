/*
 * timeline_reader.h - a process's time line as samples that can be believed: in order of time, with figures that no sum
 * overflows.
 */
#ifndef SG_TOOLS_MODEL_TIMELINE_READER_H
#define SG_TOOLS_MODEL_TIMELINE_READER_H

#include "model/segment_reader.h"

struct model_timeline {
    struct sg_sample *samples; /* the caller frees */
    size_t count;
};

/* The file beside that segment. GONE: there is none, or nothing in it yet. */
enum model_verdict model_timeline_read(struct model_timeline *timeline, const char *segment_path,
                                       char why[MODEL_WHY_CAPACITY]);

#endif
