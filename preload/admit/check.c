/*
 * check.c - see check.h.
 */
#include "admit/check.h"

#include "base/atomics.h"
#include "account/tmpfs_ranges.h"
#include "shared/foreign.h"
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

void sg_check_refork(void)
{
    has_inherited = true;
}

void sg_check_join(void)
{
    if (SG_UNLIKELY(has_inherited)) { /* the parent's promises count as the parent's while it lives */
        has_inherited = 0;
        sg_tracker_inherit();
    }
    if (sg_registry_is_check_due()) {
        sg_headroom_forget();
        if (sg_registry_check_place() && sg_segment_check_place())
            sg_timeline_make_anew();
    }
    if (!sg_registry_may_join())
        return;
    sg_headroom_forget();
    sg_registry_join();
    sg_tmpfs_show();
}

/* ---- whether a request fits, by the last snapshot ---------------------------------------------------------------- */

static bool is_nothing_allowed(void)
{
    return sg_options.limit.is_set && sg_options.limit.bytes == 0 && sg_options.limit.percent_milli == 0;
}

uint64_t sg_check_limit_bytes(void)
{
    uint64_t others = sg_headroom_peers()->job_limit_bytes;
    if (!sg_options.limit.is_set)
        return others;
    if (sg_own->slot.limit_bytes == 0) {
        sg_own->slot.limit_bytes =
            is_nothing_allowed() ? 1 : sg_size_of(sg_options.limit, sg_headroom_machine_bytes()); /* 0: none */
        sg_store(&sg_entry_own()->slot.limit_bytes, sg_own->slot.limit_bytes);
    }
    uint64_t own = sg_own->slot.limit_bytes;
    return others != 0 && others < own ? others : own;
}

uint64_t sg_check_job_bytes(uint32_t parts)
{
    const struct sg_peer_sums *others = &sg_headroom_peers()->job;
    uint64_t held = others->held_bytes;
    if ((parts & SG_HEADROOM_FLIGHT) != 0) /* before the held bytes: another thread's bytes move from flight to held */
        held += sg_load(&sg_own->slot.in_flight_bytes) + others->flight_bytes;
    else if ((parts & SG_HEADROOM_STALLED) != 0)
        held += others->stalled_bytes;
    held += sg_ledger_own_bytes() + sg_load(&sg_own->slot.sparse_bytes) + sg_headroom_peers()->job_sparse_bytes;
    if ((parts & SG_HEADROOM_QUEUED_BEFORE) != 0)
        held += others->queued_before_bytes;
    return held;
}

static void answer_by_limit(struct sg_request *request, uint64_t limit, uint64_t held)
{
    limit = is_nothing_allowed() ? 0 : limit;
    request->reason = SG_REASON_LIMIT;
    request->kept_bytes = limit;
    request->usable_bytes = limit > held ? limit - held : 0;
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
    answer_by_limit(request, limit, held);
    return true;
}

bool sg_check_limit(struct sg_request *request, uint64_t grace_bytes, uint32_t parts)
{
    uint64_t most = sg_check_limit_bytes();
    if (most == 0)
        return true;
    uint64_t held = sg_check_job_bytes(parts);
    uint64_t limit = most + grace_bytes, growth = request->growth_bytes;
    if (request->shared_begin != 0) {
        uint64_t others = sg_same_bytes_of_job(request->shared_begin, request->shared_end);
        growth -= others < growth ? others : growth;
    }
    if (held <= limit && growth <= limit - held)
        return true;
    answer_by_limit(request, most, held);
    return false;
}

bool sg_check_is_sparse_near(const struct sg_request *request)
{
    uint64_t most = sg_tracker_sparse_room_bytes(), known = sg_load(&sg_own->slot.sparse_bytes);
    struct sg_request more = *request;
    if (most <= known || sg_check_limit_bytes() == 0)
        return false;
    more.growth_bytes += most - known < sg_check_limit_bytes() ? most - known : sg_check_limit_bytes();
    return !sg_check_limit(&more, 0, SG_HEADROOM_ALL);
}

uint64_t sg_check_device_reserve(uint64_t total_bytes)
{
    const struct sg_size by_default = {.percent_milli = 2000}, *kept = &sg_options.device_reserve;
    return sg_size_of(kept->is_set ? *kept : by_default, total_bytes);
}

/* Requests in flight may or may not be in the driver's figure, so they all count as taken. device_epoch tells whether
 * any request was settled after the driver gave its figure. */
static bool fits_device(struct sg_request *request, uint32_t parts)
{
    uint64_t reserve = sg_check_device_reserve(request->device_total_bytes), taken = 0;
    const struct sg_peer_sums *others = &sg_headroom_peers()->device;
    if ((parts & SG_HEADROOM_FLIGHT) != 0)
        taken += others->flight_bytes + sg_entry_own_device_flight(request->device_identity);
    else if ((parts & SG_HEADROOM_STALLED) != 0)
        taken += others->stalled_bytes;
    if ((parts & SG_HEADROOM_QUEUED_BEFORE) != 0)
        taken += others->queued_before_bytes;
    uint64_t usable = request->device_free_bytes > taken ? request->device_free_bytes - taken : 0;
    request->usable_bytes = usable;
    request->kept_bytes = reserve;
    request->reason = SG_REASON_DEVICE;
    return usable > reserve && request->size_bytes <= usable - reserve;
}

bool sg_check_fits(struct sg_request *request, uint32_t parts)
{
    if (!sg_check_limit(request, 0, parts))
        return false;
    if (request->has_device_pool)
        return fits_device(request, parts);
    return !sg_headroom_is_known() || sg_headroom_fits(request, parts);
}

bool sg_check_is_overtaken(const struct sg_request *request)
{
    if (!sg_foreign_is_met())
        return false;
    sg_fence(); /* pairs with their read of this process's entry, after they have announced their request */
    uint64_t bytes_before = sg_headroom_peers()->foreign_bytes, now = sg_foreign_bytes();
    uint64_t gone = request->kept_bytes + request->size_bytes;
    uint64_t left = request->usable_bytes > gone && sg_check_limit_bytes() == 0 ? request->usable_bytes - gone : 0;
    return now > bytes_before && now - bytes_before > left;
}

uint64_t sg_check_source(const struct sg_request *request)
{
    if (request->has_device_pool)
        return request->device_identity;
    return request->domain == SG_DOMAIN_DEVICE ? SG_POOL_UNBOUNDED : SG_POOL_BOUNDED;
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
