/*
 * job_settings.h - what sparkguard --set does to a job, for tests of decisions.
 */
#ifndef SG_TESTS_UNIT_ADMIT_JOB_SETTINGS_H
#define SG_TESTS_UNIT_ADMIT_JOB_SETTINGS_H

#include "base/atomics.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

/* Sets the job's words. This process decides alone: its only entry takes the part of the job's. */
static inline void set_for_job(uint64_t limit_bytes, uint64_t reserve_bytes)
{
    struct sg_registry_entry *entry = sg_entry_own();
    entry->slot.flags |= SG_SLOT_JOB;
    entry->slot.job_hash = sg_own->slot.job_hash;
    entry->claim = 1 << 2 | SG_CLAIM_LIVE;
    entry->set_user = 1;
    entry->set_limit_bytes = limit_bytes;
    entry->set_reserve_bytes = reserve_bytes;
    sg_entry_registry()->entry_used = 1;
    sg_fetch_add(&sg_entry_registry()->settings, UINT64_C(1));
}

#endif
