/*
 * admission.h - the admission decision: may this process take these bytes now?
 *
 * One process decides one request at a time, under the decision lock (decision_lock.h), which blocks signals. Under
 * that lock nothing waits for another process; registry.h says how processes decide together. Nothing here needs CUDA,
 * malloc or stdio. Any thread may call these functions once the options have been read.
 *
 *   large request          sg_admission_ask, the real call, sg_admission_settle
 *   small heap block       sg_admission_take_credit: paid from the thread's heap credit; only a refill is decided
 *   mapping up to LARGE    sg_admission_ask_small, the real call, sg_admission_settle_small
 *
 * Between ask and settle the bytes are in flight: no other process on the machine is granted them, and the requesting
 * thread cannot be cancelled. After settle, the kernel's figures show device and pinned memory. Heap, mappings and
 * managed memory are promises until their pages are resident.
 */
#ifndef SG_PRELOAD_ADMIT_ADMISSION_H
#define SG_PRELOAD_ADMIT_ADMISSION_H

#include "shared/givers.h"
#include "sparkguard_abi.h"

#include <stdbool.h>

/* Memory of a discrete card: the driver's figures, read before the decision. */
struct sg_card {
    uint64_t identity; /* the same in every process, and more than SG_SOURCE_UNBOUNDED; 0: memory of the machine */
    uint64_t free_bytes, total_bytes;
    uint32_t epoch; /* sg_peers_epoch() from before the driver was queried */
    uint32_t number;
};

/* Why a request does not fit: the constraint that decided, and its figures. */
struct sg_answer {
    enum sg_reason reason;
    uint64_t usable_bytes;     /* of the constraint that decided */
    uint64_t kept_bytes;       /* that constraint's reserve, or the limit */
    uint64_t over_limit_bytes; /* what the job holds beyond its limit already */
    uint64_t cgroup_bytes;     /* the limit of the deciding cgroup; 0: the machine decided */
    uint64_t claimed_bytes;    /* what is left of other jobs' claims there; not in usable_bytes */
    uint64_t pooled_bytes;     /* upper bound of the driver's pool, where it would cover what is missing; else 0 */
};

/* How far the decision of one request has come. */
struct sg_attempt {
    uint64_t asked_ns;            /* when the request first waited (CLOCK_MONOTONIC); 0: not yet */
    uint64_t wait_ns;             /* how long it may wait for what the last decision found; 0: for nothing (wait.h) */
    uint32_t waits;               /* how often this request has slept for one of the short first steps (wait.c) */
    uint32_t refreshes;           /* how often the driver's figure was out of date */
    struct sg_givers_asked asked; /* which other processes were asked to give memory back */
    bool is_giving;               /* an answer of one of them may still come */
    bool can_list;                /* set by the caller: it can ask NVML which processes live */
    bool wants_list;              /* with must_look_again: ask NVML, and then once more */
    bool has_dropped;             /* the driver's pool was already emptied for this request */
    bool has_trimmed;             /* this process's heap was already asked to give freed memory back */
    bool is_measured;             /* the figures before the call are noted (pool_room.h) */
    bool relies;                  /* it fits with the driver\'s pool only */
    bool is_behind;               /* set by the caller: the ledger may show too much; it is updated before a refusal */
    bool was_short; /* it was short before its ledger was updated: no quick snapshot decides it any more */
    bool is_short;  /* only with must_look_again: the counters were out of date; query the driver and decide again */
    bool must_look_again; /* neither admitted nor refused: query the driver or NVML, or update the ledger; ask again */
};

/* What a refusal says of the request, besides its size. */
struct sg_wording {
    const char *call;         /* the function name that the program used */
    uint64_t block_bytes;     /* the new size of a block that grows; 0: a new block */
    uint64_t asked_bytes;     /* what the program asked for, if size_bytes is more (a pool grows by steps); else 0 */
    uint64_t file_bytes;      /* size of the memory file that is mapped; 0: none */
    uint64_t allocated_bytes; /* what the file system has allocated of it */
};

/* Range of shared memory, in the units of range_map.h; begin 0: none. Bytes of the range that the job's other processes
 * hold already are not growth. Bytes of the range that any process was promised need no more headroom. */
struct sg_shared_range {
    uint64_t begin, end;
};

enum sg_request_kind {
    SG_REQUEST_USUAL,
    SG_REQUEST_SMALL,  /* of up to LARGE: a refusal writes nothing to stderr */
    SG_REQUEST_COMMIT, /* makes address space writable that this process had reserved (commits.h) */
    SG_REQUEST_HEAP,   /* writable MAP_NORESERVE memory; of growth_bytes a part counts in LIMIT (heaps.h) */
    SG_REQUEST_RARE,   /* always decided by a new snapshot, even if the cached one would do */
};

