/*
 * settings.h - what sparkguard --set has set for this process's job. It stands in an entry of the job itself
 * (sparkguard_abi.h, "Jobs"), so it is there from the first process to the last. The observer's control.h writes it.
 */
#ifndef SG_PRELOAD_SHARED_SETTINGS_H
#define SG_PRELOAD_SHARED_SETTINGS_H

#include "base/atomics.h"
#include "shared/own_entry.h"
#include "sparkguard_abi.h"

#include <stdbool.h>

/* What was set, as sg_settings_read() has found it. Any thread. */
extern struct sg_settings {
    uint64_t limit_bytes;   /* (atomic) 0: not set, SG_UNKNOWN: none */
    uint64_t reserve_bytes; /* (atomic) 0: not set */
    uint64_t user;          /* (atomic) who set one of them last, plus one */
} sg_settings;

/* Reads what is set if anything has changed since the last call. Returns the number of changes that it knows of. Under
 * the decision lock. */
uint64_t sg_settings_read(void);

/* The number of changes by now. Any thread. */
static inline uint64_t sg_settings_changes(void)
{
    return sg_load_relaxed(&sg_entry_registry()->settings);
}

/* Whether an entry is the one with what is set for its job. Any thread. */
static inline bool sg_settings_are_in(const struct sg_registry_entry *entry)
{
    return sg_entry_is_of_job(entry) && entry->claim_place == 0 && sg_load_relaxed(&entry->set_user) != 0;
}

/* Finds that entry of a job. NULL: there is none. *number: its number. Any thread. */
struct sg_registry_entry *sg_settings_find(struct sg_registry *registry, uint64_t job, uint32_t *number);

#endif
