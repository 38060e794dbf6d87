/*
 * admission.c - see admission.h.
 *
 * A large request is decided in these steps (see headroom.h and registry.h):
 *
 *   1. The cached snapshot admits it, if the request is small beside the slack. Tried without the lock, and again under
 *      it, because another thread may have taken a snapshot meanwhile.
 *   2. The request gets a ticket, and a new snapshot decides.
 *   3. Before a refusal, entries of dead processes are marked, the kernel is asked how far each process has touched its
 *      promises, and another snapshot decides.
 *   4. The request waits for what may still change.
 */
#include "admit/admission.h"

#include "base/atomics.h"
#include "account/commits.h"
#include "account/predict/heaps.h"
#include "account/driver_pool.h"
#include "account/tmpfs_ranges.h"
#include "admit/check.h"
#include "account/tracker.h"
#include "account/ledger.h"
#include "base/options.h"
#include "base/pages.h"
#include "admit/wait.h"
#include "admit/deferred_frees.h"
#include "admit/headroom.h"
#include "admit/reclaim/pool_room.h"
#include "admit/reclaim/trim.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/registry.h"
#include "shared/segment.h"
#include "base/clock.h"
#include "account/thread_record.h"
#include "account/timeline.h"
#include "shared/decision_lock.h"
#include "admit/refusal.h"
#include "admit/repeat.h"

#define MIB (UINT64_C(1) << 20)
#define SAMPLED_BYTES (64 * MIB) /* a grant of this much is sampled into the time line at once */

/* Below the floor, and above LIMIT, small requests pass until the process has taken GRACE_BYTES more, so that it can
 * unwind, print its traceback and save. Below the floor they always pass in a process that holds less than
 * SHELL_BYTES. */
#define GRACE_BYTES (32 * MIB)
#define SHELL_BYTES (64 * MIB)

enum { REAPED_AT_REFILL = 4 };

static struct {
    uint32_t is_below_floor;      /* a small request has met the floor, and no snapshot has been above it since */
    uint64_t floor_granted_bytes; /* what this process had been granted at that time */
    uint32_t has_begun;           /* (atomic) the first thread has got its first credit */
} state SG_AT_FORK;

void sg_admission_atfork_child(void)
{
    sg_lock_reset(&sg_decision_lock);
    sg_registry_atfork_child();
    sg_headroom_atfork_child();
    sg_deferred_frees_atfork_child();
    sg_check_atfork_child();
    sg_repeat_atfork_child();
    state.is_below_floor = 0;
    state.has_begun = 0;
}

/* ---- requests decided one by one --------------------------------------------------------------------------------- */

/* CUDA calls may take long, so signals stay open, and a handler can longjmp out of the call. Their bytes in flight are
 * therefore also noted in sg_self.open, for sg_admission_abandon. */
static SG_INLINE void add_to_flight(const struct sg_request *request, uint64_t bytes)
{
    uint64_t source = sg_check_source(request);
    sg_entry_flight_add(source, (int64_t)bytes);
    if (sg_request_is_cuda(request)) {
        sg_self.open.flight_source = source;
        sg_self.open.flight_bytes += bytes;
    }
}

/* `has_landed`: the real call has made the bytes resident, and the kernel's figures show them. The thread's note goes
 * first: in the other order, a handler that longjmps between the two would subtract the bytes twice, and so hide other
 * threads' bytes. */
static SG_INLINE void remove_from_flight(const struct sg_request *request, uint64_t bytes, bool has_landed)
{
    if (sg_request_is_cuda(request))
        sg_self.open.flight_bytes -= sg_smaller(bytes, sg_self.open.flight_bytes);
    if (has_landed)
        sg_entry_flight_complete(sg_check_source(request), bytes);
    else
        sg_entry_flight_add(sg_check_source(request), -(int64_t)bytes);
}

/* Whether the cached snapshot admits the request; then it is in flight. With or without the lock. The request goes in
 * flight before it is counted, so a process that misses it in flight sees it in the count. */
