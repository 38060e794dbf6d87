/*
 * claim.c - see claim.h.
 *
 * A claim is decided like a large request. It is announced, so that others count it while it is decided, and the word
 * in its registry entry is stored before it is withdrawn. A claim that waits in the queue is not announced: it takes
 * nothing.
 *
 * The cgroups bound a claim, too, although no cgroup bounds device memory: nobody knows yet how the job will divide it.
 */
#include "admit/claim.h"

#include "admit/check.h"
#include "admit/headroom.h"
#include "base/clock.h"
#include "shared/claims.h"
#include "shared/decision_lock.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/registry.h"
#include "shared/segment.h"
#include "base/syscall.h"

#include <time.h>

/* Requests under way take some milliseconds. They are waited for in steps of STEP_NS, and at least for UNDER_WAY_NS. */
#define STEP_NS UINT64_C(10000000)
#define UNDER_WAY_NS UINT64_C(100000000)

static long claim_fd = -1;                  /* keeps the lock of the claim's entry; -1: no claim is queued */
static const struct sg_registry *queued_in; /* the registry of that entry */

/* Leaves the queue. The entry ends with its lock. */
static void leave_queue(void)
{
    sg_claims_give_up();
    (void)sg_sys_close((int)claim_fd);
    claim_fd = -1;
}

/* Joins the queue. If the registry was replaced, the claim goes to the end of the new one's queue. 0 or -errno. */
static long join_queue(const struct sg_claim_order *order)
{
    if (claim_fd >= 0 && queued_in != sg_entry_registry())
        leave_queue();
    if (claim_fd >= 0)
        return 0;
    queued_in = sg_entry_registry();
    claim_fd = sg_claims_queue(order->bytes, order->priority, order->share);
    return claim_fd >= 0 ? 0 : claim_fd;
}

static uint64_t largest_claim(void)
{
    const struct sg_snapshot *snapshot = &sg_headroom_last.snapshot;
    uint64_t most = UINT64_MAX;
    for (uint32_t i = 0; i < snapshot->count; i++) {
        const struct sg_constraint *at = &snapshot->at[i];
        uint64_t here = at->limit_bytes > at->reserve_bytes ? at->limit_bytes - at->reserve_bytes : 0;
        most = here < most ? here : most;
    }
    uint64_t limit = sg_headroom_limit_bytes(); /* the job can never hold more */
    return limit != 0 && limit < most ? limit : most;
}

/* Judges `more_bytes` that the job's claims are to grow by, and sets the words of the order that say what can be had.
 * 0: they fit. -E2BIG: they never will. -EINPROGRESS: not now, but without the requests that are under way. -EAGAIN:
 * not now. */
static long judge(struct sg_claim_order *order, uint64_t more_bytes)
{
    /* Managed memory is bounded by the machine and by the cgroups, and CUDA cannot use free CMA pages. */
    struct sg_request request = {.domain = SG_DOMAIN_MANAGED};
    struct sg_answer answer = {0};
    sg_headroom_scan();
    uint64_t before = sg_claims_more(more_bytes);
    sg_headroom_refresh(0, true);
    uint64_t after = sg_claims_more(more_bytes);
    request.size_bytes = before > after ? before : after; /* the job may free memory meanwhile */
    bool is_known = sg_headroom_last.snapshot.is_valid;
    order->most_bytes = is_known ? largest_claim() : SG_UNKNOWN;
    bool fits = !is_known || sg_check_constraints(&request, SG_HEADROOM_ALL, 0, &answer);
    order->usable_bytes = is_known ? answer.usable_bytes : SG_UNKNOWN;
    order->reserve_bytes = answer.kept_bytes;
    if (order->bytes > order->most_bytes)
        return -E2BIG;
    if (fits)
        return 0;
    return sg_check_constraints(&request, SG_HEADROOM_PROMISES | SG_HEADROOM_STALLED, 0, &answer) ? -EINPROGRESS
                                                                                                  : -EAGAIN;
}

