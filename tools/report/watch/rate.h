/*
 * rate.h - how fast a figure changes, and how long until it meets a wall at that rate. Pure: no clock, no memory but
 * the caller's; any thread.
 */
#ifndef SG_TOOLS_REPORT_WATCH_RATE_H
#define SG_TOOLS_REPORT_WATCH_RATE_H

#include <stddef.h>
#include <stdint.h>

enum { WATCH_SAMPLE_ROOM = 16 };

/* A rate is the mean over the samples of the last five seconds: long enough for a training step that takes and gives
 * back, short enough to be the present. Of samples that lie farther apart it is the mean between the last two. */
#define WATCH_WINDOW_NS INT64_C(5000000000)

#define WATCH_NO_RATE INT64_MIN
#define WATCH_NEVER INT64_C(-1)

struct watch_trend {
    struct {
        int64_t time_ns;
        uint64_t bytes;
    } sample[WATCH_SAMPLE_ROOM]; /* the oldest first */
    size_t count;
};

/* Takes a figure of a later time than the last. SG_UNKNOWN is none: what came before it is forgotten. */
void watch_trend_add(struct watch_trend *trend, int64_t time_ns, uint64_t bytes);

/* Bytes per second, negative where it falls; WATCH_NO_RATE of fewer than two samples. */
int64_t watch_trend_rate(const struct watch_trend *trend);

/* Nanoseconds until `room_bytes` are taken; 0 where none are left, WATCH_NEVER where nothing is taken or that is unknown. */
int64_t watch_time_to(uint64_t room_bytes, int64_t taken_per_second);

#endif
