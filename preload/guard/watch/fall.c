/*
 * fall.c - see fall.h.
 */
#include "watch/fall.h"

#include <string.h>

#define MS_NS UINT64_C(1000000)
#define PART_NS (100 * MS_NS)
#define GAP_NS (10 * PART_NS) /* without a sample for so long, the time of the fall is unknown: start again */

/* Bytes per millisecond over all samples; 0 if a part lost less than a quarter of an equal share. */
static uint64_t measure(const struct sg_fall *fall)
{
    const uint64_t whole_ms = (fall->sample[SG_FALL_PARTS].time_ns - fall->sample[0].time_ns) / MS_NS;
    const uint64_t first = fall->sample[0].left_bytes, last = fall->sample[SG_FALL_PARTS].left_bytes;
    if (first <= last)
        return 0;
    const uint64_t rate = (first - last) / whole_ms;
    for (int i = 0; i < SG_FALL_PARTS; i++) {
        uint64_t before = fall->sample[i].left_bytes, after = fall->sample[i + 1].left_bytes;
        uint64_t part_ms = (fall->sample[i + 1].time_ns - fall->sample[i].time_ns) / MS_NS;
        if (after >= before || before - after < rate * part_ms / 4)
            return 0;
    }
    return rate;
}

void sg_fall_note(struct sg_fall *fall, uint64_t identity, uint64_t left_bytes, uint64_t now_ns)
{
    uint64_t since = fall->count != 0 ? now_ns - fall->sample[fall->count - 1].time_ns : 0;
    if (fall->identity != identity || since > GAP_NS)
        *fall = (struct sg_fall){.identity = identity};
    else if (fall->count != 0 && since < PART_NS)
        return;
    if (fall->count > SG_FALL_PARTS) {
        memmove(fall->sample, fall->sample + 1, SG_FALL_PARTS * sizeof fall->sample[0]);
        fall->count = SG_FALL_PARTS;
    }
    fall->sample[fall->count].time_ns = now_ns;
    fall->sample[fall->count].left_bytes = left_bytes;
    fall->count++;
    fall->bytes_per_ms = fall->count > SG_FALL_PARTS ? measure(fall) : 0;
}

uint64_t sg_fall_zero_in_ns(const struct sg_fall *fall, uint64_t left_bytes)
{
    return fall->bytes_per_ms != 0 ? left_bytes / fall->bytes_per_ms * MS_NS : UINT64_MAX;
}