/* Decides on the first claim of the queue, or on a granted one that is to be larger. 0 or as judge(). -ECANCELED:
 * the granted one has changed meanwhile. */
static long decide(struct sg_claim_order *order, const struct sg_granted_claim *granted)
{
    uint64_t more_bytes = order->bytes - (granted != NULL ? granted->bytes : 0);
    sg_claims_count_own(true); /* the job may have another claim */
    sg_registry_announce(SG_SOURCE_BOUNDED, more_bytes);
    long result = judge(order, more_bytes);
    if (result == 0 && granted == NULL)
        sg_claims_grant();
    else if (result == 0 && !sg_claims_change(granted, order->bytes))
        result = -ECANCELED;
    sg_registry_withdraw();
    sg_claims_count_own(false);
    sg_headroom_forget();
    return result;
}

static long try_once(struct sg_claim_order *order)
{
    sg_check_join();
    sg_check_take_out_the_dead(NULL);
    long result = join_queue(order);
    if (result != 0)
        return result;
    if (sg_claims_are_full()) {
        leave_queue();
        return -EUSERS;
    }
    order->queue_position = sg_claims_count_before() + 1;
    if (order->queue_position != 1)
        return -EAGAIN;
    result = decide(order, NULL);
    if (result == -E2BIG)
        leave_queue();
    return result == 0 ? claim_fd : result;
}

/* Retries while requests in flight, or a concurrent --set, may change the result. *seen: the epoch before the last
 * try. */
static long attempt(struct sg_claim_order *order, long (*once)(struct sg_claim_order *), uint32_t *seen)
{
    uint64_t end_ns = sg_clock_ns(CLOCK_MONOTONIC) + (order->wait_ns > UNDER_WAY_NS ? order->wait_ns : UNDER_WAY_NS);
    order->queue_position = order->reserve_bytes = 0;
    order->usable_bytes = order->most_bytes = SG_UNKNOWN;
    for (;;) {
        struct sg_lock_state lock;
        sg_lock_acquire(&sg_decision_lock, &lock);
        *seen = sg_peers_epoch();
        long result = once(order);
        sg_lock_release(&sg_decision_lock, &lock);
        if ((result != -EINPROGRESS && result != -ECANCELED) || sg_clock_ns(CLOCK_MONOTONIC) >= end_ns)
            return result == -EINPROGRESS ? -EAGAIN : result;
        if (result == -EINPROGRESS)
            sg_peers_wait(*seen, STEP_NS);
    }
}

int sg_claim_try(struct sg_claim_order *order)
{
    uint32_t seen;
    sg_segment_attach();
    long result = attempt(order, try_once, &seen);
    if (result == -EAGAIN) {
        sg_peers_wait(seen, order->wait_ns);
        return -EAGAIN;
    }
    sg_peers_advance(); /* the next one is the first now */
    if (result >= 0)
        sg_segment_remove(); /* the program that follows has a record; what claimed for it leaves none */
    return (int)result;
}

static long raise_once(struct sg_claim_order *order)
{
    struct sg_granted_claim granted;
    sg_check_join();
    sg_check_take_out_the_dead(NULL);
    if (sg_entry_shared_registry() == NULL)
        return -ENOLCK;
    if (!sg_claims_find(sg_own->slot.job_hash, &granted))
        return -ENOENT;
    if (granted.bytes >= order->bytes)
        return sg_claims_change(&granted, order->bytes) ? 0 : -ECANCELED;
    sg_headroom_refresh(0, false); /* finds the cgroups of this process */
    return sg_claims_are_judged_here(granted.entry) ? decide(order, &granted) : -EXDEV;
}

int sg_claim_raise(struct sg_claim_order *order)
{
    uint32_t seen;
    sg_segment_attach();
    sg_entry_become_helper();
    long result = attempt(order, raise_once, &seen);
    sg_segment_remove();
    return (int)result;
}