static bool take_from_cached_snapshot(struct sg_request *request)
{
    bool grows_more = request->growth_bytes > request->size_bytes && sg_headroom_has_limit();
    if (request->card.identity != 0 || request->kind == SG_REQUEST_RARE || grows_more ||
        !sg_headroom_may_take(SG_HEADROOM_RESERVE, request->size_bytes))
        return false;
    add_to_flight(request, request->size_bytes);
    if (sg_headroom_take(SG_HEADROOM_RESERVE, request->size_bytes))
        return true;
    remove_from_flight(request, request->size_bytes, false);
    return false;
}

static bool would_fit(const struct sg_request *request, uint32_t parts, uint64_t expected_bytes)
{
    struct sg_answer ignored;
    return sg_check_fits(request, parts, expected_bytes, &ignored);
}

static enum sg_verdict wait_for(struct sg_request *request, uint64_t wait_ns)
{
    request->attempt.wait_ns = wait_ns;
    return SG_WAIT;
}

/* Whether the job has claimed what the request asks for. Nobody else can have that, but while another job ends and a
 * third one claims its memory, a snapshot may show both. So the request is not refused by one snapshot. */
static bool is_claimed(const struct sg_request *request)
{
    return request->card.identity == 0 && request->size_bytes <= sg_headroom_last.peers.own_claim_bytes;
}

/* SG_DROP_POOL if the request would fit with an empty pool of the driver, and this process may empty it; else
 * `verdict`. Once emptied, pages in lists of processors show late. */
static enum sg_verdict drop_pool(struct sg_request *request, struct sg_answer *answer, enum sg_verdict verdict)
{
    uint64_t most = request->card.identity != 0 ? 0 : sg_pool_room_most_bytes();
    answer->pooled_bytes = 0;
    if (most == 0 || !would_fit(request, SG_HEADROOM_PROMISES | SG_HEADROOM_STALLED | SG_HEADROOM_NO_POOL, most))
        return verdict;
    answer->pooled_bytes = most;
    if (request->attempt.has_dropped)
        return wait_for(request, SG_WAIT_FIGURES_NS);
    return !sg_refusal_is_observed(request) && sg_pool_room_may_drop() ? SG_DROP_POOL : verdict;
}

/* Whether the request fits if only `expected_bytes` of it become resident; then they are its size. */
static bool fits_as(struct sg_request *request, uint64_t expected_bytes)
{
    struct sg_request part = *request;
    part.size_bytes = expected_bytes;
    if (!would_fit(&part, SG_HEADROOM_ALL, 0))
        return false;
    request->size_bytes = expected_bytes;
    return true;
}

/* Whether a commit is admitted by what the process touched of earlier ones (commits.h). The promise follows that record
 * from then on. */
static bool commit_fits_on_record(struct sg_request *request)
{
    if (!sg_commits_have_record())
        return false;
    bool was_on_record = sg_commits_set_on_record(true);
    if (!was_on_record)
        sg_headroom_scan();
    bool fits = fits_as(request, sg_commits_expected_bytes(request->size_bytes));
    if (fits && !was_on_record)
        sg_segment_add_event("commits more address space than fits: judged by what it touched of it so far");
    if (!fits && !was_on_record) {
        (void)sg_commits_set_on_record(false);
        sg_headroom_scan();
    }
    return fits;
}

/* Call it right after a scan. Nothing bounds what a process touches but its watchdog. */
static bool fits_on_record(struct sg_request *request)
{
    bool is_watched = sg_options.watchdog == SG_WATCHDOG_TERM && (sg_load(&sg_own->slot.flags) & SG_SLOT_WATCHED) != 0;
    if (!is_watched || sg_options.mode_observe || request->size_bytes > sg_headroom_last.snapshot.at[0].limit_bytes)
        return false;
    if (request->kind == SG_REQUEST_HEAP) /* by what earlier ones turned into (heaps.h) */
        return sg_heaps_have_record() && fits_as(request, sg_heaps_expected_bytes(request->size_bytes));
    return request->kind == SG_REQUEST_COMMIT && commit_fits_on_record(request);
}

