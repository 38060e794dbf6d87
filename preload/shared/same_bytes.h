/*
 * same_bytes.h - bytes that several processes hold under a name of their own, and that exist once: ranges of shared
 * memory (tmpfs_ranges.h), and memory that children have from a parent by fork.
 *
 * Each registry entry tells what of its sums has another name. A look gathers these names and finds, for the
 * machine, for each of our cgroups and for our job, how much all processes hold or promise together under all names.
 * Under the decision lock. Cost: for each process a load; where names have changed since the last snapshot, a sort of
 * all of them.
 */
#ifndef SG_PRELOAD_SHARED_SAME_BYTES_H
#define SG_PRELOAD_SHARED_SAME_BYTES_H

#include "sparkguard_abi.h"

#include <stdbool.h>

/* The groups that count together: the machine, our cgroups in the order of sg_peers.level, our job. */
enum {
    SG_SAME_ON_MACHINE = 0,
    SG_SAME_IN_LEVEL = 1,
    SG_SAME_IN_JOB = SG_SAME_IN_LEVEL + SG_ENTRY_LEVELS,
    SG_SAME_COUNT
};

/* Gathers what the entries show. Before their sums are read. */
void sg_same_bytes_gather(void);

/* What a registry entry shows as promised or as granted. */
struct sg_named {
    uint64_t bytes;
    uint64_t by_name_bytes;  /* the part that was gathered by another name */
    uint64_t in_doubt_bytes; /* the part that may be gathered by another name when the owner has finished its change */
};

/* Reads both, which change together with the registry entry's ranges. Returns 0 if they belong to the ranges that were
 * gathered, else the version of the ranges that is being made, or has been made since. A registry entry in another
 * ledger (number SG_ENTRY_CAPACITY and more) has no names. */
uint64_t sg_same_bytes_read(uint32_t number, const struct sg_registry_entry *entry, struct sg_named *promised,
                            struct sg_named *granted);

/* The bytes that all of them together are promised or hold by those names, beyond this process's own. */
uint64_t sg_same_bytes_promised(uint32_t where);
uint64_t sg_same_bytes_held_by_job(void);

/* The bytes that children hold of memory that their parents no longer hold, and that no process counts. */
uint64_t sg_same_bytes_inherited_by_job(void);

/* Of a request for units [begin, end) of shared memory of which `bytes` are missing: what somebody was promised
 * already. */
uint64_t sg_same_bytes_known(uint32_t where, uint64_t begin, uint64_t end, uint64_t bytes);

/* The bytes of these units that others of the job hold and this process does not. */
uint64_t sg_same_bytes_of_job(uint64_t begin, uint64_t end);

/* The bytes that the job holds of shared memory, and of parents' memory that no parent holds any more, as its
 * entries show now. Any thread, any time. */
uint64_t sg_same_bytes_of_job_now(void);

/* In a forked child. */
void sg_same_bytes_refork(void);

#endif
