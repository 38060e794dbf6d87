/*
 * check.c - see check.h.
 */
#include "admit/check.h"

#include "admit/bounds.h"
#include "admit/reclaim/pool_room.h"
#include "base/atomics.h"
#include "account/predict/heaps.h"
#include "account/tmpfs_ranges.h"
#include "account/tracker.h"
#include "account/ledger.h"
#include "base/options.h"
#include "shared/same_bytes.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/registry.h"
#include "shared/segment.h"
#include "account/timeline.h"

static bool has_inherited SG_AT_FORK; /* this process was forked and has decided nothing since */

void sg_check_atfork_child(void)
{
    has_inherited = true;
}

void sg_check_join(void)
{
    if (SG_UNLIKELY(has_inherited)) { /* the parent's promises count as the parent's while it lives */
        has_inherited = 0;
        sg_tracker_inherit();
    }
    sg_bounds_read();
    enum sg_registry_step due = sg_registry_due();
    if (SG_UNLIKELY(due == SG_REGISTRY_CHECK)) {
        sg_headroom_forget();
        if (sg_registry_check_place() && sg_segment_check_place())
            sg_timeline_make_anew();
        due = sg_registry_due();
    }
    if (SG_UNLIKELY(due == SG_REGISTRY_JOIN)) {
        sg_headroom_forget();
        sg_registry_join();
        sg_tmpfs_show();
    }
    (void)sg_settings_read(); /* sparkguard --set may have changed the limit */
    (void)sg_headroom_own_limit_bytes();
}

/* ---- whether a request fits, by the last snapshot ---------------------------------------------------------------- */

static void answer_by_limit(struct sg_answer *answer, uint64_t limit, uint64_t held)
{
    answer->reason = SG_REASON_LIMIT;
    answer->kept_bytes = limit;
    answer->usable_bytes = limit > held ? limit - held : 0;
    answer->over_limit_bytes = held > limit ? held - limit : 0;
}

bool sg_check_is_beyond(uint64_t limit, uint64_t growth_bytes, uint64_t grace_bytes, struct sg_answer *answer)
{
    /* A memory pool of CUDA may have given back memory that the ledger still counts. */
    bool may_shrink = (sg_load_relaxed(&sg_own->slot.flags) & SG_SLOT_CUDA) != 0;
    if (may_shrink || sg_options.mode_observe)
        return false;
    uint64_t held = sg_ledger_own_bytes(), most = limit + grace_bytes;
    if (held <= most && growth_bytes <= most - held)
        return false;
    sg_ledger_take_back_arrays();
    held = sg_ledger_own_bytes();
    if (held <= most && growth_bytes <= most - held)
        return false;
    answer_by_limit(answer, limit, held);
    return true;
}

uint64_t sg_check_growth(const struct sg_request *request)
{
    return request->kind == SG_REQUEST_HEAP ? sg_heaps_expected_bytes(request->growth_bytes) : request->growth_bytes;
}

bool sg_check_limit(const struct sg_request *request, uint64_t grace_bytes, uint32_t parts, struct sg_answer *answer)
{
    uint64_t most = sg_headroom_limit_bytes();
    if (most == 0)
        return true;
    uint64_t held = sg_headroom_job_bytes(parts);
    uint64_t limit = most + grace_bytes, growth = sg_check_growth(request);
    if (request->shared.begin != 0) {
        uint64_t others = sg_same_bytes_of_job(request->shared.begin, request->shared.end);
        growth -= others < growth ? others : growth;
    }
    if (held <= limit && growth <= limit - held)
        return true;
    answer_by_limit(answer, most, held);
    return false;
}

bool sg_check_is_sparse_near_limit(const struct sg_request *request)
{
    uint64_t most = sg_tracker_sparse_most_bytes(), known = sg_load(&sg_own->slot.sparse_bytes);
    struct sg_request more = *request;
    struct sg_answer ignored;
    if (most <= known)
        return false;
    more.kind = SG_REQUEST_USUAL;
    more.growth_bytes = sg_check_growth(request);
    more.growth_bytes += most - known < sg_headroom_limit_bytes() ? most - known : sg_headroom_limit_bytes();
    return !sg_check_limit(&more, 0, SG_HEADROOM_ALL, &ignored);
}