/* Finds the change that a request that does not fit may wait for. */
static enum sg_verdict find_change(struct sg_request *request, struct sg_answer *answer)
{
    struct sg_request later = *request; /* when the kernel shows what this process has freed */
    uint64_t freed_bytes = request->card.identity != 0 ? 0 : sg_deferred_frees_due_bytes() + sg_pool_room_due_bytes();
    later.size_bytes -= freed_bytes < later.size_bytes ? freed_bytes : later.size_bytes;
    if (would_fit(request, SG_HEADROOM_PROMISES | SG_HEADROOM_FLIGHT, 0)) /* without the requests queued before it */
        return wait_for(request, SG_WAIT_OTHERS_NS);
    if (would_fit(request, SG_HEADROOM_PROMISES | SG_HEADROOM_STALLED, 0))
        return wait_for(request, sg_wait_for_flight_ns());
    if (freed_bytes != 0 && would_fit(&later, SG_HEADROOM_PROMISES | SG_HEADROOM_STALLED, 0))
        return wait_for(request, sg_wait_for_flight_ns());
    if (would_fit(request, SG_HEADROOM_STALLED, 0) && sg_peers_are_ending()) /* fits without the promises of others */
        return wait_for(request, SG_WAIT_FIGURES_NS);
    return drop_pool(request, answer, is_claimed(request) ? wait_for(request, SG_WAIT_FIGURES_NS) : SG_REFUSE);
}

/* Decides a request that the first snapshot does not admit. Removes dead processes and stale promises of this process
 * first, so that neither causes a refusal. */
static enum sg_verdict decide_before_refusal(struct sg_request *request, struct sg_answer *answer)
{
    sg_check_take_out_the_dead(request);
    sg_headroom_scan();
    sg_headroom_refresh(request->card.identity, true);
    if (sg_check_fits(request, SG_HEADROOM_ALL, 0, answer) || fits_on_record(request))
        return SG_ADMIT;
    return find_change(request, answer);
}

/* Whether a quick snapshot admits the request. */
static bool fits_at_first(const struct sg_request *request, struct sg_answer *answer)
{
    sg_headroom_refresh(request->card.identity, false);
    if (sg_check_is_sparse_near(request))
        sg_headroom_scan();
    return sg_check_fits(request, SG_HEADROOM_ALL, 0, answer);
}

/* Whether the request needs the driver's pool, and NVML's list of processes would tell more of it. An older list will
 * do for a request that it admits. */
static bool wants_list(const struct sg_request *request, enum sg_verdict verdict)
{
    return request->attempt.can_list && request->card.identity == 0 &&
           sg_pool_room_wants_list(verdict == SG_ADMIT ? SG_POOL_LIST_RECENT : SG_POOL_LIST_NEW) &&
           !would_fit(request, SG_HEADROOM_ALL | SG_HEADROOM_NO_POOL, 0) &&
           would_fit(request, SG_HEADROOM_PROMISES | SG_HEADROOM_STALLED | SG_HEADROOM_NO_POOL,
                     sg_pool_room_most_bytes());
}

/* Decides a request under the lock. SG_ADMIT, or any verdict but SG_LOOK_AGAIN in observe mode: it is in flight. */
static enum sg_verdict decide(struct sg_request *request, struct sg_answer *answer)
{
    enum { REFRESHES_MAX = 16 }; /* requests that settle all the time must not cause endless queries of the driver */
    request->attempt.wait_ns = 0;
    sg_check_join();
    if (take_from_cached_snapshot(request))
        return SG_ADMIT;
    if (sg_check_is_beyond_own_limit(request, 0, answer))
        return SG_REFUSE;
    if (request->card.identity != 0 && request->card.epoch != sg_peers_epoch() &&
        request->attempt.refreshes++ < REFRESHES_MAX)
        return SG_LOOK_AGAIN;
    uint64_t most =
        request->card.identity != 0 ? request->card.total_bytes : sg_headroom_last.snapshot.at[0].limit_bytes;
    if (!sg_headroom_last.snapshot.is_valid ||
        request->size_bytes <= most) /* others need not wait for an impossible request */
        sg_registry_announce(sg_check_source(request), request->size_bytes);
    bool is_looked_at = request->attempt.was_short && !request->attempt.is_behind;
    bool is_fit = !is_looked_at && fits_at_first(request, answer);
    if (!is_fit && request->attempt.is_behind) {
        sg_registry_withdraw();
        request->attempt.is_short = request->attempt.was_short = true;
        return SG_LOOK_AGAIN;
    }
    enum sg_verdict verdict = is_fit ? SG_ADMIT : decide_before_refusal(request, answer);
    if (wants_list(request, verdict)) {
        sg_registry_withdraw();
        request->attempt.wants_list = true;
        return SG_LOOK_AGAIN;
    }
    if (verdict == SG_ADMIT || sg_refusal_is_observed(request)) {
        if (request->domain == SG_DOMAIN_DEVICE && sg_driver_pool_is_used())
            sg_pool_room_begin(request, !would_fit(request, SG_HEADROOM_ALL | SG_HEADROOM_NO_POOL, 0));
        add_to_flight(request, request->size_bytes);
    }
    sg_registry_withdraw(); /* do not advance the epoch: waiting processes would keep waking each other */
    return verdict;
}

