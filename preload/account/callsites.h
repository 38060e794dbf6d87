/*
 * callsites.h - call sites: which code holds how much in large blocks. CUDA memory of any size, and of mappings and
 * heap blocks those of SPARKGUARD_LARGE and more, remember the number of the site that they were asked for at.
 *
 * A site is the address to which the program's own call returns, outside this library, with the domain. Each class has
 * SG_CALLSITE_CAPACITY numbers; what comes when they are taken counts as number 1. Sites live in the segment, with the
 * library's name and the offset in it, found at first sight in /proc/self/maps: no loader lock is taken, and the name
 * stays when the library is unloaded. (Another library that is loaded there later is taken for the first.)
 *
 * Any thread, any time, also in signal handlers; no locks. A site that is known costs some twenty instructions.
 */
#ifndef SG_PRELOAD_ACCOUNT_CALLSITES_H
#define SG_PRELOAD_ACCOUNT_CALLSITES_H

#include "base/atomics.h"
#include "base/range_map.h"
#include "shared/segment.h"

/* The number of a site, never 0; `key` as in struct sg_callsite, `number` where it may be. */
uint32_t sg_callsites_find_farther(enum sg_callsite_class class, uint64_t key, uint32_t number);

static inline uint64_t sg_callsites_key(enum sg_domain domain, const void *caller)
{
    return (uint64_t)(uintptr_t)caller << 3 | (uint64_t)domain;
}

static inline uint32_t sg_callsites_guess(uint64_t key)
{
    return (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 59);
}

static inline uint32_t sg_callsites_find(enum sg_callsite_class class, enum sg_domain domain, const void *caller)
{
    uint64_t key = sg_callsites_key(domain, caller);
    return sg_callsites_find_farther(class, key, sg_callsites_guess(key));
}

static inline uint32_t sg_callsites_add(enum sg_callsite_class class, uint32_t number, uint64_t bytes)
{
    struct sg_callsite *site = &sg_own->site[class][number];
    uint64_t live = sg_fetch_add(&site->live_bytes, bytes) + bytes;
    sg_add_relaxed(&site->live_count, 1);
    sg_raise_to(&site->peak_bytes, live);
    return number;
}

uint32_t sg_callsites_enter_farther(enum sg_callsite_class class, uint64_t key, uint32_t number, uint64_t bytes);

/* A block has come: the number of its site. The ways part early, or the usual one would save registers for the other. */
static inline uint32_t sg_callsites_enter(enum sg_callsite_class class, enum sg_domain domain, const void *caller,
                                          uint64_t bytes)
{
    uint64_t key = sg_callsites_key(domain, caller);
    uint32_t number = sg_callsites_guess(key);
    if (SG_LIKELY(sg_load_relaxed(&sg_own->site[class][number].key) == key))
        return sg_callsites_add(class, number, bytes);
    return sg_callsites_enter_farther(class, key, number, bytes);
}

/* The process's peak is now: the sites hold what they held at it, until one of them loses something. */
static inline void sg_callsites_note_peak(void)
{
    sg_store_relaxed(&sg_own->sites_peak_state, (uint32_t)SG_CALLSITES_PEAK_LIVE);
}

/* Before a site loses bytes: keeps what all sites held at the peak, where that is not done yet. */
void sg_callsites_keep_peak(void);

/* A refusal is recorded: keeps what all sites hold. */
void sg_callsites_keep_refusal(void);

/* It has gone. */
static inline void sg_callsites_leave(enum sg_callsite_class class, uint32_t number, uint64_t bytes)
{
    struct sg_callsite *site = &sg_own->site[class][number];
    if (SG_UNLIKELY(sg_load_relaxed(&sg_own->sites_peak_state) == SG_CALLSITES_PEAK_LIVE))
        sg_callsites_keep_peak();
    (void)sg_fetch_sub(&site->live_bytes, bytes);
    (void)sg_fetch_sub(&site->live_count, UINT64_C(1));
}

/* Names what could not be named when it was first seen, for want of a descriptor: each once. In the history's helper,
 * which has a table of descriptors of its own. */
void sg_callsites_name_late(void);

/* After a change of the map, under its lock: what its ranges say of the sites that it changed. */
void sg_callsites_publish_ranges(struct sg_range_map *ranges);

/* fork. before: in the parent, remembers. refork: in the child, whose window is zero again, begins with it. */
void sg_callsites_before_fork(void);
void sg_callsites_refork(void);

#endif
