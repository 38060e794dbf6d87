/*
 * commits.c - see commits.h.
 */
#include "account/commits.h"

#include "base/atomics.h"
#include "base/syscall.h"

#include <string.h>

#define AGED_NS UINT64_C(250000000)
#define RECORD_LEAST (UINT64_C(256) << 20) /* less that was left untouched tells nothing */
#define IN_USE_SHARE 32                    /* less than this part that was touched: it has not begun to use it */
#define PROMISED_SHARE 4                   /* of what is untouched, this part is promised at least */

static struct {
    uint64_t touched, untouched;         /* by the last scan */
    uint64_t counted, counted_untouched; /* by the present one, so far */
    uint64_t aged;                       /* was untouched for AGED_NS, and still is */
    uint64_t least, begin_ns;            /* untouched at least since then */
    uint32_t is_on_record;               /* (atomic) */
} state;

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void sg_commits_begin_scan(void)
{
    state.counted = state.counted_untouched = 0;
}

void sg_commits_note(uint64_t touched_bytes, uint64_t untouched_bytes)
{
    state.counted += touched_bytes;
    state.counted_untouched += untouched_bytes;
}

static void note_age(uint64_t now)
{
    state.least = least_of(state.least, state.untouched);
    state.aged = least_of(state.aged, state.untouched);
    if (now - state.begin_ns < AGED_NS)
        return;
    state.aged = state.least;
    state.least = state.untouched;
    state.begin_ns = now;
}

static uint64_t promise_of(uint64_t untouched)
{
    if (sg_load(&state.is_on_record) == 0) /* or else the sizes are large enough for MiB */
        return untouched;
    if (untouched <= state.touched)
        return untouched;
    uint64_t of_1024 = 1024 * (state.touched >> 20) / ((state.touched + untouched) >> 20),
             least = 1024 / PROMISED_SHARE;
    return untouched / 1024 * (of_1024 > least ? of_1024 : least);
}

uint64_t sg_commits_end_scan(void)
{
    state.touched = state.counted;
    state.untouched = state.counted_untouched;
    note_age(sg_clock_ns(CLOCK_MONOTONIC));
    uint64_t promised = promise_of(state.untouched);
    if (promised == state.untouched)
        sg_store(&state.is_on_record, 0u);
    return promised;
}

bool sg_commits_have_record(void)
{
    uint64_t committed = state.touched + state.untouched;
    bool is_in_use = state.touched != 0 && state.touched >= committed / IN_USE_SHARE;
    return is_in_use && state.aged >= RECORD_LEAST && state.aged >= state.touched;
}

bool sg_commits_set_on_record(bool is_on)
{
    return sg_exchange(&state.is_on_record, (uint32_t)is_on) != 0;
}

uint64_t sg_commits_expected_bytes(uint64_t bytes)
{
    uint64_t now = promise_of(state.untouched), then = promise_of(state.untouched + bytes),
             least = bytes / PROMISED_SHARE;
    return then > now + least ? then - now : least;
}

bool sg_commits_are_on_record(void)
{
    return sg_load(&state.is_on_record) != 0;
}

void sg_commits_refork(void)
{
    memset(&state, 0, sizeof state);
}
