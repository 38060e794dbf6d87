/*
 * own_entry.h - this process's entry in the registry: its sums, which any thread changes in step with the process's own
 * words, without a lock. registry.c takes the entry and gives it up.
 */
#ifndef SG_PRELOAD_SHARED_OWN_ENTRY_H
#define SG_PRELOAD_SHARED_OWN_ENTRY_H

#include "sparkguard_abi.h"

#include <stdbool.h>

/* The ledger and the seat there now. They change when this process joins. Any thread. */
struct sg_machine_ledger *sg_seats_ledger(void);
struct sg_seat *sg_seats_own(void);

/* The same, or NULL in a process that decides alone. And what the registry makes them. */
struct sg_machine_ledger *sg_seats_shared_ledger(void);
struct sg_seat *sg_seats_shared_own(void);
void sg_seats_set_ledger(struct sg_machine_ledger *ledger);
void sg_seats_set_own(struct sg_seat *seat);

/* The sums that a seat shows, and the word of this process that each follows. */
enum sg_sum {
    SG_SUM_GRANTED,   /* slot.granted_bytes */
    SG_SUM_PROMISED,  /* slot.promised_bytes */
    SG_SUM_SPARSE,    /* slot.sparse_bytes */
    SG_SUM_DEVICE,    /* domain[DEVICE].granted_bytes, in the seat slot.device_bytes */
    SG_SUM_FLIGHT,    /* slot.in_flight_bytes, and its three parts: */
    SG_SUM_BOUNDED,   /* bounded by cgroups */
    SG_SUM_UNBOUNDED, /* of the machine, but not bounded by cgroups */
    SG_SUM_DISCRETE,  /* of discrete devices */
    SG_SUM_PINNED,    /* domain[PINNED].granted_bytes */
    SG_SUM_MANAGED,   /* domain[MANAGED].granted_bytes */
    SG_SUM_COUNT
};

/* Changes a word and its seat in step: when they return, everybody can see it, and no other thread can take it back. The seat
 * is raised first and lowered last, so it never shows too little. lower stops at zero and returns what was missing;
 * exchange is a compare-and-swap. Any thread, any time. */
uint64_t sg_seats_raise(enum sg_sum sum, uint64_t bytes); /* returns the word's new value */
uint64_t sg_seats_lower(enum sg_sum sum, uint64_t bytes);
bool sg_seats_exchange(enum sg_sum sum, uint64_t *expected, uint64_t desired);

/* The same for one sum and another that it is part of. raise returns the part's new value. */
uint64_t sg_seats_raise_both(enum sg_sum part, enum sg_sum whole, uint64_t bytes, uint64_t *whole_now);
void sg_seats_lower_both(enum sg_sum part, enum sg_sum whole, uint64_t bytes);

/* `bytes` of this process may come back, or come, without a promise: growth by that much says nothing of promises. Any thread. */
void sg_seats_note_unpromised(uint64_t bytes);

/* Mends what changes lost while this process was taking its seat. False: some sum could not be compared, because changes were
 * under way. */
bool sg_seats_reconcile(void);

/* The ranges of shared memory that this process maps (tmpfs_ranges.h), and what of its promises is missing there: begin,
 * change promised_bytes or granted_bytes, end. Under sg_index_maps_lock. */
void sg_seats_begin_files(void);
void sg_seats_end_files(const struct sg_memory_file *file, uint32_t count);

/* The sum of those ranges, as the registry entry shows it. Changed is told whenever the ranges are others than
 * before. */
void sg_seats_set_file_bytes(uint64_t bytes);
void sg_seats_note_file_change(void);

/* In a forked child: what of its parent's promises is missing here, too. It counts, once for all children of that parent, when
 * the parent is gone. Under the decision lock. */
void sg_seats_set_heritage(uint64_t bytes);

/* Bytes of this process's managed memory that are not in the CPU's page tables, as of the last scan; and fewer,
 * because so many were freed. Any thread. */
void sg_seats_set_managed_missing(uint64_t bytes);
void sg_seats_lower_managed_missing(uint64_t bytes);

/* In a forked child: nothing is in flight, and the process decides alone. After both were set to NULL. */
void sg_seats_refork_sums(void);

/* Whether the owner is inside the cgroup. */
bool sg_seats_is_member(const struct sg_seat *seat, uint64_t level);

/* `bytes` (negative: no more) are in flight from `pool`: SG_POOL_..., or a device's identity. Any thread. */
void sg_seats_fly(uint64_t pool, int64_t bytes);

/* The same for what is no more in flight because it is there: the kernel's figures show it. Any thread, without the lock. */
void sg_seats_land(uint64_t pool, uint64_t bytes);

/* What this process ever landed: what did so since a look began may not be in that look. To be read behind sg_seats_own_flight. */
uint64_t sg_seats_own_landed(bool is_bounded_only);

/* What this process has in flight from the machine, or the part of it that cgroups bound. Any thread. */
uint64_t sg_seats_own_flight(bool is_bounded_only);

uint64_t sg_seats_own_device_flight(uint64_t device);

uint64_t sg_seats_flight_device(void); /* the discrete device, SG_UNKNOWN: several */

#endif
