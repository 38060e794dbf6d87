/*
 * headroom.h - headroom: what the last snapshot leaves above the reserve and the floor, less what guarded processes
 * have taken of it.
 *
 * A cached snapshot, younger than 5 ms, serves requests below 1/16 of the slack that it showed, above the line and
 * below the job's limit. It does so while all requests of the machine since then stay within that slack
 * (sg_registry_take). Frees do not refill the slack. Other requests take a new snapshot.
 *
 * A process's own promises are an upper bound: grants raise it, and each snapshot lowers it by the kernel's figure.
 *
 * All functions need the decision lock, except where noted.
 */
#ifndef SG_PRELOAD_ADMIT_HEADROOM_H
#define SG_PRELOAD_ADMIT_HEADROOM_H

#include "admit/snapshot.h"
#include "base/options.h"
#include "shared/peers.h"
#include "shared/settings.h"

#include <stdbool.h>
#include <stdint.h>

/* The line below which a request may not take usable memory. */
enum sg_headroom_line { SG_HEADROOM_RESERVE, SG_HEADROOM_FLOOR };

/* What counts as taken, besides this process's own promises. A set of bits. */
enum sg_headroom_part {
    SG_HEADROOM_PROMISES = 1u << 0,      /* promises of other processes */
    SG_HEADROOM_FLIGHT = 1u << 1,        /* requests in flight, of all processes */
    SG_HEADROOM_STALLED = 1u << 4,       /* without SG_HEADROOM_FLIGHT: only the stalled ones of them (peers.h) */
    SG_HEADROOM_QUEUED_BEFORE = 1u << 2, /* requests queued before this process's */
    SG_HEADROOM_QUEUED_AFTER = 1u << 3,  /* and after it */
    SG_HEADROOM_NO_CLAIMS = 1u << 5,     /* without this: what is left of the claims of other jobs (claims.h) */
    SG_HEADROOM_NO_POOL = 1u << 6,       /* without this: the driver's pool is room for device memory (pool_room.h) */
    SG_HEADROOM_ALL = SG_HEADROOM_PROMISES | SG_HEADROOM_FLIGHT | SG_HEADROOM_QUEUED_BEFORE,
};

/* The last snapshot, the sums over the other processes from just before it, and those of CUDA memory from just after it
 * (older where no process uses CUDA). Only headroom.c writes these. */
extern struct sg_headroom_last {
    struct sg_snapshot snapshot;
    struct sg_peers peers;
    struct sg_cuda_sum cuda_after[1 + SG_ENTRY_LEVELS];
} sg_headroom_last;

/* Takes a new snapshot: sums up the registry entries first, then reads the figures of the machine and its cgroups, and
 * publishes them in the segment. `device`: identity of the discrete device that the request is for, or 0. `is_closely`:
 * also asks the kernel how far other processes have touched their promises; used before a refusal. */
void sg_headroom_refresh(uint64_t device, bool is_closely);

/* The same beside a call whose memory the kernel shows while it is in flight still: it counts twice, so that nothing is
 * published. Requests may be admitted by it: they get less than there is, for 5 ms at most. */
void sg_headroom_look(bool is_closely);

/* The same for the watchdog, whose decision rests on the kernel's figures. Claims are added up once a second only; what
 * is published has the last ones, and no request is admitted by a snapshot without new ones. */
void sg_headroom_watch(void);

/* In a container: tells the host what its processes have promised, by the last snapshot and what this process has been
 * granted since (containers.h). */
void sg_headroom_tell_host(void);

/* Returns the limit of this process in bytes: by sparkguard --set, else SPARKGUARD_LIMIT; 0: none. Stores it in the
 * slot, and adds an event if sparkguard --set has changed it. */
uint64_t sg_headroom_own_limit_bytes(void);

/* The smallest limit of the job's processes; 0: none has one. */
static inline uint64_t sg_headroom_limit_bytes(void)
{
    uint64_t others = sg_headroom_last.peers.job_limit_bytes, own = sg_headroom_own_limit_bytes();
    if (SG_UNLIKELY(sg_load(&sg_settings.limit_bytes) != 0)) /* an idle process still shows the limit before it */
        return own;
    return own == 0 || (others != 0 && others < own) ? others : own;
}

/* Bytes that the job holds against its limit: this process now, and the job's others by the last snapshot. `parts`:
 * enum sg_headroom_part, which requests under way count as held. */
