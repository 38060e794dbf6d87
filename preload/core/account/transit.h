/*
 * transit.h - counts bytes that are being moved between indexes, so that a scan which visits the indexes in turn never
 * misses them.
 *
 * Without this count a scan misses bytes that are in no index at the moment, or that moved to an index which the scan
 * has already visited. A thread that moves bytes calls sg_transit_begin before it removes them and sg_transit_end after
 * it has entered them again. A scan learns how many bytes were in transit at any time during the scan. The scan may
 * have found some of these bytes as well: the result is too high, never too low (tests/model/scan.pml). Any thread,
 * any time, also in signal handlers.
 */
#ifndef SG_PRELOAD_ACCOUNT_TRANSIT_H
#define SG_PRELOAD_ACCOUNT_TRANSIT_H

#include "base/atomics.h"

#include <stdint.h>

struct sg_transit {
    uint64_t ever_bytes; /* (atomic) sum of all bytes noted or moved; never falls */
    uint64_t now_bytes;  /* (atomic) bytes in transit now */
};

/* Notes new bytes that are already where a scan finds them: a scan that has passed that place adds them. */
static inline void sg_transit_note(struct sg_transit *transit, uint64_t bytes)
{
    sg_fetch_add(&transit->ever_bytes, bytes);
}

/* Begins a move. now_bytes changes first, and sg_transit_begin_scan reads it last: a move that the scan does not see in
 * now_bytes raises ever_bytes later than the scan read it, and so counts in sg_transit_since. */
static inline void sg_transit_begin(struct sg_transit *transit, uint64_t bytes)
{
    sg_fetch_add(&transit->now_bytes, bytes);
    sg_fetch_add(&transit->ever_bytes, bytes);
}

/* Ends a move. Clamped at 0: a child forked during the move has reset now_bytes (sg_transit_atfork_child). */
static inline void sg_transit_end(struct sg_transit *transit, uint64_t bytes)
{
    (void)sg_sub_clamped(&transit->now_bytes, bytes);
}

/* Begins a scan. Returns the `start` argument of sg_transit_since. */
static inline uint64_t sg_transit_begin_scan(const struct sg_transit *transit)
{
    uint64_t before = sg_load(&transit->ever_bytes);
    return sg_load(&transit->now_bytes) - before;
}

/* How many bytes were in transit, or noted, since the scan began. */
static inline uint64_t sg_transit_since(const struct sg_transit *transit, uint64_t start)
{
    return start + sg_load(&transit->ever_bytes);
}

/* In a forked child: nothing is in transit, because the threads that were moving bytes are not in the child. */
static inline void sg_transit_atfork_child(struct sg_transit *transit)
{
    if (sg_load(&transit->now_bytes) != 0) /* writing what is there would cost the child a page */
        sg_store(&transit->now_bytes, UINT64_C(0));
}

#endif