/* Observe mode grants requests that would have to wait, and records none of them as refused: the other processes'
 * requests in flight may have ended differently. */
static bool is_granted(const struct sg_request *request, enum sg_verdict verdict)
{
    return verdict == SG_ADMIT || (verdict != SG_LOOK_AGAIN && sg_refusal_is_observed(request));
}

/* Decides a request, by the cached snapshot if possible. If the verdict is_granted, the bytes are in flight. */
static enum sg_verdict judge(struct sg_request *request, struct sg_answer *answer)
{
    struct sg_lock_state lock;
    if (take_from_cached_snapshot(request))
        return SG_ADMIT;
    sg_lock_acquire(&sg_decision_lock, &lock);
    enum sg_verdict verdict = decide(request, answer);
    if (is_granted(request, verdict))
        sg_headroom_scan_if_due();
    sg_lock_release(&sg_decision_lock, &lock);
    return verdict;
}

static void hold_signals(const struct sg_request *request)
{
    if (request->holds_signals)
        sg_lock_hold_signals();
}

static void release_signals(const struct sg_request *request)
{
    if (request->holds_signals)
        sg_lock_let_signals();
}

static SG_INLINE void begin_flight(const struct sg_request *request)
{
    hold_signals(request);
    add_to_flight(request, request->size_bytes);
}

static SG_INLINE void end_flight(const struct sg_request *request)
{
    remove_from_flight(request, request->size_bytes, false);
    release_signals(request);
}

/* Reports a request in flight that would have been refused. Writing the report with signals blocked would delay them,
 * and with signals open a handler could longjmp out of the flight. So the bytes leave the flight meanwhile. */
static void report_observed(const struct sg_request *request, const struct sg_answer *answer)
{
    if (request->holds_signals)
        end_flight(request);
    sg_refusal_report(request, answer);
    if (request->holds_signals)
        begin_flight(request);
}

/* What is missing for a request that would be refused for the reserve; 0: more than there is, or it is refused for
 * another reason. */
static uint64_t missing_bytes(const struct sg_request *request, const struct sg_answer *answer)
{
    return answer->reason == SG_REASON_RESERVE ? sg_refusal_missing_bytes(request, answer) : 0;
}

/* Lets this process's own heap give back what is missing. True: the request is to be judged again. */
static bool trim_heap(struct sg_request *request, const struct sg_answer *answer)
{
    uint64_t missing = missing_bytes(request, answer);
    if (missing == 0 || request->attempt.has_trimmed)
        return false;
    request->attempt.has_trimmed = true;
    return sg_trim_heap(missing);
}

/* Asks other processes to give back what is missing. */
static bool ask_givers(struct sg_request *request, const struct sg_answer *answer)
{
    uint64_t missing = missing_bytes(request, answer);
    return missing != 0 && !sg_self.is_giving && sg_givers_ask(&request->attempt.asked, missing);
}

bool sg_admission_take(struct sg_request *request)
{
    sg_segment_attach();
    if (!take_from_cached_snapshot(request))
        return false;
    sg_thread_hold_cancel();
    request->granted_bytes = request->size_bytes;
    return true;
}

