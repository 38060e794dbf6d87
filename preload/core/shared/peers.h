/*
 * peers.h - the other processes of the registry as sums, and waiting for them. Under the decision lock, except where
 * noted.
 */
#ifndef SG_PRELOAD_SHARED_PEERS_H
#define SG_PRELOAD_SHARED_PEERS_H

#include "shared/own_entry.h"
#include "sparkguard_abi.h"

#include <stdbool.h>

/* Sums over other processes for one constraint. They saturate at 2^52 bytes and never wrap. */
struct sg_peer_sums {
    uint64_t held_bytes;          /* promised bytes; in the sums of the job: granted bytes */
    uint64_t flight_bytes;        /* in flight: admitted, and the real call has not returned */
    uint64_t stalled_bytes;       /* the part of flight_bytes unchanged for 3 s: owner stopped, or its driver hangs */
    uint64_t queued_before_bytes; /* requests queued before ours */
    uint64_t queued_after_bytes;  /* requests queued after ours */
    uint64_t claimed_bytes;       /* what is left of the claims of other jobs (claims.h) */
};

/* CUDA memory of all guarded processes, including this one. */
struct sg_cuda_sum {
    uint64_t managed_bytes; /* granted */
    uint64_t missing_bytes; /* managed memory that is not in the CPU's page tables */
    uint64_t shown_bytes;   /* managed memory in the page tables */
    uint64_t device_bytes;  /* on the machine: device memory that is the machine's */
    uint64_t pinned_bytes;  /* on the machine */
    uint64_t contexts;      /* on the machine: processes that use such device memory */
    uint64_t flight_bytes;  /* in flight: admitted, and the real call has not returned */
};

struct sg_peers {
    struct sg_peer_sums machine;                /* without the part in flight that the driver's pool is to serve */
    struct sg_peer_sums device_of_machine;      /* requests for device memory of the machine alone, with that part */
    struct sg_peer_sums level[SG_ENTRY_LEVELS]; /* of our cgroups, in the order of sg_registry_set_levels */
    struct sg_peer_sums device;                 /* of the discrete device that the request is for */
    struct sg_peer_sums job;                    /* of the job's other processes */
    uint32_t job_processes;                     /* the job's other processes */
    uint64_t own_claim_bytes;                   /* what is left of the claims of this process's job (claims.h) */
    uint64_t job_sparse_bytes; /* resident sparse memory of the job's other processes; never promised */
    uint64_t job_limit_bytes;  /* the smallest limit that one of them has shown; 0: none */
    uint64_t device_bytes;     /* device memory of the others */
    uint64_t cuda_bytes;       /* device, pinned and managed memory of the others */
    struct sg_cuda_sum cuda[1 + SG_ENTRY_LEVELS]; /* of the machine, and of each of our cgroups */
};

/* Called with each entry that lives, and its number. */
typedef void sg_peers_visit(uint32_t number, const struct sg_registry_entry *entry);

/* Sums up the other processes into *peers. `device`: the identity of the discrete device that the request is for, or 0.
 * `asks_kernel`: also ask the kernel how much of its promises each process has touched; costs a read of /proc for each
 * that promises 1 MiB or more. Without a queued request of our own, all requests count as queued before. `also` is
 * called for each entry in the same pass, after its sums were read, and for this process's own; NULL: nothing is. */
void sg_peers_sum(struct sg_peers *peers, uint64_t device, bool asks_kernel, sg_peers_visit *also);

/* The promised bytes of entry `number` as sg_peers_sum() counts them when it asks the kernel, with ranges of shared
 * memory in full. Call it after that. */
uint64_t sg_peers_promised_by(uint32_t number);

/* Whether a process that promises 1 MiB or more has been killed or is ending: its entry is found dead in a moment.
 * Costs a read of /proc for each such process. */
bool sg_peers_are_ending(void);

/* Sums up CUDA memory alone, as for sg_peers.cuda. */
void sg_peers_sum_cuda(struct sg_cuda_sum cuda[1 + SG_ENTRY_LEVELS]);

/* Whether the entry's watchdog ran within the second before `now` (CLOCK_MONOTONIC, ns): the process has a watchdog and
 * is not stopped. True also if the watchdog ran up to 10 s after `now`, which may be an old reading. */
bool sg_peers_is_watched(const struct sg_registry_entry *entry, uint64_t now);

/* ---- waiting; any thread, without the lock ---- */

/* The epoch changes when any process settles or withdraws a request, or is found dead. */
static inline uint32_t sg_peers_epoch(void)
{
    return sg_load(&sg_entry_registry()->epoch);
}

/* Changes the epoch and wakes all waiting processes. */
void sg_peers_advance(void);

/* Sleeps until the epoch differs from `seen`, at most `timeout_ns`, which must be less than 1 s. May return early. */
void sg_peers_wait(uint32_t seen, uint64_t timeout_ns);

/* Wakes the watchdogs of all processes. */
void sg_peers_call(void);

#endif
