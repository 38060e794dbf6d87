/*
 * headroom.h - how much room there is: the last snapshot at the machine, what all guarded processes have of it, and
 * what that leaves above reserve and floor.
 *
 * One look serves the small requests of the next 5 ms that are below 1/16 of the slack it showed, as long as everything
 * asked for on the whole machine since then stays within that slack (sg_registry_take); frees do not refill it.
 * Everything else looks again. A process's own promises are an upper bound: grants add to it, only a scan takes away.
 *
 * Under the decision lock, except where noted.
 */
#ifndef SG_PRELOAD_ADMIT_HEADROOM_H
#define SG_PRELOAD_ADMIT_HEADROOM_H

#include "admit/admission.h"
#include "shared/peers.h"

#include <stdbool.h>
#include <stdint.h>

/* The line a request may not take usable memory below. */
enum sg_headroom_line { SG_HEADROOM_RESERVE, SG_HEADROOM_FLOOR };

/* What counts as gone besides this process's own promises. */
enum sg_headroom_part {
    SG_HEADROOM_PROMISES = 1u << 0,      /* the other processes' */
    SG_HEADROOM_FLIGHT = 1u << 1,        /* everybody's requests in flight */
    SG_HEADROOM_STALLED = 1u << 4,       /* without SG_HEADROOM_FLIGHT: those of them that are not worth waiting for */
    SG_HEADROOM_QUEUED_BEFORE = 1u << 2, /* what those before us ask for */
    SG_HEADROOM_QUEUED_AFTER = 1u << 3,  /* and those behind us */
    SG_HEADROOM_ALL = SG_HEADROOM_PROMISES | SG_HEADROOM_FLIGHT | SG_HEADROOM_QUEUED_BEFORE,
};

/* Sums up the other processes, then looks at the machine and its cgroups, and publishes what was seen. `device`: the
 * identity of the discrete device asked for, or 0. `is_closely`: before something is refused. */
void sg_headroom_refresh(uint64_t device, bool is_closely);

/* One constraint as the kernel shows it, by the last snapshot: 0 is the machine (identity 0), the rest are cgroups.
 * Only hard limits count (memory.max, not memory.high). False: there are no more. */
struct sg_headroom_state {
    uint64_t headroom_bytes, reserve_bytes, floor_bytes, identity;
    bool is_hard; /* false: it has no hard limit, and the figures mean nothing */
};
bool sg_headroom_get_hard(uint32_t constraint, struct sg_headroom_state *out);

/* What the others have, by the last snapshot. */
const struct sg_peers *sg_headroom_tally(void);

/* The last snapshot serves nobody any more. */
void sg_headroom_forget(void);

/* Whether the last snapshot saw anything: false without /proc and sysinfo. */
bool sg_headroom_is_known(void);

/* Bytes above the line by the last snapshot, less all that was asked for since; negative: below it. */
int64_t sg_headroom_slack(enum sg_headroom_line line);

/* Adds what is already promised to what was asked for, and tells whether the last snapshot shows room for it. Any
 * thread. */
bool sg_headroom_take(enum sg_headroom_line line, uint64_t bytes);

/* Whether it would be above the floor with `bytes` more, by the last snapshot, if nothing came of all that is in flight
 * and asked for. */
bool sg_headroom_would_be_above_floor(uint64_t bytes);

/* Whether the request fits every constraint above its reserve, enum sg_headroom_part being gone; fills in the answer. */
bool sg_headroom_fits(struct sg_request *request, uint32_t parts);

/* What a CUDA request could have now, above the reserve, of the machine and, if they bound it, of the cgroups; 0 if
 * nothing or unknown. */
uint64_t sg_headroom_for_cuda(bool is_bounded);

/* What all guarded programs together could have of CUDA memory, with what they have: before the reserve. */
uint64_t sg_headroom_for_all_cuda(void);
uint64_t sg_headroom_reserve_bytes(void);

/* What the cgroups would let this process have above their reserves; UINT64_MAX: none bounds it. */
uint64_t sg_headroom_in_cgroups(void);

/* Whether `bytes` more could be populated without anybody being swapped out. */
bool sg_headroom_swaps_nobody(uint64_t bytes);

/* Whether nothing of our own cgroup can be swapped out, whatever is asked of it: there is no swap, or none for us. */
bool sg_headroom_is_swapless(void);

/* MemTotal less the pool of huge pages, MemAvailable and MemFree by the last snapshot; the first without the lock, too. */
uint64_t sg_headroom_total_bytes(void);
uint64_t sg_headroom_available_bytes(void);
uint64_t sg_headroom_free_bytes(void);

/* MemFree as it is now: costs a twentieth of a look, but over a made-up machine it is one. */
uint64_t sg_headroom_measure_free(void);

/* What was available when `free_bytes` were free, a moment ago: by the last snapshot, which is renewed if it is old.
 * What moves between free and cache within its age makes it wrong by as much. */
uint64_t sg_headroom_available_with(uint64_t free_bytes);

/* Scans what is promised by now; if_due: unless that was done a moment ago (at most 2 % of the time goes there);
 * if_old: where it matters (at most 20 %). */
void sg_headroom_scan(void);
void sg_headroom_scan_if_due(void);
void sg_headroom_scan_if_old(void);

/* The memory that guarded programs may use at all: MemTotal minus the pool of huge pages and the reserve. */
uint64_t sg_headroom_machine_bytes(void);

/* SwapFree by the last snapshot; and the CUDA memory of the machine that guarded processes hold, managed memory and
 * others' pinned apart. */
uint64_t sg_headroom_swap_free_bytes(void);
uint64_t sg_headroom_live_cuda_bytes(void);

/* Whether device memory comes out of the machine's: 1, 0, or -1 while nobody knows (then it is judged as if).
 * `is_hidden`: it is said to, but MemAvailable never shows it (a discrete card under SPARKGUARD_UNIFIED=on). Any
 * thread. */
int sg_headroom_unified(void);
void sg_headroom_set_unified(int unified, bool is_hidden);

void sg_headroom_refork(void);

#endif