/* The caller fills in what it asks for; all other members are 0 at first. */
struct sg_request {
    enum sg_domain domain;
    uint64_t size_bytes;     /* compared with the machine, and with the cgroups if they bound the domain */
    uint64_t growth_bytes;   /* compared with LIMIT: less than size_bytes where the call replaces old memory */
    uint64_t sparse_bytes;   /* the part of growth_bytes in MAP_NORESERVE mappings, which promise nothing */
    uint64_t replaced_bytes; /* the part of size_bytes that old memory, released by the call, makes available */
    struct sg_shared_range shared;
    bool registers; /* of CUDA, though of a domain of the host: memory of the program is registered */
    bool is_shared; /* some of the memory is shared, whether `shared` names it or not */
    struct sg_wording wording;
    enum sg_request_kind kind;

    /* Signals are blocked from the decision to settle, so that no handler can longjmp out and leave the bytes in
     * flight. Set this only where the real call is short: fatal signals are delayed, too. */
    bool holds_signals;

    struct sg_card card;
    uint64_t granted_bytes; /* in flight since ask */
    struct sg_attempt attempt;
};

/* Whether the request is one of a CUDA call. */
static inline bool sg_request_is_cuda(const struct sg_request *request)
{
    return request->registers || (request->domain != SG_DOMAIN_HEAP && request->domain != SG_DOMAIN_MAPPED);
}

/* Decides a request and, if needed, waits for what may still change (wait.h).
 * True: `granted_bytes` are in flight, signals are blocked if holds_signals is set, and sg_admission_settle must
 * follow. In observe mode requests that do not fit are admitted as well; those that would have been refused are
 * recorded.
 * False with attempt.must_look_again: nothing was decided; see that field. False without it: refused, counted and
 * reported. */
bool sg_admission_ask(struct sg_request *request);

/* Puts `bytes` in flight without a decision. For a request whose headroom is there already but whose real call may
 * still take other memory: meanwhile no other process is granted that memory. sg_admission_settle must follow. */
void sg_admission_fly(struct sg_request *request, uint64_t bytes);

/* Admits a request that the cached snapshot shows ample headroom for. It takes no lock and makes no system call.
 * True: as sg_admission_ask. False: nothing is in flight, and the request is to be decided. Not for requests with
 * holds_signals. */
bool sg_admission_take(struct sg_request *request);

/* Takes the request out of flight after the real call has returned. `kept_bytes` is what the call took; 0: it failed.
 * In a lazy domain (heap, mapped, managed) these bytes become a promise first. */
void sg_admission_settle(struct sg_request *request, uint64_t kept_bytes);

/* Takes everything out of flight that this thread's open CUDA call has there, and makes the thread cancellable again.
 * For a call that the program left, by longjmp for example. */
void sg_admission_abandon(void);

/* Decides a request for host memory of up to LARGE that no credit pays. `call`: the function name that the program
 * used. True: `bytes` are in flight and signals are blocked; sg_admission_settle_small must follow. False: refused,
 * recorded, nothing in flight. */
bool sg_admission_ask_small(enum sg_domain domain, uint64_t bytes, const char *call);

/* Takes the growth_bytes of a small request out of flight after the real call has returned. `kept_bytes` of them are
 * charged and become a promise first; 0: none, or the call failed. */
void sg_admission_settle_small(const struct sg_request *request, uint64_t kept_bytes);

/* Promises charged bytes of a request, for a call whose bytes were not put in flight. */
void sg_admission_promise(const struct sg_request *request, uint64_t bytes);

/* Around a call that gives the pages of `bytes` of private memory back to the machine. The memory stays granted, and is
 * promised again. Meanwhile the bytes are in flight, and signals are blocked. Any thread. */
void sg_admission_begin_return(uint64_t bytes);
void sg_admission_end_return(uint64_t bytes);

/* Ensures that this thread can pay `bytes` of heap from its credit; refills the credit where necessary. False: refused
 * and recorded. A thread without a record has no credit: each of its requests is decided and promised by itself. */
bool sg_admission_take_credit(uint64_t bytes, const char *call);

/* Takes this process's registry entry, if one can be had. Call it before reading anything from the registry. Takes the
 * decision lock. */
void sg_admission_join(void);

/* In a forked child: resets the decision lock and forgets the parent's decision state. */
void sg_admission_atfork_child(void);

#endif
