/*
 * change.c - see change.h.
 */
#include "hooks/mmap/change.h"

#include "base/atomics.h"
#include "hooks/mmap/sysv_attachments.h"
#include "account/tmpfs_ranges.h"
#include "admit/check.h"
#include "account/tracker.h"
#include "account/ledger.h"
#include "hooks/lifecycle.h"
#include "base/options.h"
#include "base/pages.h"
#include "shared/own_entry.h"
#include "shared/segment.h"
#include "account/callsites.h"
#include "account/thread_record.h"

#include <errno.h>

void sg_mmap_change_begin(struct sg_mmap_change *change)
{
    sg_tracker_wait_for_fork();
    sg_lock_acquire(&sg_tracker_maps_lock, &change->lock);
    sg_lock_hold_signals();
    sg_tracker_begin_change();
    change->before_bytes = sg_tracker_maps.counted_bytes;
    change->shut_bytes = sg_tracker_maps.shut_bytes;
    change->inherited_bytes = sg_tracker_maps.inherited_bytes;
}

/* In step with the kernel's figures (ledger.h), whatever has changed the range map. */
static void follow_shut(const struct sg_mmap_change *change)
{
    uint64_t before = change->shut_bytes, now = sg_tracker_maps.shut_bytes;
    if (now > before)
        sg_ledger_close_private(now - before);
    else if (now < before)
        sg_ledger_reopen_private(before - now);
    if (SG_UNLIKELY(sg_tracker_maps.inherited_bytes < change->inherited_bytes))
        sg_ledger_release_inherited(change->inherited_bytes - sg_tracker_maps.inherited_bytes);
}

void sg_mmap_change_end(struct sg_mmap_change *change, int result)
{
    int64_t growth = (int64_t)(sg_tracker_maps.counted_bytes - change->before_bytes);
    bool has_files = sg_tmpfs_mapped.is_changed;
    follow_shut(change);
    sg_callsites_publish_ranges(&sg_tracker_maps);
    if (has_files)
        sg_tmpfs_show_changes(growth);
    sg_tracker_end_change();
    sg_lock_release(&sg_tracker_maps_lock, &change->lock);
    if (!has_files && growth > 0)
        sg_ledger_charge(SG_DOMAIN_MAPPED, (uint64_t)growth);
    else if (!has_files && growth < 0)
        sg_ledger_release_own(SG_DOMAIN_MAPPED, (uint64_t)-growth);
    if (result != 0)
        sg_ledger_count_fault();
    sg_lock_let_signals();
}

void sg_mmap_name_site(struct sg_mapping_kind *mapping, const void *caller)
{
    bool may_count = mapping->kind == SG_RANGE_COUNTED || mapping->kind == SG_RANGE_RESERVED;
    if (may_count && mapping->bytes >= sg_options.large_bytes)
        mapping->flags |= sg_callsites_find(SG_CALLSITES_MAPPED, SG_DOMAIN_MAPPED, caller) << SG_RANGE_SITE_SHIFT;
}

/* Returns whether a range is of MAP_NORESERVE and was never made writable. */
static bool is_closed(const struct sg_range *range)
{
    return range->kind == SG_RANGE_SPARSE && (range->flags & SG_RANGE_COMMITTED) == 0;
}

/* Shared pages of the huge page pool, which MemAvailable does not contain (mapping_kind.c). */
static bool is_huge(const struct sg_range *range)
{
    return (range->flags & SG_RANGE_SETTLED) != 0 && (range->flags & SG_RANGE_SHARED) != 0;
}

uint64_t sg_mmap_closed_bytes(uintptr_t address, uint64_t bytes)
{
    struct sg_range range;
    uint64_t closed = 0;
    for (uintptr_t at = address; sg_range_map_within(&sg_tracker_maps, at, address + bytes, &range); at = range.end)
        if (is_closed(&range) && !is_huge(&range))
            closed += range.end - range.begin;
    return closed;
}

uint64_t sg_mmap_open_bytes(uintptr_t address, uint64_t bytes)
{
    struct sg_lock_state lock;
    struct sg_range range;
    uint64_t open = 0;
    const uint32_t asked = SG_RANGE_COMMITTED | SG_RANGE_SHARED | SG_RANGE_COPIED;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    for (uintptr_t at = address; sg_range_map_within(&sg_tracker_maps, at, address + bytes, &range); at = range.end)
        if (range.kind == SG_RANGE_SPARSE && (range.flags & asked) == SG_RANGE_COMMITTED)
            open += range.end - range.begin;
    sg_lock_release(&sg_tracker_maps_lock, &lock);
    return open;
}

bool sg_mmap_is_own_reservation(uintptr_t address, uint64_t bytes)
{
    struct sg_lock_state lock;
    struct sg_range range;
    uint64_t reserved = 0;
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    for (uintptr_t at = address; sg_range_map_within(&sg_tracker_maps, at, address + bytes, &range); at = range.end)
        if ((range.flags & SG_RANGE_SHARED) == 0 && (range.flags & SG_RANGE_COPIED) == 0 &&
            (range.kind == SG_RANGE_RESERVED || is_closed(&range) || (range.flags & SG_RANGE_COMMITTED) != 0))
            reserved += range.end - range.begin;
    sg_lock_release(&sg_tracker_maps_lock, &lock);
    return reserved == bytes;
}

