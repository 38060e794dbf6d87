/*
 * admission.c - see admission.h.
 *
 * The order of a large decision: a young look, if the request is small beside what it showed (without the lock, and once
 * more under it, for another thread may have looked); then a ticket and a fresh look; then, before anything is refused,
 * whoever is dead is taken out, our own promises are scanned, and another look; then it waits for what may still change.
 * See room.h and seats.h.
 */
#include "admission.h"

#include "atomics.h"
#include "fit.h"
#include "index.h"
#include "ledger.h"
#include "options.h"
#include "returns.h"
#include "room.h"
#include "seats.h"
#include "segment.h"
#include "syscall.h"
#include "thread.h"
#include "timeline.h"

#define MIB (UINT64_C(1) << 20)
#define SAMPLED_BYTES (64 * MIB) /* a grant of this much is seen in the time line before the next look */
#define WAIT_FOR_OTHERS_NS UINT64_C(3000000000)
#define WAIT_FOR_NEWS_NS UINT64_C(300000000)
#define WAIT_STEP_NS UINT64_C(50000000)

/* Below the floor, and above LIMIT, small requests pass until the process has taken this much more: it must be able to
 * unwind, print its traceback and save. A process that holds less than SHELL_BYTES always may, below the floor. */
#define GRACE_BYTES (32 * MIB)
#define SHELL_BYTES (64 * MIB)

struct sg_lock sg_admission_lock;

static struct {
    uint32_t is_below_floor;      /* a small request has met the floor, and no look has shown it crossed since */
    uint64_t floor_granted_bytes; /* what this process had been granted when it did */
    uint32_t has_limit; /* (atomic) the job has one, if only another process's: small requests are judged too */
    uint32_t has_begun; /* (atomic) the first thread has its first credit */
} state;

void sg_admission_refork(void)
{
    sg_lock_reset(&sg_admission_lock);
    sg_seats_refork();
    sg_room_refork();
    sg_returns_refork();
    sg_fit_refork();
    state.is_below_floor = 0;
    state.has_begun = 0;
}

/* ---- a request that is judged by itself --------------------------------------------------------------------------- */

enum verdict {
    ADMIT,
    REFUSE,
    LOOK_AGAIN,       /* the driver's figure is out of date */
    WAIT_FOR_TURN,    /* it fits without what those before us ask for */
    WAIT_FOR_FLIGHT,  /* it fits without that and what is in flight */
    WAIT_FOR_NEWS,    /* it fits without what others say they have promised: they are asked to look again */
    WAIT_FOR_RETURNS, /* it fits with what this process has given back and the kernel does not show yet */
};

/* Small requests are judged, too. */
static bool has_limit(void)
{
    return sg_options.limit.is_set || sg_load_relaxed(&state.has_limit) != 0;
}

/* A young look may do, with or without the lock. The request is in flight before it is counted: whoever does not see it there,
 * sees the count. */
static bool takes_of_young_look(const struct sg_request *request)
{
    if (request->has_device_pool || request->is_rare || has_limit() || request->size_bytes > sg_room_total_bytes())
        return false;
    sg_seats_fly(sg_fit_pool(request), (int64_t)request->size_bytes);
    if (sg_room_take(SG_ROOM_RESERVE, request->size_bytes))
        return true;
    sg_seats_fly(sg_fit_pool(request), -(int64_t)request->size_bytes);
    return false;
}

/* Whether somebody's promises may be older than the request: it begins to wait now, or has not waited for them. */
static bool is_news_due(const struct sg_request *request)
{
    uint64_t since = request->asked_ns != 0 ? request->asked_ns : sg_sys_clock_ns(CLOCK_MONOTONIC);
    return !sg_seats_have_looked(since);
}

