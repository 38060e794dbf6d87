/*
 * rate.c - see rate.h.
 */
#include "report/watch/rate.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "sparkguard_abi.h"

static void drop_oldest(struct watch_trend *trend)
{
    memmove(trend->sample, trend->sample + 1, --trend->count * sizeof trend->sample[0]);
}

void watch_trend_add(struct watch_trend *trend, int64_t time_ns, uint64_t bytes)
{
    if (bytes == SG_UNKNOWN) {
        trend->count = 0;
        return;
    }
    while (trend->count == WATCH_SAMPLE_CAPACITY ||
           (trend->count > 1 && time_ns - trend->sample[0].time_ns > WATCH_WINDOW_NS))
        drop_oldest(trend);
    trend->sample[trend->count].time_ns = time_ns;
    trend->sample[trend->count++].bytes = bytes;
}

int64_t watch_trend_rate(const struct watch_trend *trend)
{
    if (trend->count < 2)
        return WATCH_NO_RATE;
    size_t last = trend->count - 1;
    double bytes = (double)trend->sample[last].bytes - (double)trend->sample[0].bytes;
    double seconds = (double)(trend->sample[last].time_ns - trend->sample[0].time_ns) / 1e9;
    double rate = bytes / seconds;
    return seconds <= 0 || rate > 9e18 || rate < -9e18 ? WATCH_NO_RATE : (int64_t)rate;
}

int64_t watch_time_to(uint64_t headroom_bytes, int64_t taken_per_second)
{
    if (headroom_bytes == SG_UNKNOWN || taken_per_second == WATCH_NO_RATE || taken_per_second <= 0)
        return WATCH_NEVER;
    double time_ns = (double)headroom_bytes / (double)taken_per_second * 1e9;
    return time_ns > 9e18 ? WATCH_NEVER : (int64_t)time_ns;
}

/* ---- what the head says beyond the report's ---------------------------------------------------------------------- */

const char *watch_rate_text(int64_t rate)
{
    if (rate == WATCH_NO_RATE)
        return "-";
    char *size = text_size(rate < 0 ? (uint64_t)-rate : (uint64_t)rate), *tenths = strchr(size, '.');
    if (tenths != NULL && tenths - size > 3)
        memmove(tenths, tenths + 2, strlen(tenths + 2) + 1);
    return text_format("%s%s/s", rate > 0 ? "+" : rate < 0 ? "-" : "", size);
}

const char *watch_wall_text(int64_t time_ns)
{
    int64_t seconds = time_ns / 1000000000, minutes = seconds / 60;
    if (time_ns < 0)
        return "-";
    if (minutes < 1)
        return text_format("%" PRId64 " s", seconds);
    if (minutes < 10)
        return text_format("%" PRId64 " min %" PRId64 " s", minutes, seconds % 60);
    if (minutes < 60)
        return text_format("%" PRId64 " min", minutes);
    if (minutes < 600 || (minutes >= 1440 && minutes < 14400))
        return text_duration(time_ns);
    return minutes < 1440 ? text_format("%" PRId64 " h", minutes / 60) : text_format("%" PRId64 " d", minutes / 1440);
}
