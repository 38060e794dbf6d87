/*
 * fall.h - how fast usable memory falls, and how long it lasts at that rate.
 *
 * Memory goes in steps, and one step is no fall that goes on. A fall is measured over half a second, in five parts.
 * It counts only if it went on in every part: no part lost less than a quarter of an equal share. One thread.
 */
#ifndef SG_PRELOAD_WATCH_FALL_H
#define SG_PRELOAD_WATCH_FALL_H

#include <stdint.h>

enum { SG_FALL_PARTS = 5 };

struct sg_fall {
    uint64_t identity;     /* of the constraint that is measured; another one begins anew */
    uint64_t bytes_per_ms; /* 0: nothing has fallen all the time, or for less than half a second */
    uint32_t count;        /* of the samples */
    struct {
        uint64_t time_ns, left_bytes;
    } sample[SG_FALL_PARTS + 1]; /* the oldest first */
};

/* `left_bytes` are usable at `now_ns`. To be called every 100 ms or more often. */
void sg_fall_note(struct sg_fall *fall, uint64_t identity, uint64_t left_bytes, uint64_t now_ns);

/* When nothing is left at the measured rate; UINT64_MAX: it does not fall. */
uint64_t sg_fall_zero_in_ns(const struct sg_fall *fall, uint64_t left_bytes);

#endif
