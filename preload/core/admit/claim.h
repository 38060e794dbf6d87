/*
 * claim.h - decides on the claim of this process's job: memory that the job will be able to take
 * (sparkguard_abi.h, "Claims").
 */
#ifndef SG_PRELOAD_ADMIT_CLAIM_H
#define SG_PRELOAD_ADMIT_CLAIM_H

#include "sparkguard_abi.h"

/* See sparkguard_claim() in sparkguard_abi.h. Takes the decision lock. One thread of the process. */
int sg_claim_try(struct sg_claim_order *order);

/* See sparkguard_raise_claim() in sparkguard_abi.h. Takes the decision lock. One thread of the process. */
int sg_claim_raise(struct sg_claim_order *order);

#endif
