/*
 * fall.h - measures how fast usable memory falls, and estimates when none is left at that rate.
 *
 * Memory is taken in steps, and one step is not a continuous fall. Therefore a fall is measured over half a second, in
 * five parts. It counts only if every part lost at least a quarter of an equal share.
 *
 * Not thread-safe: one thread per struct sg_fall.
 */
#ifndef SG_PRELOAD_WATCH_FALL_H
#define SG_PRELOAD_WATCH_FALL_H

#include <stdint.h>

enum { SG_FALL_PARTS = 5 };

struct sg_fall {
    uint64_t identity;     /* of the measured constraint; a different one starts the measurement again */
    uint64_t bytes_per_ms; /* 0: no continuous fall, or less than half a second of samples */
    uint32_t count;        /* of the samples */
    struct {
        uint64_t time_ns, left_bytes;
    } sample[SG_FALL_PARTS + 1]; /* the oldest first */
};

/* Adds a sample: `left_bytes` are usable at `now_ns` (CLOCK_MONOTONIC). Call it every 100 ms or more often; samples
 * within 100 ms of the last one are dropped. */
void sg_fall_note(struct sg_fall *fall, uint64_t identity, uint64_t left_bytes, uint64_t now_ns);

/* Nanoseconds until `left_bytes` are used up at the measured rate; UINT64_MAX: no continuous fall. */
uint64_t sg_fall_zero_in_ns(const struct sg_fall *fall, uint64_t left_bytes);

#endif
