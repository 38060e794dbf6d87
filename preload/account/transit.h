/*
 * transit.h - bytes that go from one place to another, of which a look that reads place after place would miss them, or
 * leave them in places that it has read.
 *
 * Who moves bytes says so from before they leave until after they have arrived; who looks learns how many were on their
 * way at any time of the look, some of them perhaps found all the same: too much, never too little
 * (tests/model/scan.pml). Any thread, any time, also in signal handlers.
 */
#ifndef SG_PRELOAD_ACCOUNT_TRANSIT_H
#define SG_PRELOAD_ACCOUNT_TRANSIT_H

#include "base/atomics.h"

#include <stdint.h>

struct sg_transit {
    uint64_t ever_bytes; /* (atomic) never less */
    uint64_t now_bytes;  /* (atomic) */
};

/* Bytes that come to be, and are where a look finds them. */
static inline void sg_transit_note(struct sg_transit *transit, uint64_t bytes)
{
    sg_fetch_add(&transit->ever_bytes, bytes);
}

/* In this order, here and in begin_look: who comes too late to be seen on his way is noted since. */
static inline void sg_transit_begin(struct sg_transit *transit, uint64_t bytes)
{
    sg_fetch_add(&transit->now_bytes, bytes);
    sg_fetch_add(&transit->ever_bytes, bytes);
}

static inline void sg_transit_end(struct sg_transit *transit, uint64_t bytes)
{
    (void)sg_sub_clamped(&transit->now_bytes, bytes); /* in a child that was forked meanwhile nothing is */
}

/* What is to be given to sg_transit_since. */
static inline uint64_t sg_transit_begin_look(const struct sg_transit *transit)
{
    uint64_t before = sg_load(&transit->ever_bytes);
    return sg_load(&transit->now_bytes) - before;
}

/* How many bytes were on their way, or noted, since the look began. */
static inline uint64_t sg_transit_since(const struct sg_transit *transit, uint64_t look)
{
    return look + sg_load(&transit->ever_bytes);
}

/* In a forked child: what was on its way, was so through threads that it does not have. */
static inline void sg_transit_refork(struct sg_transit *transit)
{
    sg_store(&transit->now_bytes, UINT64_C(0));
}

#endif
