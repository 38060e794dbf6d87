/*
 * rate.h - computes how fast a figure changes, and how long until it reaches a wall at that rate. Pure functions: they
 * use no clock and only the caller's memory. Any thread may call them.
 */
#ifndef SG_TOOLS_REPORT_WATCH_RATE_H
#define SG_TOOLS_REPORT_WATCH_RATE_H

#include <stddef.h>
#include <stdint.h>

#include "common/text.h"

enum { WATCH_SAMPLE_CAPACITY = 16 };

/* A rate is the mean over the samples of the last five seconds: long enough for a training step that allocates and
 * frees, short enough to be current. If samples are farther apart, it is the mean between the last two. */
#define WATCH_WINDOW_NS INT64_C(5000000000)

#define WATCH_NO_RATE INT64_MIN
#define WATCH_NEVER INT64_C(-1)

struct watch_trend {
    struct {
        int64_t time_ns;
        uint64_t bytes;
    } sample[WATCH_SAMPLE_CAPACITY]; /* the oldest sample first */
    size_t count;
};

/* Adds a figure with a later time than the last one. SG_UNKNOWN discards all earlier figures. */
void watch_trend_add(struct watch_trend *trend, int64_t time_ns, uint64_t bytes);

/* Returns bytes per second, negative if the figure falls; WATCH_NO_RATE with fewer than two samples. */
int64_t watch_trend_rate(const struct watch_trend *trend);

/* Returns the nanoseconds until `headroom_bytes` are taken; 0 if none are left, WATCH_NEVER if nothing is taken or the
 * rate is unknown. */
int64_t watch_time_to(uint64_t headroom_bytes, int64_t taken_per_second);

/* Formats "+1.2 GiB/s", or "-" if unknown, in at most WATCH_RATE_CELLS: from 1000 of a unit on without tenths. */
enum { WATCH_RATE_CELLS = 12, WATCH_WALL_CELLS = 10 };
const char *watch_rate_text(int64_t rate);
/* Like text_duration, without tenths and in at most WATCH_WALL_CELLS: from ten hours on only the largest unit. */
const char *watch_wall_text(int64_t time_ns);

#endif
