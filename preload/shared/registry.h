/*
 * registry.h - this process among all guarded processes of the machine: its seat in the machine's ledger, and what the others
 * have promised, have in flight and are asking for.
 *
 * How processes decide as one without a lock that a killed or stopped one could hold ("reserve, look, settle"):
 *
 *   reserve   announce: asking_bytes, ticket = CHOOSING, place = asked_bytes += size, ticket = place. Then sum up the
 *             other seats: what is promised and in flight, and what those ask for who stand before us.
 *   look      at the kernel's counters, after the seats: what moves meanwhile moves from the seats to the kernel, and so
 *             is seen twice at worst, never not at all.
 *   settle    admitted: in flight from before the ticket goes until the real call has returned, and until it is promised
 *             if it is not there yet. Refused, or waiting for others: the ticket goes.
 *
 * Who fits only without those before him waits for them and asks again; of those who ask, the first always gets an answer
 * at once. Small requests do not queue: they are promised first, then added to asked_bytes, and pass if everything asked
 * for since this process's last look stays within what that look showed. tests/model/admission.pml checks all this.
 *
 * A process without a seat (no shared memory, no place left) has a ledger of its own, with one seat: it decides alone.
 */
#ifndef SG_PRELOAD_SHARED_REGISTRY_H
#define SG_PRELOAD_SHARED_REGISTRY_H

#include "sparkguard_abi.h"

#include <stdbool.h>

/* What other processes have of something. Sums are saturated, never wrapped. */
struct sg_taken {
    uint64_t held_bytes;   /* promised; of a job: granted */
    uint64_t flight_bytes; /* admitted, the real call has not returned */
    uint64_t
        stalled_bytes; /* of these, what has stood still for as long as anybody waits: its owner is stopped, or its driver hangs */
    uint64_t asking_bytes; /* asked for by those who stand before us */
    uint64_t behind_bytes; /* and by those behind us */
};

struct sg_tally {
    struct sg_taken machine;
    struct sg_taken level[SG_SEAT_LEVELS]; /* of our cgroups, in the order of sg_seats_set_levels */
    struct sg_taken device;                /* of the discrete device asked for */
    struct sg_taken job;                   /* of the job's other processes */
    uint64_t job_sparse_bytes;             /* of the job's other processes: resident without having been promised */
    uint64_t job_foreign_bytes;            /* the part of job.held_bytes that processes of another version hold */
    uint64_t job_limit_bytes;              /* the smallest of theirs, 0: none */
    uint64_t device_bytes;                 /* device memory the others hold */
    uint64_t cuda_bytes;                   /* the same and their pinned and managed memory */
    bool is_reclaiming;                    /* somebody is populating memory to drop it again */
    uint64_t foreign_bytes;                /* as sg_foreign_bytes() says */
};

/* ---- the seat; under the decision lock, except where noted ---- */

/* Whether there is one to be taken: this process has a segment, and has not tried yet. Then sg_room_forget() and join: places
 * in the order of one ledger mean nothing in another. */
bool sg_seats_may_join(void);
void sg_seats_join(void);

/* Gives it up: the process ends. Any thread. */
void sg_seats_leave(void);

/* The process becomes another program: its seat stays until the kernel lets go of it, for that may fail. Any thread. */
void sg_seats_note_replaced(void);

/* Takes either back: it did not end. Any thread. */
void sg_seats_come_back(void);

/* In a forked child: the seat is the parent's. */
void sg_seats_refork(void);

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

/* CUDA memory of all guarded processes, this one with them: on the machine (0), or of those inside a cgroup. */
struct sg_cuda_sum {
    uint64_t managed_bytes; /* granted */
    uint64_t missing_bytes; /* the part of it that the CPU's page tables do not show */
    uint64_t shown_bytes;   /* managed memory that they show; pinned memory; on the machine device memory, too */
    uint64_t flight_bytes;  /* admitted, the real call has not returned */
};
void sg_seats_sum_cuda(uint64_t level, struct sg_cuda_sum *sum);

/* In a forked child: nothing is in flight, and the process decides alone. After both were set to NULL. */
void sg_seats_refork_sums(void);

/* In a forked child, after sg_seats_refork: `bytes` were its parent's own, besides what that had from its parents. */
void sg_seats_inherit(uint64_t bytes, uint32_t parent_pid);

/* The identities of our cgroups that bound memory. */
void sg_seats_set_levels(const uint64_t *identity, uint32_t count);

/* Whether a watchdog has looked within the last second: it is there, and not stopped. `now` may be older than its look. */
bool sg_seats_is_watched(const struct sg_seat *seat, uint64_t now);

/* Whether the owner is inside the cgroup. */
bool sg_seats_is_member(const struct sg_seat *seat, uint64_t level);

/* Whether it is time to see if the ledger's file is still in its place, and that: where it is not, this process
 * joins the one that is there. Processes that come meet in that one. After sg_room_forget(). True if the file is in
 * its place. */
bool sg_seats_is_check_due(void);
bool sg_seats_check_place(void);

/* Turns the seats of dead owners into nothing; true if there were any. After sg_room_forget(): this process may find that
 * its ledger's file is gone, and join another. */
bool sg_seats_reap(void);

/* The same for the entries of this process's job, however many there are. Any thread, any time. */
void sg_seats_mark_dead_of_job(void);

/* ---- requests ---- */

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

void sg_seats_announce(uint64_t pool, uint64_t bytes);
void sg_seats_withdraw(void);

/* Sums up the others. `device`: the identity of the discrete device asked for, or 0. Without a ticket of our own all who
 * ask stand before us. `is_closely`: asks the kernel how much of the promises of quiet processes is there by now. */
void sg_seats_sum(struct sg_tally *tally, uint64_t device, bool is_closely);

/* Adds `bytes` to what was ever asked for. Any thread. */
void sg_seats_count(uint64_t bytes);

/* The same, and tells whether that stays below *limit with 15/16 of the rest left over:
 * *limit is a place in the order. Any thread. */
bool sg_seats_take(uint64_t bytes, const uint64_t *limit);

/* ---- waiting; any thread, without the lock ---- */

/* Changes when something was settled, withdrawn, looked at again or found dead anywhere. */
uint32_t sg_seats_epoch(void);
void sg_seats_advance(void);

/* Sleeps until the epoch is not `seen` any more, at most `timeout_ns` and below a second. */
void sg_seats_wait(uint32_t seen, uint64_t timeout_ns);

/* Whether all others have looked since at what they promise, if it is worth it and their watchdogs could. */
bool sg_seats_have_looked(uint64_t since_ns);

/* Asks all watchdogs to look at what their processes promise. */
void sg_seats_call(void);

/* The same, and waits until all others have that are watched and promise something, at most `patience_ns`. */
void sg_seats_call_and_wait(uint64_t patience_ns);

#endif
