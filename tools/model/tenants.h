/*
 * tenants.h - what the registry says of jobs: their claims (sparkguard_abi.h, "Claims"), and what sparkguard --set has
 * set for them.
 */
#ifndef SG_TOOLS_MODEL_TENANTS_H
#define SG_TOOLS_MODEL_TENANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model_job;
struct model_process;

struct model_claim {
    const char *directory; /* SPARKGUARD_DIR of the job */
    uint64_t job_hash;
    uint32_t pid; /* of the job's first process */
    uint64_t start_ticks;
    char *job;           /* the job's name; NULL: unknown */
    char *command;       /* of that process, or of the program that it will become; NULL: unknown */
    uint64_t bytes;      /* claimed, or wanted while the claim waits */
    uint64_t rest_bytes; /* what is left of a granted claim: nobody else gets it */
    bool is_queued;
    uint64_t queue_position; /* 1: the next one; 0: not queued */
    int64_t priority;
    uint64_t place, share;
};

/* What sparkguard --set has set for a job. */
struct model_setting {
    const char *directory; /* SPARKGUARD_DIR of the job; NULL: nothing was set */
    uint64_t job_hash;
    uint64_t limit_bytes;   /* 0: not set; SG_UNKNOWN: none */
    uint64_t reserve_bytes; /* 0: not set */
    uint64_t user;          /* who set one of them last */
};

struct model_claims {
    struct model_claim *at; /* granted ones first, by their place in the order; then the queue */
    size_t count;
    struct model_setting *settings; /* one for each job for which something was set */
    size_t setting_count;
};

/* The claims of one job. */
struct model_job_claims {
    uint64_t bytes;          /* sum of its granted claims; without one: the size of its first waiting claim */
    uint64_t rest_bytes;     /* what is left of the granted ones */
    uint64_t queue_position; /* of its first waiting claim; 0: none waits */
    uint64_t share;          /* of the memory beyond all claims; 1 without --share */
    bool is_held;            /* a claim is granted */
};
struct model_job_claims model_claims_of(const struct model_claims *claims, const struct model_job *job);

/* Returns what was set for a job; all zero if nothing was. */
struct model_setting model_claims_setting_of(const struct model_claims *claims, const struct model_job *job);

/* Returns "none", "queued" or "held". A job with a granted claim and a waiting one is "held". */
const char *model_claims_state(const struct model_job_claims *claims);

/* Names the claims of a job by the record of one of its processes, in that directory. */
void model_claims_name(struct model_claims *claims, const char *path, const struct model_process *process);
/* Names the claims that no record has named, by what the kernel shows of their processes. */
void model_claims_name_rest(struct model_claims *claims);

/* Adds the claims and settings of the registry that sg_observe() read last to *claims. `path`: its directory. */
void model_claims_observe(struct model_claims *claims, const char *path);

#endif