bool sg_admission_ask(struct sg_request *request)
{
    struct sg_answer answer = {0};
    sg_segment_attach();
    request->attempt.must_look_again = false;
    request->attempt.is_short = false;
    if (sg_refusal_repeats(request))
        return false;
    for (;;) {
        uint32_t seen = sg_peers_epoch();
        hold_signals(request);
        enum sg_verdict verdict = judge(request, &answer);
        if (is_granted(request, verdict)) {
            sg_thread_hold_cancel();
            request->granted_bytes = request->size_bytes;
            if (verdict == SG_REFUSE)
                report_observed(request, &answer);
            return true;
        }
        release_signals(request);
        request->attempt.must_look_again = verdict == SG_LOOK_AGAIN;
        if (request->attempt.must_look_again)
            return false;
        if (verdict == SG_DROP_POOL) {
            request->attempt.has_dropped = true;
            sg_pool_room_drop();
            continue;
        }
        if (verdict == SG_REFUSE && trim_heap(request, &answer))
            continue;
        if (verdict == SG_REFUSE) /* SG_WAIT: the processes that were asked may still answer */
            request->attempt.is_giving = ask_givers(request, &answer);
        if (!sg_wait_for_change(request, seen)) {
            sg_givers_give_up(&request->attempt.asked);
            break;
        }
        request->attempt.must_look_again = request->card.identity != 0;
        if (request->attempt.must_look_again)
            return false;
    }
    sg_peers_advance(); /* wakes processes that waited for this request */
    sg_refusal_report(request, &answer);
    return false;
}

void sg_admission_fly(struct sg_request *request, uint64_t bytes)
{
    if (request->granted_bytes == 0)
        sg_thread_hold_cancel();
    add_to_flight(request, bytes);
    request->granted_bytes += bytes;
}

static void promise(const struct sg_request *request, uint64_t bytes)
{
    if (request->shared.begin != 0)
        sg_tmpfs_promise(request->shared.begin, request->shared.end, bytes);
    else
        sg_ledger_promise(bytes, request->domain != SG_DOMAIN_MANAGED && !request->is_shared);
    if (request->domain == SG_DOMAIN_MANAGED)
        sg_entry_raise_managed_missing(bytes);
}

void sg_admission_settle(struct sg_request *request, uint64_t kept_bytes)
{
    struct sg_lock_state lock;
    bool is_lazy = request->domain == SG_DOMAIN_HEAP || request->domain == SG_DOMAIN_MAPPED ||
                   request->domain == SG_DOMAIN_MANAGED;
    bool is_sampled = kept_bytes >= SAMPLED_BYTES;
    /* A decision about a discrete device must see this flight, or see by the epoch that the flight ended after the
     * driver gave its figure. */
    bool is_locked = request->card.identity != 0 || request->shared.begin != 0 || is_sampled;
    if (is_locked)
        sg_lock_acquire(&sg_decision_lock, &lock);
    if (is_lazy && kept_bytes != 0) /* before the flight ends: seen twice for a moment, but never missed */
        promise(request, kept_bytes);
    else if (kept_bytes != 0)
        sg_deferred_frees_note_taken();
    remove_from_flight(request, request->granted_bytes, !is_lazy && kept_bytes != 0);
    sg_store(&sg_own->slot.live_bytes, sg_ledger_live_bytes());
    sg_peers_advance();
    sg_segment_write_through();
    if (is_sampled) {
        sg_timeline_sample();
        sg_headroom_tell_host();
    }
    if (is_locked)
        sg_lock_release(&sg_decision_lock, &lock);
    request->granted_bytes = 0;
    request->attempt.is_measured = false; /* the figures before were this decision's */
    release_signals(request);
    sg_thread_let_cancel();
}

void sg_admission_abandon(void)
{
    uint64_t bytes = sg_self.open.flight_bytes;
    sg_self.open.flight_bytes = 0;
    if (bytes != 0) {
        sg_entry_flight_add(sg_self.open.flight_source, -(int64_t)bytes);
        sg_peers_advance();
    }
    sg_thread_let_all_cancels();
}