/* What does not fit at the second look, with no dead process and no stale promise of ours in the way. */
static enum verdict decide_in_need(struct sg_request *request)
{
    uint64_t device = request->has_device_pool ? request->device_identity : 0;
    sg_fit_take_out_the_dead(request);
    sg_room_scan();
    sg_room_look(device, true);
    if (sg_fit(request, SG_ROOM_ALL))
        return ADMIT;
    enum verdict verdict = REFUSE;
    uint64_t until_ns, returning = sg_returns_due_bytes(&until_ns);
    struct sg_request smaller = *request;
    smaller.size_bytes -= returning < smaller.size_bytes ? returning : smaller.size_bytes;
    if (sg_fit(request, SG_ROOM_PROMISES | SG_ROOM_FLIGHT))
        verdict = WAIT_FOR_TURN;
    else if (sg_fit(request, SG_ROOM_PROMISES | SG_ROOM_STALLED) || sg_room_tally()->is_reclaiming)
        verdict = WAIT_FOR_FLIGHT;
    else if (returning != 0 && !request->has_device_pool && sg_fit(&smaller, SG_ROOM_PROMISES | SG_ROOM_STALLED))
        verdict = WAIT_FOR_RETURNS;
    else if (is_news_due(request) && sg_fit(request, SG_ROOM_STALLED))
        verdict = WAIT_FOR_NEWS;
    (void)sg_fit(request, SG_ROOM_ALL); /* the answer that people are told */
    return verdict;
}

/* Under the lock. ADMIT: the request is in flight. */
static enum verdict decide(struct sg_request *request)
{
    enum { LOOKS_MOST = 16 }; /* a machine that settles something all the time must not keep us asking the driver */
    sg_fit_join();
    if (takes_of_young_look(request))
        return ADMIT;
    if (request->has_device_pool && request->device_epoch != sg_seats_epoch() && request->looks++ < LOOKS_MOST)
        return LOOK_AGAIN;
    uint64_t most = request->has_device_pool ? request->device_total_bytes : sg_room_total_bytes();
    if (!sg_room_is_known() || request->size_bytes <= most) /* what can never be had is not worth a place */
        sg_seats_announce(sg_fit_pool(request), request->size_bytes);
    sg_room_look(request->has_device_pool ? request->device_identity : 0, false);
    sg_store(&state.has_limit, sg_fit_limit_bytes() != 0);
    bool is_fit = sg_fit(request, SG_ROOM_ALL);
    if (!is_fit && request->is_behind) {
        sg_seats_withdraw();
        return LOOK_AGAIN;
    }
    enum verdict verdict = is_fit ? ADMIT : decide_in_need(request);
    if (verdict == ADMIT || sg_options.mode_observe)
        sg_seats_fly(sg_fit_pool(request), (int64_t)request->size_bytes);
    if (verdict == ADMIT && !sg_options.mode_observe && sg_fit_is_overtaken(request)) {
        sg_seats_fly(sg_fit_pool(request), -(int64_t)request->size_bytes);
        verdict = WAIT_FOR_TURN;
    }
    sg_seats_withdraw(); /* nobody is woken for that: those who wait would keep waking each other */
    return verdict;
}

/* A driver's own call cannot wait for the one it serves. */
static bool may_be_own_flight(void)
{
    return (sg_self.layers & SG_LAYER_CUDA) != 0;
}

/* Until when the request may wait, from the time it was asked for. */
static uint64_t patience_of(const struct sg_request *request, enum verdict verdict)
{
    uint64_t patience = 0;
    if (verdict == WAIT_FOR_FLIGHT || verdict == WAIT_FOR_RETURNS)
        patience = may_be_own_flight() ? 0 : WAIT_FOR_OTHERS_NS;
    else if (verdict == WAIT_FOR_TURN)
        patience = WAIT_FOR_OTHERS_NS;
    else if (verdict == WAIT_FOR_NEWS)
        patience = WAIT_FOR_NEWS_NS;
    return request->is_small || patience > sg_options.wait_ns ? patience : sg_options.wait_ns;
}

/* Sleeps until something settles or the step is over: false if the time is up. Steps grow from 1 to 50 ms. */
static bool wait_for_others(struct sg_request *request, uint32_t seen, enum verdict verdict)
{
    uint64_t now = sg_sys_clock_ns(CLOCK_MONOTONIC);
    if (request->asked_ns == 0)
        request->asked_ns = now;
    uint64_t deadline = request->asked_ns + patience_of(request, verdict), step = WAIT_STEP_NS;
    if (now >= deadline)
        return false;
    if (request->waits < 6)
        step = UINT64_C(1000000) << request->waits++;
    if (verdict == WAIT_FOR_NEWS)
        sg_seats_call();
    sg_seats_wait(seen, deadline - now < step ? deadline - now : step);
    return true;
}