uint64_t sg_headroom_job_bytes(uint32_t parts);

/* Whether a process of the job has a limit, by the last snapshot. Any thread, without the lock. */
bool sg_headroom_has_limit(void);

/* Makes the cached snapshot unusable for further requests. */
void sg_headroom_forget(void);

/* Bytes above the line by the last snapshot, less all that the machine's processes have requested since. Negative:
 * usable memory is below the line. */
int64_t sg_headroom_slack(enum sg_headroom_line line);

/* Whether the cached snapshot is new enough and shows headroom for `bytes`: then sg_headroom_take may be tried. Any
 * thread, without the lock. */
bool sg_headroom_may_take(enum sg_headroom_line line, uint64_t bytes);

/* Adds `bytes`, which are in flight already, to the requests of the machine. True: the cached snapshot shows headroom
 * for them, whatever other processes have asked for meanwhile. False: a new snapshot must decide. Any thread, without
 * the lock. */
bool sg_headroom_take(enum sg_headroom_line line, uint64_t bytes);

/* Whether usable memory would stay above the floor with `bytes` more, if every request in flight or queued came to
 * nothing. By the last snapshot. Then waiting for those requests makes sense. */
bool sg_headroom_would_be_above_floor(uint64_t bytes);

/* Bytes of a constraint of the last snapshot that are taken and that the kernel's figures do not show. */
uint64_t sg_headroom_taken(uint32_t constraint, uint32_t parts);

/* Bytes of a constraint of the last snapshot that can still be had; its reserve is not subtracted. `parts`: enum
 * sg_headroom_part, what counts as taken. `is_cuda`: free CMA pages do not count. */
uint64_t sg_headroom_usable(uint32_t constraint, uint32_t parts, bool is_cuda);

/* What is left of the claims of other jobs on a constraint of the last snapshot (claims.h). */
uint64_t sg_headroom_claimed_by_others(uint32_t constraint);

/* Bytes of requests under way that count as taken: `others` of other processes, `own_flight_bytes` of this one. The
 * machine, a cgroup, a card and the job's limit are all compared by this rule. Any thread, without the lock. */
uint64_t sg_headroom_under_way(const struct sg_peer_sums *others, uint64_t own_flight_bytes, uint32_t parts);

/* The driver keeps lists of the pages of device memory, 24 bytes for each 4 KiB: this part of a request on top. */
#define SG_HEADROOM_LISTS_PART 160

/* Bytes above the reserve that one CUDA request could get; 0 if none or unknown. `is_bounded`: the cgroups count, too,
 * besides the machine. `pooled_bytes`: what the driver's pool would serve. */
uint64_t sg_headroom_for_cuda(bool is_bounded, uint64_t pooled_bytes);

/* Bytes above the reserves of the machine and all cgroups that one request for host memory could get; UINT64_MAX: the
 * last snapshot has no constraint. */
uint64_t sg_headroom_for_host(void);

/* MemFree at this moment. Costs a twentieth of a snapshot. With SPARKGUARD_SYSTEM_ROOT set, it takes a snapshot. */
uint64_t sg_headroom_measure_free(void);

/* Estimates MemAvailable for the moment, just now, when `free_bytes` were free. Uses the last snapshot, and takes a new
 * one if that is older than 5 ms. Pages that moved between free memory and cache since then are the error. */
uint64_t sg_headroom_available_with(uint64_t free_bytes);

/* Scans shared, managed and MAP_NORESERVE memory, and lowers the promises (tracker.h). if_due: only after a pause, so
 * that scans take 2 % of the time at most; also takes the array credit of idle threads back. if_old: where the decision
 * depends on it, 20 % at most. */
void sg_headroom_scan(void);
void sg_headroom_scan_if_due(void);
void sg_headroom_scan_if_old(void);

/* Memory that guarded programs may use at all: MemTotal less the huge-page pool and the reserve. */
uint64_t sg_headroom_machine_bytes(void);

/* Whether device memory is the machine's memory: 1 yes, 0 no, -1 not known yet (then requests are decided as if it
 * were). `is_hidden`: SPARKGUARD_UNIFIED=on says so for a discrete card, whose memory MemAvailable never shows. Any
 * thread, without the lock. */
int sg_headroom_unified(void);
void sg_headroom_set_unified(int unified, bool is_hidden);

/* In a forked child: the parent's snapshot and scan do not count. */
void sg_headroom_atfork_child(void);

#endif
