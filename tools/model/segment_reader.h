/*
 * segment_reader.h - reads the segments of SPARKGUARD_DIR and verifies them.
 *
 * A file may be torn, malicious or no regular file. The reader copies it (never maps it), up to a maximum size and
 * without following links. It checks every number that later code uses as index, summand or format argument. Figures of
 * a verified segment may be untrue, but cannot harm later code. Texts remain unchecked: they hold any bytes, up to
 * their array length, and may lack a NUL.
 */
#ifndef SG_TOOLS_MODEL_SEGMENT_READER_H
#define SG_TOOLS_MODEL_SEGMENT_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "sparkguard_abi.h"

enum { MODEL_WHY_CAPACITY = 192 };

enum model_verdict {
    MODEL_GOOD,
    MODEL_GONE, /* removed, or its owner is still setting it up: not worth a complaint */
    MODEL_BAD,  /* rejected; `why` is the reason in words */
};

struct model_segment {
    struct sg_segment *content; /* followed by record_count thread records */
    const char *name;           /* name of the file */
    int64_t modified_ns;        /* time of the last write(2) to the file; writes through the mapping do not count */
    uid_t owner;                /* of the file */
    dev_t device;               /* of the file, as its inode */
    ino_t inode;
    uint32_t record_count;
    bool has_owner;  /* the file was locked when read, or could not be opened and may be locked */
    unsigned waited; /* number of waits for files not yet set up; bounded, since anybody can make many such files */
};

/* Allocates the buffer of a reader. One reader serves many files, one at a time. */
void model_segment_begin(struct model_segment *segment);
/* Reads and verifies the file `name` in an open directory. After GOOD the content is valid until the next read; for
 * BAD, `why` is the reason. Waits up to 15 ms for a file that is not set up yet. */
enum model_verdict model_segment_read(struct model_segment *segment, int directory, const char *name,
                                      char why[MODEL_WHY_CAPACITY]);

/* Returns whether a file name is one of a segment: "<anything>.segment", not hidden. */
bool model_is_segment_name(const char *name);

/* Lists the segments of an open directory, at most 65536, sorted by name. Returns their number, or -errno. */
long model_segment_names(int directory, char ***names);

/* Returns whether another process holds the lock of an open segment. */
bool model_is_locked(int fd);

/* Returns SPARKGUARD_DIR, or if unset the user's default as sg_directory_default() has it. */
char *model_default_directory(void);

/* Returns SPARKGUARD_HISTORY, or the user's default folder if unset; NULL if there is none. */
char *model_history_directory(void);

#endif
