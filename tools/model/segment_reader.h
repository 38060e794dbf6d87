/*
 * segment_reader.h - the files of SPARKGUARD_DIR as bytes that can be believed.
 *
 * A file may be torn, made up to harm, or no file at all. It is read (never mapped) with a cap on its size, without
 * following links, and every number that anything later indexes, adds or prints by is checked here. What passes may
 * still be untrue, but nothing behind this module needs to be careful about it, but for texts: those hold any bytes,
 * end at their room and may lack a NUL.
 */
#ifndef SG_TOOLS_MODEL_SEGMENT_READER_H
#define SG_TOOLS_MODEL_SEGMENT_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sparkguard_abi.h"

enum { MODEL_WHY_CAPACITY = 192 };

enum model_verdict {
    MODEL_GOOD,
    MODEL_GONE, /* it went away, or its owner is still making it: nothing to say */
    MODEL_BAD,  /* `why` says in words what is wrong */
};

struct model_segment {
    struct sg_segment *content; /* with record_count records behind it */
    const char *name;           /* the file's */
    int64_t modified_ns;        /* when the file was last written to by a system call */
    uint32_t record_count;
    bool has_owner;  /* somebody held the lock when the file was read, or may: it could not be opened */
    unsigned waited; /* how often a file that is not set up was waited for: anybody can make many of those */
};

/* Memory for one file at a time; good until the next read. */
void model_segment_begin(struct model_segment *segment);
void model_segment_end(struct model_segment *segment);
enum model_verdict model_segment_read(struct model_segment *segment, int directory, const char *name,
                                      char why[MODEL_WHY_CAPACITY]);

/* Whether a file name is a segment's: "<anything>.segment", not hidden. */
bool model_is_segment_name(const char *name);

/* The names of a directory's segments, sorted, and how many; -errno where it cannot be read. */
long model_segment_names(int directory, char ***names);
void model_segment_names_free(char **names, long count);

/* The lock on an open segment: true if somebody else holds it. */
bool model_is_locked(int fd);

/* SPARKGUARD_DIR, else /dev/shm/sparkguard-UID. The caller frees. */
char *model_default_directory(void);

/* SPARKGUARD_HISTORY, else the user's folder for it; NULL where there is none. The caller frees. */
char *model_history_directory(void);

#endif
