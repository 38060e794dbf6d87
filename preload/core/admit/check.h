/*
 * check.h - whether a request fits by the last snapshot: the job's limit, the machine and its cgroups, or a discrete
 * device.
 *
 * All functions need the decision lock, except where noted.
 */
#ifndef SG_PRELOAD_ADMIT_CHECK_H
#define SG_PRELOAD_ADMIT_CHECK_H

#include "admit/admission.h"
#include "admit/headroom.h"
#include "base/compiler.h"
#include "shared/segment.h"

/* Takes this process's registry entry, if one can be had. Every half second it also checks that the registry's file is
 * still in its place, where new processes look for it. */
void sg_check_join(void);

/* In a forked child: the parent's promises are noted as inherited, at the child's first decision. */
void sg_check_atfork_child(void);

/* Bytes of the request that count in the job's limit at once. Any thread, without the lock. */
uint64_t sg_check_growth(const struct sg_request *request);

/* Whether the request fits the job's limit, exceeded by at most `grace_bytes`. `parts`: see sg_check_constraints.
 * False: *answer is set. */
bool sg_check_limit(const struct sg_request *request, uint64_t grace_bytes, uint32_t parts, struct sg_answer *answer);

/* Whether the MAP_NORESERVE memory that may have been touched since the last scan could take the job over its limit, if
 * it has one. Then the caller scans before the decision. */
bool sg_check_is_sparse_near_limit(const struct sg_request *request);
static inline bool sg_check_is_sparse_near(const struct sg_request *request)
{
    return sg_headroom_limit_bytes() != 0 && sg_check_is_sparse_near_limit(request);
}

/* Whether the request exceeds the limit plus `grace_bytes` by this process's own memory alone, so that no snapshot of
 * the others can change the answer. True: *answer is set. */
bool sg_check_is_beyond(uint64_t limit, uint64_t growth_bytes, uint64_t grace_bytes, struct sg_answer *answer);
static inline bool sg_check_is_beyond_own_limit(const struct sg_request *request, uint64_t grace_bytes,
                                                struct sg_answer *answer)
{
    uint64_t limit = sg_own->slot.limit_bytes; /* 0: none, or not resolved yet */
    return SG_UNLIKELY(limit != 0) && sg_check_is_beyond(limit, sg_check_growth(request), grace_bytes, answer);
}

/* Whether the request fits every constraint above its reserve: the machine and its cgroups, or the card. `parts`: enum
 * sg_headroom_part, what counts as taken, and whether the driver's pool counts. `expected_bytes`: memory that comes
 * back to the machine; counts as usable. Always sets *answer: the tightest constraint and its figures. */
bool sg_check_constraints(const struct sg_request *request, uint32_t parts, uint64_t expected_bytes,
                          struct sg_answer *answer);

/* Whether the request fits everything that bounds it: the job's limit, and the constraints if they are known. False:
 * *answer is set. */
bool sg_check_fits(const struct sg_request *request, uint32_t parts, uint64_t expected_bytes, struct sg_answer *answer);

/* SPARKGUARD_DEVICE_RESERVE in bytes, for a device with `total_bytes` of its own memory. Any thread, without the
 * lock. */
uint64_t sg_check_device_reserve(uint64_t total_bytes);

/* The source that the request draws from: SG_SOURCE_..., or the identity of a discrete device. Any thread, without the
 * lock. */
static inline uint64_t sg_check_source(const struct sg_request *request)
{
    if (request->card.identity != 0)
        return request->card.identity;
    return request->domain == SG_DOMAIN_DEVICE ? SG_SOURCE_UNBOUNDED : SG_SOURCE_BOUNDED;
}

/* Marks the registry entries of dead processes, so that none of them causes a refusal. `request`: the one that is
 * announced, or NULL. If this process gets another registry entry meanwhile, the request is announced again there. */
void sg_check_take_out_the_dead(const struct sg_request *request);

#endif
