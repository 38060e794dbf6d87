/*
 * same_bytes.h - bytes that several processes hold and that exist once: ranges of shared memory (tmpfs_ranges.h), and
 * memory that forked children share with a parent.
 *
 * A registry entry names these bytes: it lists its ranges of shared memory and its ancestors. A refresh gathers the
 * names. It finds how many bytes all processes hold or promise together under these names, for the machine, for each
 * cgroup of ours and for our job. Under the decision lock, except where noted.
 *
 * Cost of gathering: one load for each process; a sort of all ranges if any have changed since the last snapshot.
 */
#ifndef SG_PRELOAD_SHARED_SAME_BYTES_H
#define SG_PRELOAD_SHARED_SAME_BYTES_H

#include "sparkguard_abi.h"

#include <stdbool.h>

/* The groups of processes whose bytes are summed up: the machine, our cgroups in the order of sg_peers.level, our
 * job. */
enum {
    SG_SAME_ON_MACHINE = 0,
    SG_SAME_IN_LEVEL = 1,
    SG_SAME_IN_JOB = SG_SAME_IN_LEVEL + SG_ENTRY_LEVELS,
    SG_SAME_COUNT
};

/* Bytes of the gathered ranges beyond this process's own. */
struct sg_same_bytes {
    uint64_t promised[SG_SAME_COUNT]; /* what the processes of each group together have promised */
    uint64_t held_by_job;             /* what the processes of the job together hold */
};

/* Gathers the ranges of all registry entries. Call it before the entries' sums are read. */
const struct sg_same_bytes *sg_same_bytes_gather(void);

/* The promised or granted bytes of one registry entry. */
struct sg_named {
    uint64_t bytes;
    uint64_t by_name_bytes;  /* the part that was gathered as ranges, and must not be counted again */
    uint64_t in_doubt_bytes; /* the part that may belong to ranges once the owner has completed its change */
};

/* Reads the promised and granted bytes of entry `number`. Returns 0 if they belong to the ranges that were gathered.
 * Otherwise returns the version of the ranges that is being written or was written since. */
uint64_t sg_same_bytes_read(uint32_t number, const struct sg_registry_entry *entry, struct sg_named *promised,
                            struct sg_named *granted);

/* Bytes that the job's forked children still hold of memory that their parents have freed; no other sum counts them.
 * Call it after the entries' sums were read: such bytes leave the parent's sums first. */
uint64_t sg_same_bytes_inherited_by_job(void);

/* A request for units [begin, end) of shared memory would promise `bytes`. Returns how many of them processes of group
 * `group` have promised already. */
uint64_t sg_same_bytes_known(uint32_t group, uint64_t begin, uint64_t end, uint64_t bytes);

/* Bytes of units [begin, end) that other processes of the job hold and this process does not. */
uint64_t sg_same_bytes_of_job(uint64_t begin, uint64_t end);

/* ---- what the jobs with claims hold (claims.h) ---- */

/* Bytes that the processes of a job together held of shared memory when it was gathered. */
uint64_t sg_same_bytes_held_by(uint64_t job);

/* Whether the ranges of entry `number` have changed since they were gathered, or are being changed. *gathered_bytes:
 * the part that was gathered, 0 if unchanged. */
bool sg_same_bytes_has_changed(uint32_t number, const struct sg_registry_entry *entry, uint64_t *gathered_bytes);

/* Memory that forked children still hold and their parents do not: begin, note each process, then read the results from
 * number 0 on, each with the job that holds it. heirs returns false behind the last one. */
void sg_same_bytes_begin_heirs(void);
void sg_same_bytes_note_heir(const struct sg_registry_entry *entry);
bool sg_same_bytes_heirs(uint32_t number, uint64_t *job, uint64_t *bytes);

/* Gathers anew and returns the bytes that the job holds as shared memory, and as parents' memory that no parent holds
 * any more. Has a lock and working memory of its own. Any thread, any time. */
uint64_t sg_same_bytes_of_job_now(void);

/* For the observer, which alone uses several: from now on all processes count as of this process's job, or no
 * longer. */
void sg_same_bytes_count_every_job(bool counts);

/* In a forked child: forgets all that was gathered. */
void sg_same_bytes_atfork_child(void);

#endif
