/*
 * segment.h - this process's segment: the part of the shared memory that holds all its numbers.
 *
 * The segment is mapped at one address for the life of the library. At first the mapping is private zero memory. On the
 * first slow path, a file in SPARKGUARD_DIR is filled with the mapping's contents and mapped over it. Pointers into the
 * segment therefore stay valid. If no file can be made, the mapping stays private: the library decides as before, and
 * only the report cannot show this process.
 */
#ifndef SG_PRELOAD_SHARED_SEGMENT_H
#define SG_PRELOAD_SHARED_SEGMENT_H

#include "base/atomics.h"
#include "base/compiler.h"
#include "sparkguard_abi.h"

#include <stdbool.h>

/* Size of the segment mapping, resident or not. SG_RECORD_LIMIT thread records need a little less than 1 MiB. */
enum { SG_SEGMENT_MAPPING_BYTES = 1 << 20 };

/* Appended to the name of a file that is not complete yet. */
#define SG_UNFINISHED_SUFFIX ".new"

union sg_segment_mapping {
    struct sg_segment segment;
    char bytes[SG_SEGMENT_MAPPING_BYTES];
};
_Static_assert(SG_SEGMENT_BYTES(SG_RECORD_LIMIT) <= SG_SEGMENT_MAPPING_BYTES, "the mapping has room for every record");

extern union sg_segment_mapping sg_segment_mapping;
#define sg_own (&sg_segment_mapping.segment)

/* Creates the segment's file and maps it; further calls cost one load. Call it while the process has a single thread if
 * possible: counts made by other threads during the change may be lost. Errors: tries again after 1 s if descriptors
 * are exhausted; otherwise prints a message once for the job and stays private. Any thread; blocks signals. */
void sg_segment_attach(void);

/* True if the file is mapped, so that a report can find this process. Any thread. */
bool sg_segment_is_shared(void);

/* The file's path. Valid after sg_segment_attach. */
const char *sg_segment_path(void);

/* Finds the whole pages of sg_segment_mapping behind the last record that fits into the file now: nothing uses them.
 * Any thread. */
void sg_segment_unused(uintptr_t *begin, uintptr_t *end);

/* The mode of files in SPARKGUARD_DIR: 0600, or SG_DIRECTORY_SHARED_MODE if a group shares it. Valid after
 * sg_segment_attach. */
unsigned sg_segment_file_mode(void);

/* The file's name without the directory. Valid after sg_segment_attach; a forked child gets a new one. */
const char *sg_segment_file_name(void);

/* How many thread records fit into the file now. Any thread. */
uint32_t sg_segment_record_capacity(void);

/* Makes the file larger after all `seen` records were taken. True also if another thread has done so meanwhile. False:
 * no space, no file, or SG_RECORD_LIMIT is reached. Any thread. */
bool sg_segment_grow(uint32_t seen);

/* In a forked child: replaces the parent's mapping by private zero memory. False if that failed: the parent's file is
 * still mapped, and nothing may be written. */
bool sg_segment_atfork_child(void);

/* Removes the file of a process that ends without leaving a record, and keeps sg_segment_check_place from making a new
 * one. Call it after slot.state was set. */
void sg_segment_remove(void);

/* Makes the file again if sg_segment_remove has removed it. */
void sg_segment_restore(void);

#define SG_EVIDENCE_BYTES (UINT64_C(16) << 20)

/* Whether this process leaves a record worth keeping however it ends: it took 16 MiB of its own, with resident
 * MAP_NORESERVE memory, used CUDA, or was refused. Any thread. */
bool sg_segment_is_evidence(void);

/* A scan found so much MAP_NORESERVE memory of this process's own resident. forget: in a forked child. */
void sg_segment_note_sparse(uint64_t bytes);
void sg_segment_forget_sparse(void);

/* Checks that the file still has its name. If the file was removed with its directory, makes a mirror: a new file in
 * the present directory, which gets copies of the segment. This function, requests, refusals, events and the end of the
 * process write the mirror. True if a mirror was made. Any thread. */
bool sg_segment_check_place(void);

/* (atomic) The mirror's mapping; NULL: there is none. */
extern struct sg_segment *sg_segment_mirror;

/* Copies the segment into the mirror, if there is one. Waits at most 100 ms for the lock. Any thread. */
void sg_segment_write_mirror(void);

/* As sg_segment_write_mirror; costs one load if there is no mirror. */
static inline void sg_segment_write_through(void)
{
    if (SG_UNLIKELY(sg_load_relaxed(&sg_segment_mirror) != NULL))
        sg_segment_write_mirror();
}

/* True if this process made the segment. False in a vfork child, which shares the parent's memory. Any thread. */
bool sg_segment_is_own(void);

/* Add to the ring of refusals or events, and write the mirror. Any thread. */
void sg_segment_add_refusal(const struct sg_refusal *refusal);
void sg_segment_add_event(const char *event);

#endif
