/*
 * rate.h - how fast a figure changes, and how long until it meets a wall at that rate. Pure: no clock, no memory but
 * the caller's; any thread.
 */
#ifndef SG_TOOLS_REPORT_WATCH_RATE_H
#define SG_TOOLS_REPORT_WATCH_RATE_H

#include <stddef.h>
#include <stdint.h>

#include "common/text.h"

enum { WATCH_SAMPLE_CAPACITY = 16 };

/* A rate is the mean over the samples of the last five seconds: long enough for a training step that takes and gives
 * back, short enough to be the present. Of samples that lie farther apart it is the mean between the last two. */
#define WATCH_WINDOW_NS INT64_C(5000000000)

#define WATCH_NO_RATE INT64_MIN
#define WATCH_NEVER INT64_C(-1)

struct watch_trend {
    struct {
        int64_t time_ns;
        uint64_t bytes;
    } sample[WATCH_SAMPLE_CAPACITY]; /* the oldest first */
    size_t count;
};

/* Takes a figure of a later time than the last. SG_UNKNOWN is none: what came before it is forgotten. */
void watch_trend_add(struct watch_trend *trend, int64_t time_ns, uint64_t bytes);

/* Bytes per second, negative where it falls; WATCH_NO_RATE of fewer than two samples. */
int64_t watch_trend_rate(const struct watch_trend *trend);

/* Nanoseconds until `headroom_bytes` are taken; 0 where none are left, WATCH_NEVER where nothing is taken or that is
 * unknown. */
int64_t watch_time_to(uint64_t room_bytes, int64_t taken_per_second);

/* "+1.2 GiB/s", "-" where unknown; at most WATCH_RATE_CELLS: from 1000 of a unit on without tenths. */
enum { WATCH_RATE_TEXT = 24, WATCH_RATE_CELLS = 12, WATCH_WALL_CELLS = 10 };
const char *watch_rate_text(char text[WATCH_RATE_TEXT], int64_t rate);
/* As text_duration, without tenths and in at most WATCH_WALL_CELLS: from ten hours on the largest unit tells. */
const char *watch_wall_text(char text[TEXT_TIME_CAPACITY], int64_t time_ns);

#endif