bool sg_admission_ask(struct sg_request *request)
{
    sg_segment_attach();
    request->must_look_again = false;
    for (;;) {
        struct sg_lock_state lock;
        uint32_t seen = sg_seats_epoch();
        if (takes_of_young_look(request)) {
            request->granted_bytes = request->size_bytes;
            return true;
        }
        sg_lock_acquire(&sg_admission_lock, &lock);
        enum verdict verdict = decide(request);
        if (verdict == ADMIT || (verdict != LOOK_AGAIN && sg_options.mode_observe)) {
            request->granted_bytes = request->size_bytes;
            sg_room_scan_if_due();
            sg_lock_release(&sg_admission_lock, &lock);
            if (verdict == REFUSE) /* to observe is not to wait: what others have in flight may have gone another way */
                sg_refusal_report(request);
            return true;
        }
        sg_lock_release(&sg_admission_lock, &lock);
        request->must_look_again = verdict == LOOK_AGAIN;
        if (request->must_look_again)
            return false;
        if (!wait_for_others(request, seen, verdict))
            break;
        request->must_look_again = request->has_device_pool;
        if (request->must_look_again)
            return false;
    }
    sg_seats_advance(); /* who waited for us need not any more */
    sg_refusal_report(request);
    return false;
}

static void promise(const struct sg_request *request, uint64_t bytes)
{
    const struct sg_memory_file file = {request->window_identity, bytes};
    if (file.identity == 0) {
        sg_ledger_promise(bytes);
        return;
    }
    sg_seats_begin_files();
    sg_ledger_promise(bytes);
    sg_seats_end_files_with(&file);
}

void sg_admission_settle(struct sg_request *request, uint64_t kept_bytes)
{
    struct sg_lock_state lock;
    bool is_lazy = request->domain == SG_DOMAIN_HEAP || request->domain == SG_DOMAIN_MAPPED ||
                   request->domain == SG_DOMAIN_MANAGED;
    bool is_sampled = kept_bytes >= SAMPLED_BYTES;
    /* A decision must see the flight to a device of its own, or by the epoch that it ended behind the driver's figure. */
    bool is_locked = request->has_device_pool || request->window_identity != 0 || is_sampled;
    if (is_locked)
        sg_lock_acquire(&sg_admission_lock, &lock);
    if (is_lazy && kept_bytes != 0) /* first: seen twice for a moment, never not at all */
        promise(request, kept_bytes);
    else if (kept_bytes != 0)
        sg_returns_note_taken();
    if (!is_lazy && kept_bytes != 0)
        sg_seats_land(sg_fit_pool(request), request->granted_bytes);
    else
        sg_seats_fly(sg_fit_pool(request), -(int64_t)request->granted_bytes);
    sg_store(&sg_own->slot.live_bytes, sg_ledger_live_bytes());
    if (kept_bytes != 0)
        sg_ledger_note_job();
    sg_seats_advance();
    if (is_sampled)
        sg_timeline_sample();
    if (is_locked)
        sg_lock_release(&sg_admission_lock, &lock);
    request->granted_bytes = 0;
}

void sg_admission_forget_files(void)
{
    struct sg_lock_state lock;
    if (!sg_seats_has_files())
        return;
    sg_lock_acquire(&sg_admission_lock, &lock);
    sg_seats_hide_files();
    sg_lock_release(&sg_admission_lock, &lock);
}

/* ---- small requests ----------------------------------------------------------------------------------------------- */

/* Property 6: small requests below the floor, and the same grace above LIMIT. Under the lock. What is asked for is in flight
 * already: it comes on top of nothing. */
static enum verdict decide_small(struct sg_request *request)
{
    struct sg_request nothing = *request;
    nothing.growth_bytes = 0;
    sg_fit_join();
    sg_seats_count(request->size_bytes); /* after it is in flight and before the look */
    sg_room_look(0, false);
    sg_store(&state.has_limit, sg_fit_limit_bytes() != 0);
    bool is_within = sg_fit_limit(&nothing, GRACE_BYTES, SG_ROOM_FLIGHT);
    if (!is_within || (sg_room_is_known() && sg_room_slack(SG_ROOM_FLOOR) < 0)) {
        sg_fit_take_out_the_dead(NULL);
        sg_room_scan(); /* what was promised may long be there, and would count twice */
        sg_room_look(0, true);
        is_within = sg_fit_limit(&nothing, GRACE_BYTES, SG_ROOM_FLIGHT);
    }
    if (!is_within)
        return sg_fit_limit(request, GRACE_BYTES, SG_ROOM_STALLED) ? WAIT_FOR_FLIGHT : REFUSE;
    if (!sg_room_is_known())
        return ADMIT;
    uint64_t granted = sg_load(&sg_own->slot.granted_bytes);
    if (sg_room_slack(SG_ROOM_FLOOR) >= 0) {
        state.is_below_floor = 0;
        return ADMIT;
    }
    if (!state.is_below_floor) {
        state.is_below_floor = 1;
        state.floor_granted_bytes = granted;
    }
    if (granted < SHELL_BYTES || granted + request->size_bytes <= state.floor_granted_bytes + GRACE_BYTES)
        return ADMIT;
    if (sg_room_would_be_above_floor(request->size_bytes))
        return WAIT_FOR_FLIGHT;
    (void)sg_room_fits(request, SG_ROOM_ALL);
    request->reason = SG_REASON_FLOOR;
    return REFUSE;
}

