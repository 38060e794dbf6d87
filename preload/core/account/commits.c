/*
 * commits.c - see commits.h.
 */
#include "account/commits.h"

#include "base/atomics.h"
#include "base/clock.h"
#include "base/pages.h"
#include "base/syscall.h"

#include <string.h>

#define AGED_NS UINT64_C(250000000)        /* how long bytes must stay untouched to count as a record */
#define RECORD_LEAST (UINT64_C(256) << 20) /* fewer untouched bytes are no evidence */
#define IN_USE_SHARE 64                    /* less than 1/64 touched: the process has not begun to use its commits */
#define PROMISED_SHARE 4                   /* at least 1/4 of the untouched bytes is promised */

static struct {
    uint64_t touched, untouched;         /* bytes, by the last scan */
    uint64_t counted, counted_untouched; /* bytes, by the present scan so far */
    uint64_t aged;                       /* bytes that were untouched for AGED_NS and still are */
    uint64_t least, begin_ns;            /* fewest untouched bytes since begin_ns (CLOCK_MONOTONIC) */
    uint32_t is_on_record;               /* (atomic) the promise follows the record */
} state SG_AT_FORK;

void sg_commits_note(uint64_t touched_bytes, uint64_t untouched_bytes)
{
    state.counted += touched_bytes;
    state.counted_untouched += untouched_bytes;
}

/* Updates `aged` once per AGED_NS: untouched bytes are aged if they were untouched at each scan of that time. */
static void note_age(uint64_t now)
{
    state.least = sg_smaller(state.least, state.untouched);
    state.aged = sg_smaller(state.aged, state.untouched);
    if (now - state.begin_ns < AGED_NS)
        return;
    state.aged = state.least;
    state.least = state.untouched;
    state.begin_ns = now;
}

/* How many of `untouched` bytes are to be promised. A record needs 256 MiB when it is set, so whole MiB are exact
 * enough. */
static uint64_t promise_of(uint64_t untouched)
{
    if (sg_load(&state.is_on_record) == 0)
        return untouched;
    uint64_t committed_mib = (state.touched + untouched) >> 20;
    if (untouched <= state.touched || committed_mib == 0)
        return untouched;
    uint64_t share_1024 = 1024 * (state.touched >> 20) / committed_mib, least = 1024 / PROMISED_SHARE;
    return untouched / 1024 * (share_1024 > least ? share_1024 : least);
}

uint64_t sg_commits_end_scan(void)
{
    state.touched = state.counted;
    state.untouched = state.counted_untouched;
    state.counted = state.counted_untouched = 0; /* for the next scan */
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
    uint64_t now = promise_of(state.untouched), later = promise_of(state.untouched + bytes),
             least = bytes / PROMISED_SHARE;
    return later > now + least ? later - now : least;
}

bool sg_commits_are_on_record(void)
{
    return sg_load(&state.is_on_record) != 0;
}

void sg_commits_atfork_child(void)
{
    memset(&state, 0, sizeof state);
}