/* Holds the lock for one range at a time: sg_tracker_absent_bytes asks the kernel. */
uint64_t sg_mmap_absent_bytes(uintptr_t address, uint64_t bytes, bool is_copying)
{
    struct sg_range range;
    uint64_t absent = 0;
    for (uintptr_t at = address, end = address + bytes;;) {
        struct sg_lock_state lock;
        sg_lock_acquire(&sg_tracker_maps_lock, &lock);
        bool has_more = sg_range_map_within(&sg_tracker_maps, at, end, &range);
        bool is_shared = (range.flags & SG_RANGE_SHARED) != 0;
        bool comes = has_more && (range.kind == SG_RANGE_SPARSE || (range.kind == SG_RANGE_RESERVED && is_shared)) &&
                     (is_shared || !is_closed(&range)) && !is_huge(&range) &&
                     (is_copying || (range.flags & SG_RANGE_COPIED) == 0);
        if (comes)
            absent += sg_tracker_absent_bytes(&range);
        sg_lock_release(&sg_tracker_maps_lock, &lock);
        if (!has_more)
            return absent;
        at = range.end;
    }
}

/* Returns the counted bytes of ranges that have none of these flags. Under the maps lock. */
static uint64_t counted_without(uintptr_t begin, uintptr_t end, uint32_t flags)
{
    struct sg_range range;
    uint64_t bytes = 0;
    for (uintptr_t at = begin; sg_range_map_within(&sg_tracker_maps, at, end, &range); at = range.end)
        if (range.kind == SG_RANGE_COUNTED && (range.flags & flags) == 0)
            bytes += range.end - range.begin;
    return bytes;
}

/* Only private memory that is not inherited makes room at once when it is replaced: no other process has its pages. */
void sg_mmap_describe(struct sg_request *request, const struct sg_mapping_kind *mapping, uintptr_t replaced)
{
    struct sg_lock_state lock;
    uint64_t end = replaced + mapping->bytes, coming = mapping->bytes, leaving = 0;
    if (mapping->kind != SG_RANGE_COUNTED || !mapping->is_judged)
        return;
    bool is_new = mapping->source == 0 && replaced == 0; /* usual, and needs no look at other ranges */
    if (!is_new)
        sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    request->is_shared = (mapping->flags & SG_RANGE_SHARED) != 0;
    if (mapping->source != 0) {
        request->shared.begin = mapping->source;
        request->shared.end = mapping->source + mapping->bytes / SG_SHARED_UNIT;
        coming = sg_range_map_unmapped_bytes(&sg_tracker_maps, request->shared.begin, request->shared.end);
    }
    if (replaced != 0) {
        leaving = sg_range_map_leaving_bytes(&sg_tracker_maps, replaced, end);
        request->replaced_bytes = counted_without(replaced, end, SG_RANGE_SHARED | SG_RANGE_INHERITED);
    }
    if (!is_new)
        sg_lock_release(&sg_tracker_maps_lock, &lock);
    request->size_bytes = coming < mapping->missing_bytes ? coming : mapping->missing_bytes;
    request->growth_bytes = coming > leaving ? coming - leaving : 0;
}

/* A request can name one range of shared memory, and only if it asks for nothing else. In all other cases it names
 * none, and all bytes count as new. */
bool sg_mmap_describe_commit(struct sg_request *request, uintptr_t begin, uintptr_t end, const char *call)
{
    struct sg_lock_state lock;
    struct sg_range range;
    uint64_t reserved = 0, closed = 0, count = 0;
    *request = (struct sg_request){.domain = SG_DOMAIN_MAPPED, .wording.call = call, .holds_signals = true};
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    request->size_bytes = request->growth_bytes = sg_range_map_coming_bytes(&sg_tracker_maps, begin, end);
    for (uintptr_t at = begin; sg_range_map_within(&sg_tracker_maps, at, end, &range); at = range.end) {
        closed += is_closed(&range) && !is_huge(&range) ? range.end - range.begin : 0;
        if (range.kind != SG_RANGE_RESERVED)
            continue;
        reserved += range.end - range.begin;
        request->is_shared = request->is_shared || (range.flags & SG_RANGE_SHARED) != 0;
        request->shared.begin = count++ == 0 ? range.source : 0;
        request->shared.end = sg_range_source_at(&range, range.end);
    }
    sg_lock_release(&sg_tracker_maps_lock, &lock);
    if (closed != 0)
        request->shared.begin = 0;
    if (reserved == 0 && closed == 0)
        *request = (struct sg_request){0};
    request->size_bytes += closed;
    request->growth_bytes += closed;
    request->sparse_bytes = closed;
    return reserved != 0 || closed != 0;
}

