/*
 * check.h - whether a request fits, by the last snapshot: the job's limit, the machine and its cgroups, a discrete
 * device; and what could be had at most. Under the decision lock.
 */
#ifndef SG_PRELOAD_ADMIT_CHECK_H
#define SG_PRELOAD_ADMIT_CHECK_H

#include "admit/admission.h"
#include "admit/headroom.h"

/* Takes the registry entry among the others if there is one to be had. Half a second after the last time it sees to
 * it that the others still meet there. */
void sg_check_join(void);

/* In a forked child: what the parent had promised is its promise; noted with the first decision. */
void sg_check_refork(void);

/* The smallest limit of the job's processes, 0: none. */
uint64_t sg_check_limit_bytes(void);

/* What the job holds that counts against its limit: this process and the others by the last snapshot. `parts`: enum
 * sg_headroom_part. */
uint64_t sg_check_job_bytes(uint32_t parts);

/* Whether the request fits the limit of the job, which may be passed by `grace_bytes`; else the answer is in it.
 * `parts`: enum sg_headroom_part. */
bool sg_check_limit(struct sg_request *request, uint64_t grace_bytes, uint32_t parts);

/* Whether what was touched of MAP_NORESERVE memory since the last scan may be more than the limit has room for. */
bool sg_check_is_sparse_near(const struct sg_request *request);

/* Whether what this process alone holds takes the request beyond the limit, which may be passed by `grace_bytes`: no
 * look at others changes that. Then the answer is in the request. */
bool sg_check_is_beyond_own_limit(struct sg_request *request, uint64_t grace_bytes);

/* Whether it fits everything. */
bool sg_check_fits(struct sg_request *request, uint32_t parts);

/* Processes of another version that came first do not wait for those of ours that ask, only for what is in flight. So
 * who is in flight looks once more, whether they have taken since what it was admitted by: the one of both that stores
 * first is seen. */
bool sg_check_is_overtaken(const struct sg_request *request);

/* SPARKGUARD_DEVICE_RESERVE of a device with that much memory of its own. Needs no lock. */
uint64_t sg_check_device_reserve(uint64_t total_bytes);

/* From where it is drawn: SG_POOL_..., or a device's identity. */
uint64_t sg_check_source(const struct sg_request *request);

/* Before something is refused: no dead process may be in the way. `request`: one that is announced, or NULL. */
void sg_check_take_out_the_dead(const struct sg_request *request);

#endif