/* ---- small requests ---------------------------------------------------------------------------------------------- */

/* Decides a small request that the cached snapshot does not admit, with the grace that GRACE_BYTES describes. Under the
 * lock. The request is in flight already, so the limit is checked for a growth of 0 beyond that. */
static enum sg_verdict decide_small(struct sg_request *request, struct sg_answer *answer)
{
    struct sg_request nothing = *request;
    nothing.growth_bytes = 0;
    sg_check_join();
    if (sg_check_is_beyond_own_limit(request, GRACE_BYTES, answer))
        return SG_REFUSE;
    sg_registry_count(request->size_bytes); /* after it went in flight, before the snapshot */
    sg_headroom_refresh(0, false);
    if (sg_check_is_sparse_near(request))
        sg_headroom_scan_if_old();
    bool is_within = sg_check_limit(&nothing, GRACE_BYTES, SG_HEADROOM_FLIGHT, answer);
    if (!is_within || (sg_headroom_last.snapshot.is_valid && sg_headroom_slack(SG_HEADROOM_FLOOR) < 0)) {
        sg_check_take_out_the_dead(NULL);
        sg_headroom_scan(); /* pages touched since the last scan would count twice: as resident and as promised */
        sg_headroom_refresh(0, true);
        is_within = sg_check_limit(&nothing, GRACE_BYTES, SG_HEADROOM_FLIGHT, answer);
    }
    if (!is_within) /* a wait that ends in vain is answered by what is in flight */
        return sg_check_limit(request, GRACE_BYTES, SG_HEADROOM_STALLED, answer)
                   ? wait_for(request, sg_wait_for_flight_ns())
                   : SG_REFUSE;
    if (!sg_headroom_last.snapshot.is_valid)
        return SG_ADMIT;
    uint64_t granted = sg_load(&sg_own->slot.granted_bytes);
    if (sg_headroom_slack(SG_HEADROOM_FLOOR) >= 0) {
        state.is_below_floor = 0;
        return SG_ADMIT;
    }
    if (!state.is_below_floor) {
        state.is_below_floor = 1;
        state.floor_granted_bytes = granted;
    }
    if (granted < SHELL_BYTES || granted + request->size_bytes <= state.floor_granted_bytes + GRACE_BYTES)
        return SG_ADMIT;
    (void)sg_check_constraints(request, SG_HEADROOM_ALL, 0, answer); /* also for a wait that ends in vain */
    answer->reason = SG_REASON_FLOOR;
    return sg_headroom_would_be_above_floor(request->size_bytes) ? wait_for(request, sg_wait_for_flight_ns())
                                                                 : SG_REFUSE;
}

/* Decides a small request that is in flight. Any verdict but SG_ADMIT leaves it there. */
static enum sg_verdict judge_small(struct sg_request *request, struct sg_answer *answer)
{
    enum sg_verdict verdict = SG_ADMIT;
    if (!sg_headroom_may_take(SG_HEADROOM_FLOOR, request->size_bytes) ||
        !sg_headroom_take(SG_HEADROOM_FLOOR, request->size_bytes)) {
        struct sg_lock_state lock;
        sg_lock_acquire(&sg_decision_lock, &lock);
        verdict = decide_small(request, answer);
        if (verdict == SG_ADMIT)
            sg_headroom_scan_if_due();
        sg_lock_release(&sg_decision_lock, &lock);
    }
    return verdict;
}

/* A small request is in flight while it is decided. */
static SG_INLINE struct sg_request small_request(enum sg_domain domain, uint64_t bytes, const char *call)
{
    return (struct sg_request){.domain = domain,
                               .size_bytes = bytes,
                               .growth_bytes = bytes,
                               .wording.call = call,
                               .kind = SG_REQUEST_SMALL,
                               .holds_signals = true};
}

