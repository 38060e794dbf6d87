/*
 * claims.h - the claims of other jobs: memory set aside for a job before it starts (sparkguard_abi.h, "Claims").
 *
 * A claim takes its rest from other jobs: its size less the bytes that its own job holds. These bytes move while they
 * are added up, and an error in either direction does harm here. So the job is added up twice, before and after the
 * kernel's figures are read. The claim less the most that the job may hold is certain. The claim's bytes between the
 * most and the least are in doubt: the job may hold them already. They count as in flight: no other request gets them,
 * and no request is refused because of them. What a job holds is counted as for a limit: shared memory once, in however
 * many processes it is mapped, and memory of an ended parent once in its children. tests/model/tenants.pml checks this,
 * and shows what it does not cover: memory that is freed and taken again between the readings, and a process that is
 * killed. Its memory counts as held until its entry is marked dead; only a look before a refusal asks the kernel.
 *
 * Cost: a pass over the registry after the kernel's figures, at any number of claims, and for each job with a claim
 * one over the ranges of shared memory. The first reading is part of the pass that sums up the peers. A member of a
 * group may write any number of claims into the registry, so the jobs that count are bounded.
 *
 * All functions need the decision lock, except where noted.
 */
#ifndef SG_PRELOAD_SHARED_CLAIMS_H
#define SG_PRELOAD_SHARED_CLAIMS_H

#include "shared/peers.h"
#include "sparkguard_abi.h"

#include <stdbool.h>
#include <stdint.h>

enum { SG_CLAIM_JOBS = 64 }; /* jobs whose claims count, in the order of their entries */

/* The first reading of what the jobs with claims hold: begin, then sg_peers_sum with sg_claims_read, then keep, before
 * the kernel's figures are read. begin returns false, and the rest is left out, while no claim was ever made. */
bool sg_claims_begin(void);
void sg_claims_read(uint32_t number, const struct sg_registry_entry *entry);
void sg_claims_keep(void);

/* The second reading. Adds the rest of each claim of another job to the sums of the machine and of this process's
 * cgroups, and sets own_claim_bytes; call it after the kernel's figures were read. `is_examined`: what an ending
 * process holds is in doubt; reads /proc for each process of a job with a claim that holds 1 MiB or more. */
void sg_claims_end(struct sg_peers *peers, bool is_examined);

/* What is left of the claim in entry `number` for certain, as sg_claims_end() has read it; 0: no granted claim. Also of
 * this process's job. For the observer. */
uint64_t sg_claims_rest(uint32_t number);

/* About the bytes that the processes of a job hold and have in flight. Needs no lock. */
uint64_t sg_claims_held_by(uint64_t job);

/* Whether claims of this process's own job count, too, for a new claim of that job; at first they do not. */
void sg_claims_count_own(bool counts_own);

/* The bytes that the processes of a job hold beyond its claims, divided by its share (sparkguard --share). Needs no
 * lock. */
uint64_t sg_claims_lent_to(uint64_t job);

/* ---- the claim that this process makes ---- */

/* Takes a registry entry for a claim of `bytes` and puts it at the end of the queue. Returns the descriptor whose lock
 * keeps the entry, or -errno; -ENOLCK: this process shares no registry; -EDQUOT: this user's
 * claims, granted and waiting, are half of the SG_CLAIM_JOBS that the claims of other users leave, or more. So
 * fewer than seven users cannot take them all. */
long sg_claims_queue(uint64_t bytes, int64_t priority, uint64_t share);

/* The number of queued claims that are decided on before this process's: not those of stopped processes, which have
 * their turn when they go on. Call it at each try, once a second at least: it shows that this process is not
 * stopped. */
uint64_t sg_claims_count_before(void);

/* Whether SG_CLAIM_JOBS other jobs have granted claims and this process's has none, so that its claim would not
 * count. */
bool sg_claims_are_full(void);

/* Grants the queued claim; or gives it up. */
void sg_claims_grant(void);
void sg_claims_give_up(void);

/* ---- a granted claim ---- */

struct sg_granted_claim {
    struct sg_registry_entry *entry;
    uint64_t owner; /* the entry's word `claim`, which names its owner */
    uint64_t bytes;
};

/* Finds the granted claim of a job that sparkguard --set changes: the one in the lowest entry. False: the job has none.
 * Needs no lock. */
bool sg_claims_find(uint64_t job, struct sg_granted_claim *found);

/* The bytes that the job's claims keep from others besides what they keep now, if they grow by `bytes`. Less than
 * `bytes` if the job holds more than it has claimed. */
uint64_t sg_claims_more(uint64_t bytes);

/* Whether the claim counts in no other cgroup than this process's. */
bool sg_claims_are_judged_here(const struct sg_registry_entry *claim);

/* Changes the size of the claim. False: it has another size or another owner than it was found with. Needs no lock. */
bool sg_claims_change(const struct sg_granted_claim *found, uint64_t bytes);

/* Adds an event, and prints a line, if the claim of this process's job has ended or shrunk and neither its launcher nor
 * sparkguard --set has asked for that. One process of the job does. */
void sg_claims_note_loss(void);

#endif
