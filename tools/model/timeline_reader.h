/*
 * timeline_reader.h - reads a process's time line and verifies it. The samples are sorted by time, and no sum of their
 * figures overflows.
 */
#ifndef SG_TOOLS_MODEL_TIMELINE_READER_H
#define SG_TOOLS_MODEL_TIMELINE_READER_H

#include "model/segment_reader.h"

struct model_timeline {
    struct sg_sample *samples;
    size_t count;
};

/* Reads the time line beside a segment. GONE: the file is absent or has no sample yet. BAD: `why` is the reason. */
enum model_verdict model_timeline_read(struct model_timeline *timeline, const char *segment_path,
                                       char why[MODEL_WHY_CAPACITY]);

#endif
