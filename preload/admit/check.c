/*
 * check.c - see check.h.
 */
#include "admit/check.h"

#include "base/atomics.h"
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

static bool has_inherited; /* this process was forked and has decided nothing since */

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
    enum sg_registry_step due = sg_registry_due();
    if (SG_UNLIKELY(due == SG_REGISTRY_CHECK)) {
        sg_headroom_forget();
        if (sg_registry_check_place() && sg_segment_check_place())
            sg_timeline_make_anew();
        due = sg_registry_due();
    }
    if (SG_LIKELY(due != SG_REGISTRY_JOIN))
        return;
    sg_headroom_forget();
    sg_registry_join();
    sg_tmpfs_show();
}

/* ---- whether a request fits, by the last snapshot ---------------------------------------------------------------- */

static void answer_by_limit(struct sg_answer *answer, uint64_t limit, uint64_t held)
{
    limit = sg_headroom_is_nothing_allowed() ? 0 : limit;
    answer->reason = SG_REASON_LIMIT;
    answer->kept_bytes = limit;
    answer->usable_bytes = limit > held ? limit - held : 0;
}

bool sg_check_is_beyond_own_limit(struct sg_request *request, uint64_t grace_bytes)
{
    uint64_t limit = sg_own->slot.limit_bytes; /* 0: none, or not resolved yet */
    /* A memory pool of CUDA may have given back memory that the ledger still counts. */
    bool may_shrink = (sg_load_relaxed(&sg_own->slot.flags) & SG_SLOT_CUDA) != 0;
    if (limit == 0 || may_shrink || sg_options.mode_observe)
        return false;
    uint64_t held = sg_ledger_own_bytes(), most = limit + grace_bytes;
    if (held <= most && request->growth_bytes <= most - held)
        return false;
    sg_ledger_take_back_arrays();
    held = sg_ledger_own_bytes();
    if (held <= most && request->growth_bytes <= most - held)
        return false;
    answer_by_limit(&request->answer, limit, held);
    return true;
}

bool sg_check_limit(const struct sg_request *request, uint64_t grace_bytes, uint32_t parts, struct sg_answer *answer)
{
    uint64_t most = sg_headroom_limit_bytes();
    if (most == 0)
        return true;
    uint64_t held = sg_headroom_job_bytes(parts);
    uint64_t limit = most + grace_bytes, growth = request->growth_bytes;
    if (request->shared_begin != 0) {
        uint64_t others = sg_same_bytes_of_job(request->shared_begin, request->shared_end);
        growth -= others < growth ? others : growth;
    }
    if (held <= limit && growth <= limit - held)
        return true;
    answer_by_limit(answer, most, held);
    return false;
}

bool sg_check_is_sparse_near(const struct sg_request *request)
{
    uint64_t most = sg_tracker_sparse_room_bytes(), known = sg_load(&sg_own->slot.sparse_bytes);
    struct sg_request more = *request;
    if (most <= known || sg_headroom_limit_bytes() == 0)
        return false;
    more.growth_bytes += most - known < sg_headroom_limit_bytes() ? most - known : sg_headroom_limit_bytes();
    return !sg_check_limit(&more, 0, SG_HEADROOM_ALL, &more.answer);
}

uint64_t sg_check_device_reserve(uint64_t total_bytes)
{
    const struct sg_size by_default = {.percent_milli = 2000}, *kept = &sg_options.device_reserve;
    return sg_size_of(kept->is_set ? *kept : by_default, total_bytes);
}

/* Requests in flight may or may not be in the driver's figure, so they all count as taken. sg_card.epoch tells whether
 * any request was settled after the driver gave its figure. */
static bool fits_device(const struct sg_request *request, uint32_t parts, struct sg_answer *answer)
{
    uint64_t reserve = sg_check_device_reserve(request->card.total_bytes);
    uint64_t own_flight = sg_entry_own_device_flight(request->card.identity);
    uint64_t taken = sg_headroom_under_way(&sg_headroom_peers()->device, own_flight, parts);
    uint64_t usable = request->card.free_bytes > taken ? request->card.free_bytes - taken : 0;
    answer->usable_bytes = usable;
    answer->kept_bytes = reserve;
    answer->reason = SG_REASON_DEVICE;
    return usable > reserve && request->size_bytes <= usable - reserve;
}

bool sg_check_fits(const struct sg_request *request, uint32_t parts, struct sg_answer *answer)
{
    if (!sg_check_limit(request, 0, parts, answer))
        return false;
    if (request->card.identity != 0)
        return fits_device(request, parts, answer);
    return !sg_headroom_is_known() || sg_headroom_fits(request, parts, answer);
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
