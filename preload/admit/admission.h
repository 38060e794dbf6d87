/*
 * admission.h - the decision: may this process take these bytes now?
 *
 * Needs no CUDA, no malloc, no stdio. Decisions of one process follow each other under one lock that blocks signals;
 * nothing under it waits for another process: how those of different processes do, is in registry.h. Any thread, any
 * time after the options were read.
 *
 *   large requests   sg_admission_ask, the real call, sg_admission_settle
 *   small ones       sg_admission_take_credit: paid from the thread's heap credit, judged when it is filled up
 *                    sg_admission_ask_small: judged by itself (mappings below LARGE)
 *
 * Between ask and settle the bytes are "in flight": nobody on the machine gets them, and no thread is cancelled.
 * After settle, device memory is in the kernel's figures; heap, mappings and managed memory are promises until they
 * are resident.
 */
#ifndef SG_PRELOAD_ADMIT_ADMISSION_H
#define SG_PRELOAD_ADMIT_ADMISSION_H

#include "sparkguard_abi.h"

#include <stdbool.h>

struct sg_request {
    enum sg_domain domain;
    uint64_t size_bytes;     /* must fit the machine, and the cgroups if they bound the domain */
    uint64_t growth_bytes;   /* must fit LIMIT: less than size_bytes where old memory goes with the call */
    uint64_t sparse_bytes;   /* of growth_bytes: of MAP_NORESERVE mappings, which promise nothing */
    uint64_t replaced_bytes; /* of size_bytes: the room of old memory that goes with the call */
    uint64_t block_bytes;    /* of a block that grows: its size if it is admitted. 0: a new one */
    uint64_t asked_bytes; /* what the program asked for, where more is judged (a pool grows by steps); 0: size_bytes */
    const char *call;     /* the name the program used */
    bool is_small;        /* below LARGE: nobody is told on stderr */
    bool is_commit;       /* it makes address space writable that this process had reserved (commits.h) */
    bool is_rare;         /* worth a look of its own, however young the last one is */
    bool is_behind;       /* who asks looks closer before a refusal: the ledger may hold less in truth */

    /* Units of shared memory (range_map.h), 0: none. Bytes that others of the job hold of them are no growth, and what
     * anybody was promised of them needs no more room. */
    uint64_t shared_begin, shared_end;

    /* Blocked from the flight to settle, so that no handler leaves it by a longjmp. Only where the real call is short:
     * a fatal signal waits, too. */
    bool holds_signals;

    /* Device memory of a discrete GPU: what the driver said before the decision; unused if has_device_pool is false. */
    bool has_device_pool;
    uint32_t device;
    uint64_t device_identity; /* the same in every process; more than SG_POOL_UNBOUNDED */
    uint64_t device_free_bytes;
    uint64_t device_total_bytes;
    uint32_t device_epoch;   /* sg_peers_epoch() before the driver was asked */
    uint64_t asked_ns;       /* when it was asked for first, 0 at first */
    uint64_t expected_bytes; /* of the machine's memory: what the driver's pools would give back */
    bool has_pressed;        /* they have been made to, for this request */
    uint32_t looks;          /* how often the driver's figure was out of date */
    uint32_t waits;          /* how often it has slept */

    /* The answer. */
    bool is_short;         /* with must_look_again: it does not fit by what is known so far, and is_behind */
    bool must_look_again;  /* neither admitted nor refused: what the driver said is out of date, ask it and us again */
    enum sg_reason reason; /* if refused */
    uint64_t usable_bytes; /* of what bound the decision */
    uint64_t kept_bytes;   /* its reserve, or the limit */
    uint64_t cgroup_bytes; /* the limit of the cgroup that bound it, 0: the machine did */
    uint64_t kept_by_driver_bytes; /* what may still be in the driver's pools */
    uint64_t granted_bytes;        /* in flight since ask */
};

/* True: the bytes are in flight, and sg_admission_settle must follow. False: refused, recorded and said, unless
 * must_look_again. */
bool sg_admission_ask(struct sg_request *request);

/* A request that needs no judging, because its headroom is there, but could take other headroom after all. It is in
 * flight, so that no other process gets that. */
void sg_admission_fly(struct sg_request *request, uint64_t bytes);

/* The real call has returned. `kept_bytes` (0: it failed) are now promised, if the domain is lazy. */
void sg_admission_settle(struct sg_request *request, uint64_t kept_bytes);

/* The CUDA call that this thread was in has been left: nothing of it is in flight any more, and the thread can be
 * cancelled. */
void sg_admission_abandon(void);

/* A request for host memory below LARGE that is not paid by credit. True: go on; `bytes` are in flight and signals are
 * held, and sg_admission_settle_small must follow when `kept_bytes` of them are charged. */
bool sg_admission_ask_small(enum sg_domain domain, uint64_t bytes, const char *call);
void sg_admission_settle_small(uint64_t bytes, uint64_t kept_bytes);

/* Sees to it that this thread can pay `bytes` of heap from its credit, filling up if necessary. False: refused, and
 * recorded. Threads without a record always may, and pay directly. */
bool sg_admission_take_credit(uint64_t bytes, const char *call);

/* What could be had: a fresh look, as thorough as before a refusal. */
struct sg_capacity {
    uint64_t largest_bytes; /* the largest CUDA request that would be admitted now; 0 if unknown */
    uint64_t all_bytes; /* what all guarded programs could have of CUDA memory, above the reserve and within LIMIT */
    uint64_t reserve_bytes; /* the machine's */
    uint64_t most_bytes; /* what they could have of it if nothing else were there, above the reserve and within LIMIT */
    bool is_known;
    bool is_below_floor;
};
void sg_admission_measure(struct sg_capacity *capacity, bool is_bounded_by_cgroups);

/* Makes the driver give back the pages that it keeps after a free, if there are any: may take
 * SG_PRESSURE_LONGEST_NS. */
void sg_admission_ask_driver(void);

/* Takes the registry entry among the others if there is one to be had: before the registry is asked anything. */
void sg_admission_join(void);

/* fork: the decision state of the parent means nothing in the child. */
void sg_admission_refork(void);

#endif
