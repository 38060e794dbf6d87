/*
 * heaps.c - see heaps.h.
 */
#include "account/predict/heaps.h"

#include "base/atomics.h"

#define RECORD_LEAST (UINT64_C(256) << 20) /* less mapped address space is no evidence */
#define WHOLE_LEAST (UINT64_C(4) << 30)    /* the smallest address space of a whole heap */
#define WHOLE_UNIT (UINT64_C(1) << 30)     /* it is in whole GiB: of a block, the allocator's own words are a part */
#define EXPECTED_LEAST 4                   /* at least 1/4 is expected to be touched */

static uint64_t extent SG_AT_FORK, resident SG_AT_FORK; /* (atomic) by the last scan */

static bool is_power_of_two(uint64_t bytes)
{
    return (bytes & (bytes - 1)) == 0;
}

void sg_heaps_note(uint64_t extent_bytes, uint64_t resident_bytes)
{
    sg_store_relaxed(&extent, extent_bytes);
    sg_store_relaxed(&resident, resident_bytes);
}

bool sg_heaps_have_record(void)
{
    return sg_load_relaxed(&extent) >= RECORD_LEAST;
}

uint64_t sg_heaps_expected_bytes(uint64_t bytes)
{
    uint64_t least = bytes / EXPECTED_LEAST, mapped = sg_load_relaxed(&extent), touched = sg_load_relaxed(&resident);
    if (mapped < RECORD_LEAST)
        return is_power_of_two(bytes) ? least : bytes;
    uint64_t share_1024 = touched < mapped ? 1024 * (touched >> 20) / (mapped >> 20) : 1024;
    uint64_t expected = bytes / 1024 * share_1024;
    return expected > least ? expected : least;
}

bool sg_heaps_is_reservation(uint64_t bytes, uint64_t machine_bytes)
{
    return bytes > machine_bytes || (bytes >= WHOLE_LEAST && bytes % WHOLE_UNIT == 0 && !sg_heaps_have_record());
}

void sg_heaps_atfork_child(void)
{
    sg_heaps_note(0, 0);
}
