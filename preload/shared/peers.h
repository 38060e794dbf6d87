/*
 * peers.h - what all other processes have, and waiting for them. Under the decision lock, except where noted.
 */
#ifndef SG_PRELOAD_SHARED_PEERS_H
#define SG_PRELOAD_SHARED_PEERS_H

#include "sparkguard_abi.h"

#include <stdbool.h>

/* What other processes have of something. Sums are saturated, never wrapped. */
struct sg_peer_sums {
    uint64_t held_bytes;   /* promised; of a job: granted */
    uint64_t flight_bytes; /* admitted, the real call has not returned */
    uint64_t
        /* of these, what has stood still for as long as anybody waits: its owner is stopped, or its driver hangs */
        stalled_bytes;
    uint64_t queued_before_bytes; /* asked for by those who stand before us */
    uint64_t queued_after_bytes;  /* and by those behind us */
};

struct sg_peers {
    struct sg_peer_sums machine;
    struct sg_peer_sums level[SG_ENTRY_LEVELS]; /* of our cgroups, in the order of sg_registry_set_levels */
    struct sg_peer_sums device;                 /* of the discrete device asked for */
    struct sg_peer_sums job;                    /* of the job's other processes */
    uint64_t job_sparse_bytes;  /* of the job's other processes: resident without having been promised */
    uint64_t job_foreign_bytes; /* the part of job.held_bytes that processes of another version hold */
    uint64_t job_limit_bytes;   /* the smallest of theirs, 0: none */
    uint64_t device_bytes;      /* device memory the others hold */
    uint64_t cuda_bytes;        /* the same and their pinned and managed memory */
    bool is_reclaiming;         /* somebody is populating memory to drop it again */
    uint64_t foreign_bytes;     /* as sg_foreign_bytes() says */
};

/* Sums up the others. `device`: the identity of the discrete device asked for, or 0. Without a ticket of our own all
 * who ask stand before us. `is_closely`: asks the kernel how much of the promises of quiet processes is there by now. */
void sg_peers_sum(struct sg_peers *peers, uint64_t device, bool is_closely);

/* CUDA memory of all guarded processes, this one with them: on the machine (0), or of those inside a cgroup. */
struct sg_cuda_sum {
    uint64_t managed_bytes; /* granted */
    uint64_t missing_bytes; /* the part of it that the CPU's page tables do not show */
    uint64_t shown_bytes;   /* managed memory that they show; pinned memory; on the machine device memory, too */
    uint64_t flight_bytes;  /* admitted, the real call has not returned */
};
void sg_peers_sum_cuda(uint64_t level, struct sg_cuda_sum *sum);

/* Whether a watchdog has looked within the last second: it is there, and not stopped. `now` may be older than its look. */
bool sg_peers_is_watched(const struct sg_registry_entry *entry, uint64_t now);

/* ---- waiting; any thread, without the lock ---- */

/* Changes when something was settled, withdrawn, looked at again or found dead anywhere. */
uint32_t sg_peers_epoch(void);
void sg_peers_advance(void);

/* Sleeps until the epoch is not `seen` any more, at most `timeout_ns` and below a second. */
void sg_peers_wait(uint32_t seen, uint64_t timeout_ns);

/* Whether all others have looked since at what they promise, if it is worth it and their watchdogs could. */
bool sg_peers_have_looked(uint64_t since_ns);

/* Asks all watchdogs to look at what their processes promise. */
void sg_peers_call(void);

/* The same, and waits until all others have that are watched and promise something, at most `patience_ns`. */
void sg_peers_call_and_wait(uint64_t patience_ns);

#endif