uint64_t sg_check_device_reserve(uint64_t total_bytes)
{
    const struct sg_size by_default = {.percent_milli = 2000}, *kept = &sg_options.device_reserve;
    return sg_size_of(kept->is_set ? *kept : by_default, total_bytes);
}

/* The card of a request as a constraint. */
static struct sg_constraint card_of(const struct sg_request *request)
{
    return (struct sg_constraint){.limit_bytes = request->card.total_bytes,
                                  .headroom_bytes = request->card.free_bytes,
                                  .reserve_bytes = sg_check_device_reserve(request->card.total_bytes)};
}

/* Requests in flight may or may not be in the driver's figure, so they all count as taken. sg_card.epoch tells whether
 * any request was settled after the driver gave its figure. */
static uint64_t usable_of_card(const struct sg_card *card, uint32_t parts)
{
    uint64_t free_bytes =
        card->free_bytes < INT64_MAX ? card->free_bytes : INT64_MAX; /* unknown: call.c says SIZE_MAX */
    uint64_t own_flight = sg_entry_own_device_flight(card->identity);
    uint64_t taken = sg_headroom_under_way(&sg_headroom_last.peers.device, own_flight, parts);
    return free_bytes > taken ? free_bytes - taken : 0;
}

/* Bytes that the request adds to a constraint: without old memory that it replaces, without bytes of a memory file that
 * some process was promised already, and without those that the driver's pool serves. */
static uint64_t more_of(const struct sg_request *request, uint32_t where, uint64_t pooled_bytes)
{
    uint64_t less = request->replaced_bytes + pooled_bytes, all = sg_pool_room_with_lists(request);
    if (request->shared.begin != 0)
        less += sg_same_bytes_known(where, request->shared.begin, request->shared.end, request->size_bytes);
    return all > less ? all - less : 0;
}

bool sg_check_constraints(const struct sg_request *request, uint32_t parts, uint64_t expected_bytes,
                          struct sg_answer *answer)
{
    const struct sg_snapshot *snapshot = &sg_headroom_last.snapshot;
    const struct sg_constraint card = card_of(request);
    bool is_of_card = request->card.identity != 0, fits = true;
    uint32_t count = is_of_card || request->domain == SG_DOMAIN_DEVICE ? 1 : snapshot->count;
    uint64_t pooled = sg_pool_room_bytes(request, parts);
    int64_t tightest = INT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const struct sg_constraint *constraint = is_of_card ? &card : &snapshot->at[i];
        uint64_t usable = is_of_card ? usable_of_card(&request->card, parts)
                                     : sg_headroom_usable(i, parts, sg_request_is_cuda(request));
        usable += i == 0 ? expected_bytes : 0;
        uint64_t more = more_of(request, i == 0 ? SG_SAME_ON_MACHINE : SG_SAME_IN_LEVEL + constraint->level, pooled);
        int64_t headroom = (int64_t)usable - (int64_t)constraint->reserve_bytes;
        if (more != 0 && (headroom < 0 || more > (uint64_t)headroom))
            fits = false;
        if (headroom < tightest) {
            tightest = headroom;
            answer->usable_bytes = usable + pooled;
            answer->kept_bytes = constraint->reserve_bytes;
            answer->cgroup_bytes = i == 0 ? 0 : constraint->limit_bytes;
            answer->claimed_bytes = is_of_card ? 0 : sg_headroom_claimed_by_others(i);
        }
    }
    answer->reason = is_of_card ? SG_REASON_DEVICE : SG_REASON_RESERVE;
    return fits;
}

bool sg_check_fits(const struct sg_request *request, uint32_t parts, uint64_t expected_bytes, struct sg_answer *answer)
{
    bool is_known = request->card.identity != 0 || sg_headroom_last.snapshot.is_valid;
    return sg_check_limit(request, 0, parts, answer) &&
           (!is_known || sg_check_constraints(request, parts, expected_bytes, answer));
}

void sg_check_take_out_the_dead(const struct sg_request *request)
{
    const struct sg_registry_entry *entry = sg_entry_own();
    sg_headroom_forget();
    (void)sg_registry_reap();
    sg_check_join();
    if (entry != sg_entry_own() && request != NULL) /* this process has another entry now */
        sg_registry_announce(sg_check_source(request), request->size_bytes);
}