bool sg_admission_ask_small(enum sg_domain domain, uint64_t bytes, const char *call)
{
    struct sg_request request = small_request(domain, bytes, call);
    struct sg_answer answer = {0};
    uint32_t seen = sg_peers_epoch();
    if (sg_refusal_repeats(&request))
        return false;
    begin_flight(&request);
    enum sg_verdict verdict = judge_small(&request, &answer);
    while (verdict == SG_WAIT) {
        end_flight(&request); /* two waiting requests in flight would wait for each other */
        bool has_time = sg_wait_for_change(&request, seen);
        seen = sg_peers_epoch();
        begin_flight(&request);
        if (!has_time)
            break;
        verdict = judge_small(&request, &answer);
    }
    if (verdict == SG_ADMIT)
        return true;
    end_flight(&request);
    sg_refusal_report(&request, &answer);
    if (sg_options.mode_observe)
        begin_flight(&request);
    return sg_options.mode_observe != 0;
}

void sg_admission_promise(const struct sg_request *request, uint64_t bytes)
{
    struct sg_lock_state lock;
    bool is_locked = request->shared.begin != 0;
    if (is_locked)
        sg_lock_acquire(&sg_decision_lock, &lock);
    promise(request, bytes);
    if (is_locked)
        sg_lock_release(&sg_decision_lock, &lock);
}

/* The epoch is not advanced for small requests: waiting processes take a new snapshot every 50 ms. */
void sg_admission_settle_small(const struct sg_request *request, uint64_t kept_bytes)
{
    const struct sg_request flown = small_request(request->domain, request->growth_bytes, NULL);
    if (kept_bytes != 0)
        sg_admission_promise(request, kept_bytes);
    end_flight(&flown);
}

void sg_admission_begin_return(uint64_t bytes)
{
    const struct sg_request request = small_request(SG_DOMAIN_MAPPED, bytes, NULL);
    begin_flight(&request);
    sg_registry_note_returned(bytes);
}

void sg_admission_end_return(uint64_t bytes)
{
    const struct sg_request request = small_request(SG_DOMAIN_MAPPED, bytes, NULL);
    sg_admission_settle_small(&request, bytes);
}

bool sg_admission_take_credit(uint64_t bytes, const char *call)
{
    if (SG_UNLIKELY(sg_self.record == NULL)) {
        sg_thread_enter();
        uint32_t not_begun = 0;
        if (sg_self.record != NULL && sg_cas_u32(&state.has_begun, &not_begun, 1))
            sg_ledger_grant_credit(sg_self.record, SG_CREDIT_MAX); /* a process gets this much before any decision */
    }
    struct sg_record *record = sg_self.record;
    int64_t credit = record != NULL ? sg_load_relaxed(&record->credit_bytes) : 0;
    if (SG_LIKELY(credit >= (int64_t)bytes))
        return true;
    sg_segment_attach();
    uint64_t wanted = (uint64_t)((int64_t)bytes - credit);
    const struct sg_request alone = small_request(SG_DOMAIN_HEAP, wanted, call);
    if ((sg_self.layers & SG_LAYER_CUDA) == 0 && sg_refusal_repeats(&alone))
        return false;
    sg_thread_reap(REAPED_AT_REFILL);
    struct sg_request refill = small_request(SG_DOMAIN_HEAP, wanted + (record != NULL ? SG_CREDIT_REFILL : 0), call);
    struct sg_answer ignored;
    begin_flight(&refill);
    if (judge_small(&refill, &ignored) != SG_ADMIT) { /* then ask for the block alone, without the refill */
        sg_admission_settle_small(&refill, 0);
        refill.size_bytes = refill.growth_bytes = wanted;
        if ((sg_self.layers & SG_LAYER_CUDA) != 0) /* always grant the driver's own: it may not handle a refusal */
            begin_flight(&refill);
        else if (!sg_admission_ask_small(SG_DOMAIN_HEAP, wanted, call))
            return false;
    }
    if (record != NULL)
        sg_ledger_grant_credit(record, refill.size_bytes);
    sg_admission_settle_small(&refill, refill.size_bytes);
    return true;
}

/* ---- without a request ------------------------------------------------------------------------------------------- */

void sg_admission_join(void)
{
    struct sg_lock_state lock;
    sg_segment_attach();
    sg_lock_acquire(&sg_decision_lock, &lock);
    sg_check_join();
    sg_lock_release(&sg_decision_lock, &lock);
}