uint64_t sg_mmap_scanned_bytes(uintptr_t begin, uintptr_t end)
{
    struct sg_range range;
    uint64_t bytes = 0;
    for (uintptr_t at = begin; sg_range_map_within(&sg_tracker_maps, at, end, &range); at = range.end)
        if (range.kind == SG_RANGE_SPARSE || (range.flags & (SG_RANGE_SHARED | SG_RANGE_SETTLED)) == SG_RANGE_SHARED)
            bytes += range.end - range.begin;
    return bytes;
}

int sg_mmap_enter(uintptr_t address, const struct sg_mapping_kind *mapping)
{
    uintptr_t end = address + mapping->bytes;
    sg_sysv_attached_cut(address, end);
    if (mapping->source != 0)
        sg_tracker_maps.shared = &sg_tmpfs_mapped;
    return sg_range_map_set_shared(&sg_tracker_maps, address, end, mapping->kind, mapping->flags, mapping->source);
}

void sg_mmap_set(uintptr_t address, const struct sg_mapping_kind *mapping)
{
    struct sg_mmap_change change;
    sg_mmap_change_begin(&change);
    sg_mmap_change_end(&change, sg_mmap_enter(address, mapping));
}

/* A part of a mapping of a file, and how much of it has pages. */
struct part {
    uintptr_t begin;
    uint64_t bytes, allocated;
};

static void settle_part(const struct part *part)
{
    struct sg_mmap_change change;
    sg_mmap_change_begin(&change);
    sg_mmap_change_end(&change,
                       sg_range_map_flag(&sg_tracker_maps, part->begin, part->begin + part->bytes, SG_RANGE_SETTLED));
}

/* Halves the parts that have pages in places, down to a page. A file is seldom allocated in more pieces than the
 * questions are for; what is left stays a promise. */
void sg_mmap_settle_allocated(uintptr_t address, const struct sg_mapping_kind *mapping, int fd, uint64_t offset)
{
    enum { QUESTIONS = 128, DEPTH = 48 };
    struct part part[DEPTH] = {{address, mapping->bytes, 0}};
    uint64_t to_file = offset - address, page = sg_page_bytes();
    unsigned count = sg_mapping_file_bytes(fd, offset, mapping->bytes, &part[0].allocated) ? 1 : 0;
    for (unsigned questions = 0; count != 0;) {
        struct part whole = part[--count];
        bool is_whole = whole.allocated == whole.bytes, is_mixed = !is_whole && whole.allocated != 0;
        if (is_whole)
            settle_part(&whole);
        if (!is_mixed || whole.bytes <= page || count + 2 > DEPTH || questions++ == QUESTIONS)
            continue;
        struct part low = {whole.begin, sg_round_up(whole.bytes / 2, page), 0};
        if (!sg_mapping_file_bytes(fd, low.begin + to_file, low.bytes, &low.allocated))
            return;
        uint64_t rest = whole.allocated > low.allocated ? whole.allocated - low.allocated : 0;
        part[count++] = (struct part){low.begin + low.bytes, whole.bytes - low.bytes, rest};
        part[count++] = low;
    }
}

/* Returns whether a request is decided by itself. Ask and settle must agree on this. */
static bool is_large(const struct sg_request *request)
{
    uint64_t bytes = request->growth_bytes > request->size_bytes ? request->growth_bytes : request->size_bytes;
    return bytes >= sg_options.large_bytes;
}

bool sg_mmap_judge(struct sg_request *request)
{
    uint64_t growth = request->growth_bytes;
    bool is_admitted;
    if (is_large(request)) {
        is_admitted = sg_admission_ask(request);
    } else if (growth == 0) {
        is_admitted = true;
    } else {
        if (!sg_segment_is_shared() && sg_ledger_own_bytes() + growth >= SG_CREDIT_MAX) /* less may stay unpublished */
            sg_segment_attach();
        is_admitted = sg_admission_ask_small(SG_DOMAIN_MAPPED, growth, request->wording.call);
    }
    if (!is_admitted)
        errno = ENOMEM;
    return is_admitted;
}

bool sg_mmap_ask(struct sg_request *request, uint64_t growth, uint64_t sparse_bytes, const char *call)
{
    *request = (struct sg_request){.domain = SG_DOMAIN_MAPPED,
                                   .size_bytes = growth,
                                   .growth_bytes = growth,
                                   .sparse_bytes = sparse_bytes,
                                   .wording.call = call,
                                   .holds_signals = true};
    return sg_mmap_judge(request);
}

void sg_mmap_settle(struct sg_request *request, bool is_done)
{
    uint64_t sparse = request->sparse_bytes < request->size_bytes ? request->sparse_bytes : request->size_bytes;
    uint64_t kept = is_done ? request->size_bytes - sparse : 0;
    if (is_done && sparse != 0) /* before the bytes leave flight, so that they are always counted */
        sg_ledger_open_sparse(request->kind == SG_REQUEST_HEAP ? sg_check_growth(request) : sparse);
    if (is_large(request))
        sg_admission_settle(request, kept);
    else if (request->growth_bytes != 0)
        sg_admission_settle_small(request, kept);
    else if (kept != 0) /* the mapping replaced others: nothing was put in flight */
        sg_admission_promise(request, kept);
}
