/*
 * own_entry.h - this process's entry in the registry: its sums, which any thread changes in step with the process's own
 * words, without a lock. registry.c takes the entry and gives it up.
 */
#ifndef SG_PRELOAD_SHARED_OWN_ENTRY_H
#define SG_PRELOAD_SHARED_OWN_ENTRY_H

#include "sparkguard_abi.h"

#include <stdbool.h>

/* The ledger and the registry entry there now. They change when this process joins. Any thread. */
struct sg_registry *sg_entry_registry(void);
struct sg_registry_entry *sg_entry_own(void);

/* The same, or NULL in a process that decides alone. And what the registry makes them. */
struct sg_registry *sg_entry_shared_registry(void);
struct sg_registry_entry *sg_entry_shared_own(void);
void sg_entry_set_registry(struct sg_registry *ledger);
void sg_entry_set_own(struct sg_registry_entry *entry);

/* The sums that a registry entry shows, and the word of this process that each follows. */
enum sg_sum {
    SG_SUM_GRANTED,   /* slot.granted_bytes */
    SG_SUM_PROMISED,  /* slot.promised_bytes */
    SG_SUM_SPARSE,    /* slot.sparse_bytes */
    SG_SUM_DEVICE,    /* domain[DEVICE].granted_bytes, in the registry entry slot.device_bytes */
    SG_SUM_FLIGHT,    /* slot.in_flight_bytes, and its three parts: */
    SG_SUM_BOUNDED,   /* bounded by cgroups */
    SG_SUM_UNBOUNDED, /* of the machine, but not bounded by cgroups */
    SG_SUM_DISCRETE,  /* of discrete devices */
    SG_SUM_PINNED,    /* domain[PINNED].granted_bytes */
    SG_SUM_MANAGED,   /* domain[MANAGED].granted_bytes */
    SG_SUM_COUNT
};

/* Changes a word and its registry entry in step: when they return, everybody can see it, and no other thread can take
 * it back. The registry entry is raised first and lowered last, so it never shows too little. lower stops at zero and
 * returns what was missing; exchange is a compare-and-swap. Any thread, any time. */
uint64_t sg_entry_raise(enum sg_sum sum, uint64_t bytes); /* returns the word's new value */
uint64_t sg_entry_lower(enum sg_sum sum, uint64_t bytes);
bool sg_entry_exchange(enum sg_sum sum, uint64_t *expected, uint64_t desired);

/* The same for one sum and another that it is part of. raise returns the part's new value. */
uint64_t sg_entry_raise_both(enum sg_sum part, enum sg_sum whole, uint64_t bytes, uint64_t *whole_now);
void sg_entry_lower_both(enum sg_sum part, enum sg_sum whole, uint64_t bytes);

/* `bytes` of this process may come back, or come, without a promise: growth by that much says nothing of promises. Any
 * thread. */
void sg_entry_note_unpromised(uint64_t bytes);

/* Mends what changes lost while this process was taking its registry entry. False: some sum could not be compared,
 * because changes were under way. */
bool sg_entry_reconcile(void);

/* The ranges of shared memory that this process maps (tmpfs_ranges.h), and what of its promises is missing there:
 * begin, change promised_bytes or granted_bytes, end. Under sg_tracker_maps_lock. */
void sg_entry_begin_files(void);
void sg_entry_end_files(const struct sg_memory_file *file, uint32_t count);

/* The sum of those ranges, as the registry entry shows it. Changed is told whenever the ranges are others than
 * before. */
void sg_entry_set_file_bytes(uint64_t bytes);
void sg_entry_note_file_change(void);

/* In a forked child: what of its parent's promises is missing here, too. It counts, once for all children of that
 * parent, when the parent is gone. Under the decision lock. */
void sg_entry_set_inherited(uint64_t bytes);

/* Bytes of this process's managed memory that are not in the CPU's page tables, as of the last scan; and fewer,
 * because so many were freed. Any thread. */
void sg_entry_set_managed_missing(uint64_t bytes);
void sg_entry_lower_managed_missing(uint64_t bytes);

/* In a forked child: nothing is in flight, and the process decides alone. After both were set to NULL. */
void sg_entry_refork_sums(void);

/* Whether the owner is inside the cgroup. */
bool sg_entry_is_member(const struct sg_registry_entry *entry, uint64_t level);

/* `bytes` (negative: no more) are in flight from `pool`: SG_POOL_..., or a device's identity. Any thread. */
void sg_entry_flight_add(uint64_t pool, int64_t bytes);

/* The same for what is no more in flight because it is there: the kernel's figures show it. Any thread, without the
 * lock. */
void sg_entry_flight_complete(uint64_t pool, uint64_t bytes);

/* What this process ever landed: what did so since a look began may not be in that look. To be read behind
 * sg_entry_own_flight. */
uint64_t sg_entry_own_landed(bool is_bounded_only);

/* What this process has in flight from the machine, or the part of it that cgroups bound. Any thread. */
uint64_t sg_entry_own_flight(bool is_bounded_only);

uint64_t sg_entry_own_device_flight(uint64_t device);

uint64_t sg_entry_flight_device(void); /* the discrete device, SG_UNKNOWN: several */

#endif
