/*
 * segment.h - this process's part of the shared memory: where all its numbers live.
 *
 * The window has one address for the life of the library. At first it is private zero memory; on the first slow path
 * that deserves it a file in SPARKGUARD_DIR takes its place, contents and all, so no pointer into it ever changes. If
 * no file can be made it stays private: decisions go on, only the report cannot show them.
 */
#ifndef SG_PRELOAD_SHARED_SEGMENT_H
#define SG_PRELOAD_SHARED_SEGMENT_H

#include "base/atomics.h"
#include "base/compiler.h"
#include "sparkguard_abi.h"

#include <stdbool.h>

enum { SG_WINDOW_BYTES = 1 << 20 };

/* Behind the name of a file that is being made. */
#define SG_UNFINISHED_SUFFIX ".new"

union sg_segment_mapping {
    struct sg_segment segment;
    char bytes[SG_WINDOW_BYTES];
};
_Static_assert(SG_SEGMENT_BYTES(SG_RECORD_LIMIT) <= SG_WINDOW_BYTES, "the window has room for every record");

extern union sg_segment_mapping sg_segment_mapping;
#define sg_own (&sg_segment_mapping.segment)

/* Puts the file in place, once; later calls cost one load. Call it while the process has a single thread wherever
 * possible: what other threads count in the instant of the change may be lost. */
void sg_segment_attach(void);

/* True if a report can find this process. */
bool sg_segment_is_shared(void);

/* The file's path. After the segment was attached. */
const char *sg_segment_path(void);

/* The mode of files in SPARKGUARD_DIR: 0600, or 0660 where it is shared by a group. After the segment was attached. */
unsigned sg_segment_file_mode(void);

/* The name of this process's file, once it was attached; it changes in a forked child. */
const char *sg_segment_file_name(void);

/* Thread records there is room for now, and making more than the `seen` that were all taken: false if there is no room. */
uint32_t sg_segment_record_capacity(void);
bool sg_segment_grow(uint32_t seen);

/* In a forked child: the window is the parent's. Replaces it by private zero memory. False if even that failed: then
 * nothing may be written to it. */
bool sg_segment_refork(void);

/* The process ends and leaves nothing: removes the file, and nobody makes it anew. After the state was set. */
void sg_segment_remove(void);

/* Makes the file anew if sg_segment_remove has removed it. */
void sg_segment_restore(void);

/* Whether this process leaves something worth keeping however it ends: it took 16 MiB of its own, used CUDA or was
 * refused. */
bool sg_segment_is_evidence(void);

/* Where the file was removed with its directory, makes it anew in the directory that is there now: from then on it
 * is a mirror of the window, written by each call of this, by requests, refusals and events, and at the end. True if
 * it was made anew. */
bool sg_segment_check_place(void);

/* Writes the mirror if there is one. */
extern struct sg_segment *sg_segment_mirror; /* (atomic) */
void sg_segment_write_mirror(void);
static inline void sg_segment_write_through(void)
{
    if (SG_UNLIKELY(sg_load_relaxed(&sg_segment_mirror) != NULL))
        sg_segment_write_mirror();
}

/* True if this process made the segment: a vfork child, sharing our memory, did not. */
bool sg_segment_is_own(void);

void sg_segment_add_refusal(const struct sg_refusal *refusal);
void sg_segment_add_event(const char *what);

#endif
