/*
 * callsites.h - call sites: the code that asked for large blocks, and how much each call site holds.
 *
 * CUDA blocks of any size have a call site. Mappings have one from SPARKGUARD_LARGE bytes on, heap blocks too, if they
 * are in the block table (tracker.h). The entry of each such block stores the number of its call site.
 *
 * A call site is the return address of the program's own call, outside this library, together with the domain. Each
 * class has SG_CALLSITE_CAPACITY numbers. When all are in use, further call sites share number 1 (SG_CALLSITE_OTHER).
 * Call sites are in the segment, with the name of the library and the offset in that library. The name is read from
 * /proc/self/maps when the call site is first seen: this takes no loader lock, and the name survives dlclose. Known
 * error: a library loaded later at the same address is reported under the first library's name.
 *
 * Thread-safety: any thread, also in signal handlers; no locks. Exceptions are noted. Cost for a known call site: some
 * twenty instructions.
 */
#ifndef SG_PRELOAD_ACCOUNT_CALLSITES_H
#define SG_PRELOAD_ACCOUNT_CALLSITES_H

#include "base/atomics.h"
#include "base/range_map.h"
#include "shared/segment.h"

/* The search of sg_callsites_find, from number `number` on; claims a free number for an unknown call site. `key`: as in
 * struct sg_callsite. Returns the number of the call site, never 0. */
uint32_t sg_callsites_find_farther(enum sg_callsite_class class, uint64_t key, uint32_t number);

static inline uint64_t sg_callsites_key(enum sg_domain domain, const void *caller)
{
    return (uint64_t)(uintptr_t)caller << 3 | (uint64_t)domain;
}

/* The number at which the search for a key begins: a hash of five bits. */
static inline uint32_t sg_callsites_guess(uint64_t key)
{
    return (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 59);
}

/* Returns the number of a call site, never 0. `caller`: the return address of the program's call. */
static inline uint32_t sg_callsites_find(enum sg_callsite_class class, enum sg_domain domain, const void *caller)
{
    uint64_t key = sg_callsites_key(domain, caller);
    uint32_t number = sg_callsites_guess(key);
    if (SG_LIKELY(sg_load_relaxed(&sg_own->site[class][number].key) == key))
        return number;
    return sg_callsites_find_farther(class, key, number);
}

/* Adds one block of `bytes` to call site `number`; returns `number`. */
static inline uint32_t sg_callsites_add(enum sg_callsite_class class, uint32_t number, uint64_t bytes)
{
    struct sg_callsite *site = &sg_own->site[class][number];
    uint64_t live = sg_fetch_add(&site->live_bytes, bytes) + bytes;
    sg_add_relaxed(&site->live_count, 1);
    sg_raise_to(&site->peak_bytes, live);
    return number;
}

/* The slow path of sg_callsites_enter: searches from number `number` on. */
uint32_t sg_callsites_enter_farther(enum sg_callsite_class class, uint64_t key, uint32_t number, uint64_t bytes);

/* Finds the call site of a new block and adds the block to it; returns the number of the call site. The two paths share
 * no code after the comparison: otherwise the compiler saves registers on the fast path for the slow one. */
static inline uint32_t sg_callsites_enter(enum sg_callsite_class class, enum sg_domain domain, const void *caller,
                                          uint64_t bytes)
{
    uint64_t key = sg_callsites_key(domain, caller);
    uint32_t number = sg_callsites_guess(key);
    if (SG_LIKELY(sg_load_relaxed(&sg_own->site[class][number].key) == key))
        return sg_callsites_add(class, number, bytes);
    return sg_callsites_enter_farther(class, key, number, bytes);
}

/* Notes that the process is at a new peak. The live bytes of the call sites are the figures of that peak until the
 * first call site loses bytes; sg_callsites_keep_peak copies them then. */
static inline void sg_callsites_note_peak(void)
{
    sg_store_relaxed(&sg_own->sites_peak_state, (uint32_t)SG_CALLSITES_PEAK_LIVE);
}

/* Copies the live bytes of all call sites as figures of the peak, unless that is done already. To be called before a
 * call site loses bytes. */
void sg_callsites_keep_peak(void);

/* Copies the live bytes of all call sites as figures of the refusal that is being recorded. */
void sg_callsites_keep_refusal(void);

/* Takes `count` blocks of `bytes` in all off their call site, because they are freed. */
static inline void sg_callsites_leave_blocks(enum sg_callsite_class class, uint32_t number, uint64_t bytes,
                                             uint64_t count)
{
    struct sg_callsite *site = &sg_own->site[class][number];
    if (SG_UNLIKELY(sg_load_relaxed(&sg_own->sites_peak_state) == SG_CALLSITES_PEAK_LIVE))
        sg_callsites_keep_peak();
    (void)sg_fetch_sub(&site->live_bytes, bytes);
    (void)sg_fetch_sub(&site->live_count, count);
}

static inline void sg_callsites_leave(enum sg_callsite_class class, uint32_t number, uint64_t bytes)
{
    sg_callsites_leave_blocks(class, number, bytes, 1);
}

/* Names call sites that got no name when they were first seen because the program had no free descriptor. Tries each
 * call site once. Only in the history thread: it has a descriptor table of its own, and runs alone. */
void sg_callsites_name_late(void);

/* Publishes the sums of the call sites that the last change of `ranges` touched. Under sg_tracker_maps_lock, after each
 * change of the map. */
void sg_callsites_publish_ranges(struct sg_range_map *ranges);

/* fork. before_fork, in the parent: copies the call sites. atfork_child, in the child: fills the child's new, empty
 * segment with that copy. */
void sg_callsites_before_fork(void);
void sg_callsites_atfork_child(void);

#endif
