/*
 * map_change.c - see map_change.h.
 */
#include "map_change.h"

#include "atomics.h"
#include "attached.h"
#include "files.h"
#include "index.h"
#include "ledger.h"
#include "lifecycle.h"
#include "options.h"
#include "segment.h"
#include "sites.h"
#include "thread.h"

#include <errno.h>

bool sg_map_is_counting(void)
{
    return sg_lifecycle_enter() && sg_self.layers == 0;
}

void sg_map_change_begin(struct sg_map_change *change)
{
    sg_lock_acquire(&sg_index_maps_lock, &change->lock);
    sg_lock_hold_signals();
    change->before_bytes = sg_index_maps.counted_bytes;
    change->drops_files = false;
}

void sg_map_change_end(struct sg_map_change *change, int result)
{
    uint64_t before = change->before_bytes, after = sg_index_maps.counted_bytes;
    sg_sites_publish_ranges(&sg_index_maps);
    sg_lock_release(&sg_index_maps_lock, &change->lock);
    if (change->drops_files) /* before the promises come down with what is held */
        sg_admission_forget_files();
    if (after > before)
        sg_ledger_charge(SG_DOMAIN_MAPPED, after - before);
    else if (after < before)
        sg_ledger_release(SG_DOMAIN_MAPPED, before - after);
    if (result != 0)
        sg_ledger_count_fault();
    sg_lock_let_signals();
}

void sg_map_name_site(struct sg_map_shape *shape, const void *caller)
{
    bool may_count = shape->kind == SG_RANGE_COUNTED || shape->kind == SG_RANGE_RESERVED;
    if (may_count && shape->bytes >= sg_options.large_bytes)
        shape->flags |= sg_sites_find(SG_SITES_MAPPED, SG_DOMAIN_MAPPED, caller) << SG_RANGE_SITE_SHIFT;
}

uint64_t sg_map_bytes(uintptr_t address, uint64_t bytes, uint32_t kind)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_index_maps_lock, &lock);
    uint64_t found = sg_ranges_bytes(&sg_index_maps, address, address + bytes, kind);
    sg_lock_release(&sg_index_maps_lock, &lock);
    return found;
}

/* Of what counts, without any of these flags. */
static uint64_t counted_without(uintptr_t begin, uintptr_t end, uint32_t flags)
{
    struct sg_range range;
    uint64_t bytes = 0;
    for (uintptr_t at = begin; sg_ranges_within(&sg_index_maps, at, end, &range); at = range.end)
        if (range.kind == SG_RANGE_COUNTED && (range.flags & flags) == 0)
            bytes += range.end - range.begin;
    return bytes;
}

uint64_t sg_map_replaced_bytes(uintptr_t address, uint64_t bytes)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_index_maps_lock, &lock);
    uint64_t replaced = counted_without(address, address + bytes, SG_RANGE_SHARED | SG_RANGE_INHERITED);
    sg_lock_release(&sg_index_maps_lock, &lock);
    return replaced;
}

uint64_t sg_map_unsettled_bytes(uintptr_t begin, uintptr_t end)
{
    return counted_without(begin, end, SG_RANGE_SETTLED);
}

bool sg_map_has_files(uintptr_t begin, uintptr_t end)
{
    struct sg_range range;
    if (!sg_files_has_any())
        return false;
    for (uintptr_t at = begin; sg_ranges_within(&sg_index_maps, at, end, &range); at = range.end)
        if (sg_files_number(range.flags) != 0)
            return true;
    return false;
}

void sg_map_set(uintptr_t address, const struct sg_map_shape *shape)
{
    struct sg_map_change change;
    uintptr_t end = address + shape->bytes;
    sg_map_change_begin(&change);
    change.drops_files = sg_map_has_files(address, end);
    sg_attached_cut(address, end);
    sg_map_change_end(&change, sg_ranges_set(&sg_index_maps, address, end, shape->kind, shape->flags));
}

static bool is_large(const struct sg_request *request)
{
    uint64_t bytes = request->growth_bytes > request->size_bytes ? request->growth_bytes : request->size_bytes;
    return bytes >= sg_options.large_bytes;
}

bool sg_map_judge(struct sg_request *request)
{
    uint64_t growth = request->growth_bytes;
    bool is_admitted;
    if (is_large(request)) {
        is_admitted = sg_admission_ask(request);
    } else if (growth == 0) {
        is_admitted = true;
    } else {
        if (!sg_segment_is_shared() && sg_ledger_own_bytes() + growth >= SG_CREDIT_MOST) /* less may stay unseen */
            sg_segment_attach();
        is_admitted = sg_admission_ask_small(SG_DOMAIN_MAPPED, growth, request->call);
    }
    if (!is_admitted)
        errno = ENOMEM;
    return is_admitted;
}

bool sg_map_ask(struct sg_request *request, uint64_t growth, const char *call)
{
    *request = (struct sg_request){
        .domain = SG_DOMAIN_MAPPED, .size_bytes = growth, .growth_bytes = growth, .call = call, .holds_signals = true};
    return sg_map_judge(request);
}

void sg_map_settle(struct sg_request *request, bool is_done)
{
    uint64_t kept = is_done ? request->size_bytes : 0;
    if (is_large(request))
        sg_admission_settle(request, kept);
    else if (request->growth_bytes != 0)
        sg_admission_settle_small(request->growth_bytes, kept);
    else if (kept != 0) /* in place of what was there */
        sg_ledger_promise(kept);
}