/* What is asked for is in flight. */
static enum verdict judge_small(struct sg_request *request)
{
    enum verdict verdict = ADMIT;
    if (has_limit() || !sg_room_take(SG_ROOM_FLOOR, request->size_bytes)) {
        struct sg_lock_state lock;
        sg_lock_acquire(&sg_admission_lock, &lock);
        verdict = decide_small(request);
        if (verdict == ADMIT)
            sg_room_scan_if_due();
        sg_lock_release(&sg_admission_lock, &lock);
    }
    return verdict;
}

static struct sg_request small_request(enum sg_domain domain, uint64_t bytes, const char *call)
{
    return (struct sg_request){
        .domain = domain, .size_bytes = bytes, .growth_bytes = bytes, .call = call, .is_small = true};
}

bool sg_admission_ask_small(enum sg_domain domain, uint64_t bytes, const char *call)
{
    struct sg_request request = small_request(domain, bytes, call);
    uint32_t seen = sg_seats_epoch();
    sg_seats_fly(SG_POOL_BOUNDED, (int64_t)bytes);
    enum verdict verdict = judge_small(&request);
    while (verdict == WAIT_FOR_FLIGHT && !may_be_own_flight()) {
        sg_seats_fly(SG_POOL_BOUNDED, -(int64_t)bytes); /* two that wait must not wait for each other */
        bool is_patient = wait_for_others(&request, seen, verdict);
        seen = sg_seats_epoch();
        sg_seats_fly(SG_POOL_BOUNDED, (int64_t)bytes);
        if (!is_patient)
            break;
        verdict = judge_small(&request);
    }
    if (verdict == ADMIT)
        return true;
    sg_refusal_report(&request);
    if (!sg_options.mode_observe)
        sg_admission_settle_small(bytes, 0);
    return sg_options.mode_observe != 0;
}

/* Nobody is woken for so little: who waits looks again by himself. */
void sg_admission_settle_small(uint64_t bytes, uint64_t kept_bytes)
{
    if (kept_bytes != 0) {
        sg_ledger_promise(kept_bytes);
        sg_ledger_note_job();
    }
    sg_seats_fly(SG_POOL_BOUNDED, -(int64_t)bytes);
}

bool sg_admission_take_credit(uint64_t bytes, const char *call)
{
    if (SG_UNLIKELY(sg_self.record == NULL)) {
        sg_thread_enter();
        uint32_t no_one = 0;
        if (sg_self.record != NULL && sg_cas_u32(&state.has_begun, &no_one, 1))
            sg_ledger_grant_credit(sg_self.record, SG_CREDIT_MOST); /* what a process may have before it is looked at */
    }
    struct sg_record *record = sg_self.record;
    int64_t credit = record != NULL ? sg_load_relaxed(&record->credit_bytes) : 0;
    if (SG_LIKELY(credit >= (int64_t)bytes))
        return true;
    sg_segment_attach();
    uint64_t wanted = (uint64_t)((int64_t)bytes - credit);
    struct sg_request refill = small_request(SG_DOMAIN_HEAP, wanted + (record != NULL ? SG_CREDIT_REFILL : 0), call);
    sg_seats_fly(SG_POOL_BOUNDED, (int64_t)refill.size_bytes);
    if (judge_small(&refill) != ADMIT) { /* then what is needed and no more */
        sg_admission_settle_small(refill.size_bytes, 0);
        refill.size_bytes = wanted;
        if (!sg_admission_ask_small(SG_DOMAIN_HEAP, wanted, call))
            return false;
    }
    if (record != NULL)
        sg_ledger_grant_credit(record, refill.size_bytes);
    sg_admission_settle_small(refill.size_bytes, refill.size_bytes);
    return true;
}
