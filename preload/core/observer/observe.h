/*
 * observe.h - the observer: what the library would answer a process that began here and now. For the tools.
 *
 * The observer takes no entry and no lock, and writes nothing that another process reads. It decides by the functions
 * that the library decides by, over a copy of the registry in private memory. A copy and no mapping, because a mapped
 * file that its owner cuts meanwhile would raise SIGBUS. The copy's words are believed no more than the library
 * believes those of other processes. Cost: as a decision before a refusal, and the copy (about 2 KiB an entry).
 *
 * Not thread-safe. What is asked for refers to the last sg_observe().
 */
#ifndef SG_PRELOAD_OBSERVER_OBSERVE_H
#define SG_PRELOAD_OBSERVER_OBSERVE_H

#include "admit/containers.h"
#include "admit/snapshot.h"
#include "sparkguard_abi.h"

#include <stdbool.h>

/* The machine, or a memory cgroup above this process. */
struct sg_observed_constraint {
    uint64_t limit_bytes;    /* as of struct sg_constraint, and the next four */
    uint64_t headroom_bytes; /* by the kernel's figures */
    uint64_t reserve_bytes;
    uint64_t floor_bytes;
    uint64_t promised_bytes; /* to guarded processes, and not resident yet */
    uint64_t claimed_bytes;  /* what is left of other jobs' claims */
    uint64_t taken_bytes;    /* promised, in flight and claimed: what headroom_bytes does not show */
    uint64_t usable_bytes;   /* headroom_bytes less taken_bytes; the reserve is not subtracted */
};

struct sg_observation {
    bool is_known;        /* false: the kernel's figures cannot be read; all others are 0 */
    bool has_registry;    /* false: there is none, or none that this version can share: a process would begin alone */
    bool has_names;       /* the registry is this version's, whose entries name shared memory */
    uint64_t total_bytes; /* MemTotal */
    uint32_t count;       /* of `at` */
    struct sg_observed_constraint at[SG_CONSTRAINT_CAPACITY]; /* at[0] is the machine */
    /* The largest request above the reserves that would be granted, if the job's limit is left aside. */
    uint64_t host_bytes;   /* heap, mapped and pinned memory: bounded by the cgroups */
    uint64_t device_bytes; /* of the machine's memory: no cgroup bounds it */
    uint64_t limit_bytes;  /* of the job: by its processes, SPARKGUARD_LIMIT or /etc/sparkguard.conf; 0: none */
    bool is_limit_bound;   /* a bound of /etc/sparkguard.conf for this user decides the limit of a new job */
    uint64_t left_bytes;   /* what the job's limit leaves of it; UINT64_MAX: there is no limit */
};

/* The process that would begin. */
struct sg_observer {
    uint64_t job;           /* sg_hash_text() of its job's name; 0: of no job that runs */
    uint64_t reserve_bytes; /* its reserve, as by sparkguard --set; 0: by the options */
};

/* Observes. `registry`: a descriptor of the registry's file, open for reading; negative: there is none. Options are
 * those of the environment at the first call. */
void sg_observe(int registry, const struct sg_observer *observer, struct sg_observation *out);

/* The number of entries in the registry, and one of them: NULL if nobody has it. Words of an entry are copies, and may
 * be damaged or hostile. Valid until the next sg_observe(). */
uint32_t sg_observe_count(void);
const struct sg_registry_entry *sg_observe_entry(uint32_t number);

/* The promised bytes of an entry that sg_observe_entry() returns, as all others count them. Ranges of shared memory
 * count in full. */
uint64_t sg_observe_promise(uint32_t number);

/* What is left of the claim in such an entry; 0: it is no claim, or one that waits. */
uint64_t sg_observe_claim_rest(uint32_t number);

/* The bytes that the processes of a job, with 0 those of all jobs, hold as ranges of shared memory, and as memory of a
 * parent that the parent no longer holds: each once, though the entries of several processes name it. 0 without
 * has_names. */
uint64_t sg_observe_shared(uint64_t job);

/* Tells of each container with a directory of its own what it says, and what counts of it. Needs no sg_observe(). */
void sg_observe_containers(sg_container_visitor *visitor, void *data);

/* The bytes that the processes of a job hold and have in flight. */
uint64_t sg_observe_held_by(uint64_t job);

#endif
