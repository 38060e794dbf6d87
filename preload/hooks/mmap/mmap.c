/*
 * mmap.c - mmap, munmap and mremap; mprotect is in mprotect.c, madvise and mlock are in madvise.c, sbrk
 * in brk.c.
 *
 * What counts (domain "mapped"): writable private, shared anonymous and tmpfs mappings, in whole pages, as the
 * kernel's own commit accounting does. A reservation (PROT_NONE or read-only) counts from the moment mprotect makes
 * it writable, and like the kernel's it stays counted when it is made unwritable again: its pages are still there.
 * MAP_NORESERVE mappings promise nothing; what is resident of them is reported and counts in LIMIT. A call that
 * makes them writable, larger or resident is judged like any other. Mappings of ordinary files and devices never
 * count.
 *
 * Mappings made inside a heap or CUDA hook back what is counted there and are not entered; what they unmap is taken out
 * all the same. The index changes before the real unmap and after the real map, so that an address that another thread
 * gets meanwhile is never taken from it; what an mremap takes along waits outside the address space (park).
 */
#include "hooks/mmap/change.h"
#include "base/atomics.h"
#include "hooks/mmap/sysv_attachments.h"
#include "base/compiler.h"
#include "account/tracker.h"
#include "account/ledger.h"
#include "hooks/lifecycle.h"
#include "hooks/mmap/fork.h"
#include "hooks/real.h"
#include "base/seccomp.h"
#include "shared/segment.h"
#include "base/syscall.h"
#include "account/thread_record.h"
#include "watch/watchdog.h"
#include "base/pages.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/mman.h>

static void *real_mmap(void *address, size_t length, int prot, int flags, int fd, off_t offset)
{
    return SG_REAL(mmap)(address, length, prot, flags, fd, offset);
}

/* Whether the pages come with the call. It may take minutes then, in which a fatal signal ends it. */
static bool populates(int flags)
{
    return (flags & (MAP_POPULATE | MAP_LOCKED)) != 0 || sg_map_locks_future();
}

/* What does not count replaces what did. */
static bool may_be_noted(const struct sg_mapping_kind *shape)
{
    return shape->kind != SG_RANGE_NONE || sg_load_relaxed(&sg_tracker_maps.chunk_count) != 0;
}

/* The bytes of the mapping that come with the call although it promises nothing. */
static uint64_t unpromised_growth(const struct sg_mapping_kind *shape, int flags)
{
    bool is_sparse = shape->kind == SG_RANGE_SPARSE && (shape->flags & (SG_RANGE_COMMITTED | SG_RANGE_SHARED)) != 0;
    bool is_only_read = shape->kind == SG_RANGE_RESERVED && (shape->flags & SG_RANGE_SHARED) != 0;
    return shape->is_judged && populates(flags) && (is_sparse || is_only_read) ? shape->bytes : 0;
}

static struct sg_request request_of(const struct sg_mapping_kind *shape, uintptr_t address, int flags)
{
    uint64_t unpromised = unpromised_growth(shape, flags);
    struct sg_request request = {.domain = SG_DOMAIN_MAPPED, .call = "mmap", .holds_signals = !populates(flags)};
    sg_map_describe(&request, shape, (flags & MAP_FIXED) != 0 ? address : 0);
    request.is_commit = (shape->flags & SG_RANGE_COMMITTED) != 0 && shape->kind == SG_RANGE_COUNTED && shape->is_judged;
    if (unpromised != 0) {
        request.size_bytes = unpromised < shape->missing_bytes ? unpromised : shape->missing_bytes;
        request.growth_bytes = request.sparse_bytes = unpromised;
    }
    return request;
}

static SG_INLINE void *map(void *address, size_t length, int prot, int flags, int fd, off_t offset, const void *caller)
{
    if (sg_real_is_looking()) /* the loader's own mappings are not the program's */
        return sg_sys_mmap(address, length, prot, flags, fd, (uint64_t)offset);
    if (!sg_map_is_counting() || length == 0 || length > PTRDIFF_MAX)
        return real_mmap(address, length, prot, flags, fd, offset);
    int saved_errno = errno;
    struct sg_mapping_kind shape = sg_mapping_kind_of(length, prot, flags, fd, (uint64_t)offset);
    bool is_private = shape.kind == SG_RANGE_COUNTED && (shape.flags & SG_RANGE_SHARED) == 0;
    if ((flags & MAP_FIXED) != 0 && is_private && sg_map_is_own_reservation((uintptr_t)address, shape.bytes))
        shape.flags |= SG_RANGE_COMMITTED;
    struct sg_request request = request_of(&shape, (uintptr_t)address, flags);
    sg_map_name_site(&shape, caller);
    if (!sg_map_judge(&request))
        return MAP_FAILED;
    bool is_held = !populates(flags) && may_be_noted(&shape);
    if (is_held) /* until the index is as the kernel has it, as munmap does */
        sg_lock_hold_signals();
    void *mapped = real_mmap(address, length, prot, flags, fd, offset);
    if (mapped == MAP_FAILED)
        saved_errno = errno;
    if (mapped != MAP_FAILED && may_be_noted(&shape)) {
        sg_map_set((uintptr_t)mapped, &shape);
        if (shape.kind == SG_RANGE_SPARSE && (prot & PROT_WRITE) != 0)
            sg_tracker_add_sparse_room(shape.bytes);
        if (shape.kind == SG_RANGE_COUNTED)
            sg_ledger_count_allocation(SG_DOMAIN_MAPPED);
    }
    if (mapped != MAP_FAILED && shape.kind == SG_RANGE_NONE && (flags & MAP_TYPE) == MAP_PRIVATE &&
        (prot & PROT_WRITE) != 0)
        sg_tracker_add_unpromised(shape.bytes); /* a file's pages, copied when they are written to */
    sg_map_settle(&request, mapped != MAP_FAILED);
    if (is_held)
        sg_lock_let_signals();
    sg_watchdog_consider();
    errno = saved_errno;
    return mapped;
}

SG_EXPORT void *mmap(void *address, size_t length, int prot, int flags, int fd, off_t offset)
{
    return map(address, length, prot, flags, fd, offset, __builtin_return_address(0));
}

SG_EXPORT void *mmap64(void *address, size_t length, int prot, int flags, int fd, off64_t offset)
{
    return map(address, length, prot, flags, fd, offset, __builtin_return_address(0));
}

/* What lies in [begin, begin + bytes), so that it can be put back if the real call fails. */
struct saved_ranges {
    struct sg_range range[32];
    unsigned count;
};

static void save_ranges(uintptr_t begin, uintptr_t end, struct saved_ranges *saved)
{
    saved->count = 0;
    while (saved->count < SG_ARRAY_LENGTH(saved->range) &&
           sg_range_map_within(&sg_tracker_maps, begin, end, &saved->range[saved->count]))
        begin = saved->range[saved->count++].end;
}

/* Nothing was unmapped: everything is as it was. */
static void take_back(uintptr_t begin, uintptr_t end, uintptr_t parked, const struct saved_ranges *saved)
{
    struct sg_map_change change;
    sg_map_change_begin(&change);
    int result = parked != 0 ? sg_map_unpark(parked, begin, end - begin) : 0;
    for (unsigned i = 0; parked == 0 && i < saved->count; i++)
        result |= sg_range_map_set_shared(&sg_tracker_maps, saved->range[i].begin, saved->range[i].end,
                                          saved->range[i].kind, saved->range[i].flags, saved->range[i].source);
    uint64_t promised = sg_map_unsettled_bytes(begin, end);
    sg_map_change_end(&change, result);
    if (promised != 0) /* until the next look, all of it: one that was made meanwhile has not found it */
        sg_ledger_promise(promised);
}

static void forget_parked(uintptr_t parked, uint64_t bytes)
{
    struct sg_map_change change;
    sg_map_change_begin(&change);
    sg_sysv_attached_cut(parked, parked + bytes);
    sg_map_change_end(&change, sg_range_map_set(&sg_tracker_maps, parked, parked + bytes, SG_RANGE_NONE, 0));
}

/* What may have pages there that a look has found, or not: no address space that was only reserved, unless by
 * MAP_NORESERVE. Under the lock. */
static uint64_t bytes_with_pages(uintptr_t begin, uintptr_t end)
{
    return sg_range_map_bytes(&sg_tracker_maps, begin, end, SG_RANGE_COUNTED) +
           sg_range_map_bytes(&sg_tracker_maps, begin, end, SG_RANGE_SPARSE);
}

SG_EXPORT int munmap(void *address, size_t length)
{
    uintptr_t begin = (uintptr_t)address;
    if (sg_real_is_looking())
        return (int)sg_sys_munmap(address, length);
    if (!sg_lifecycle_enter() || length == 0 || begin % sg_page_bytes() != 0 || length > SG_MAP_MAX ||
        begin > SG_MAP_MAX || sg_load_relaxed(&sg_tracker_maps.chunk_count) == 0)
        return SG_REAL(munmap)(address, length);
    uintptr_t end = begin + sg_round_up(length, sg_page_bytes()), parked = 0;
    struct saved_ranges saved;
    struct sg_map_change change;
    sg_map_change_begin(&change);
    sg_lock_hold_signals(); /* until the index is as the kernel has it: no handler may jump out of this */
    save_ranges(begin, end, &saved);
    struct sg_passage passage = sg_tracker_begin_passage(begin, bytes_with_pages(begin, end), false);
    for (unsigned i = 0; i < saved.count; i++)
        sg_tracker_withdraw_range(&saved.range[i]);
    int result = 0;
    if (saved.count == SG_ARRAY_LENGTH(saved.range)) /* perhaps not all */
        result = sg_map_park(begin, end - begin, 0, 0, &parked);
    else if (saved.count != 0)
        result = sg_range_map_set(&sg_tracker_maps, begin, end, SG_RANGE_NONE, 0);
    sg_map_change_end(&change, result);
    int answer = SG_REAL(munmap)(address, length);
    sg_tracker_end_passage(passage);
    if (answer == 0 && saved.count != 0 && saved.range[0].kind == SG_RANGE_COUNTED)
        sg_ledger_count_free(SG_DOMAIN_MAPPED);
    if (answer != 0)
        take_back(begin, end, parked, &saved);
    else if (parked != 0)
        forget_parked(parked, end - begin);
    sg_lock_let_signals();
    return answer;
}

/* One mremap: what it was asked, and where the index keeps what was there meanwhile. */
struct remap {
    uintptr_t from;
    uint64_t old_bytes;
    uint64_t new_bytes;
    bool is_copy;     /* MREMAP_DONTUNMAP, Linux 5.7: the old place stays, empty */
    uintptr_t parked; /* `from` if nothing goes from there */
};

/* The growth of a mapping is promised anew, by this process. */
static uint32_t flags_of_new(const struct sg_range *last)
{
    return last->flags & ~((uint32_t)SG_RANGE_SETTLED | (uint32_t)SG_RANGE_INHERITED);
}

/* The old place of a copy: its own pages have gone and may come anew, of what is shared nothing has, and the new place
 * tells. */
static int leave_empty(uintptr_t begin, uintptr_t end)
{
    struct sg_range range;
    int result = 0;
    for (uintptr_t at = begin; sg_range_map_within(&sg_tracker_maps, at, end, &range); at = range.end)
        if ((range.flags & SG_RANGE_SHARED) != 0)
            result |= sg_range_map_flag(&sg_tracker_maps, range.begin, range.end, SG_RANGE_SETTLED);
        else
            result |=
                sg_range_map_unflag(&sg_tracker_maps, range.begin, range.end, SG_RANGE_SETTLED | SG_RANGE_INHERITED);
    return result;
}

/* The index after a successful mremap. */
static int follow_mremap(const struct remap *remap, uintptr_t to)
{
    struct sg_range last;
    uint64_t old_bytes = remap->old_bytes, new_bytes = remap->new_bytes;
    uintptr_t from = remap->parked;
    uint64_t kept = old_bytes < new_bytes && old_bytes != 0 ? old_bytes : new_bytes;
    sg_sysv_attached_move(from, to, kept, remap->is_copy || old_bytes == 0);
    sg_sysv_attached_grow(to + kept, to + new_bytes);
    if (kept < old_bytes && !remap->is_copy)
        sg_sysv_attached_cut(from + kept, from + old_bytes);
    if (old_bytes == 0) { /* a second view of a shared mapping */
        if (!sg_range_map_next(&sg_tracker_maps, from, &last) || last.begin > from)
            return sg_range_map_set(&sg_tracker_maps, to, to + new_bytes, SG_RANGE_NONE, 0);
        return sg_range_map_set_shared(&sg_tracker_maps, to, to + new_bytes, last.kind, flags_of_new(&last),
                                       sg_range_source_at(&last, from));
    }
    bool is_known = sg_range_map_next(&sg_tracker_maps, from + old_bytes - 1, &last) && last.begin < from + old_bytes;
    uint64_t source = is_known ? sg_range_source_at(&last, from + old_bytes) : 0;
    int result = sg_range_map_move(&sg_tracker_maps, from, to, kept, remap->is_copy);
    if (remap->is_copy)
        result |= leave_empty(from, from + old_bytes);
    else if (kept < old_bytes)
        result |= sg_range_map_set(&sg_tracker_maps, from + kept, from + old_bytes, SG_RANGE_NONE, 0);
    if (new_bytes > kept)
        result |=
            sg_range_map_set_shared(&sg_tracker_maps, to + kept, to + new_bytes, is_known ? last.kind : SG_RANGE_NONE,
                                    is_known ? flags_of_new(&last) : 0, source);
    return result;
}

/* Ranges of which the kernel has nothing any more are none. */
static int forget_gone(uintptr_t begin, uintptr_t end)
{
    struct sg_range range;
    int result = 0;
    if (sg_seccomp_is_on())
        return 0;
    for (uintptr_t at = begin; sg_range_map_within(&sg_tracker_maps, at, end, &range); at = range.end) {
        if (sg_sys_msync(range.begin, sg_page_bytes(), MS_ASYNC) != -ENOMEM)
            continue;
        sg_sysv_attached_cut(range.begin, range.end);
        result |= sg_range_map_set(&sg_tracker_maps, range.begin, range.end, SG_RANGE_NONE, 0);
    }
    return result;
}

/* The index after a failed one. To a fixed place: before Linux 6.1 finds that it cannot move, it has let go of what was
 * there, and of what the old place had more than the new one; 6.18 looks first. */
static int follow_failed_mremap(const struct remap *remap, uintptr_t fixed)
{
    int result = 0;
    if (remap->parked != remap->from)
        result = sg_map_unpark(remap->parked, remap->from, remap->old_bytes);
    if (fixed == 0)
        return result;
    if (remap->old_bytes > remap->new_bytes)
        result |= forget_gone(remap->from + remap->new_bytes, remap->from + remap->old_bytes);
    return result | forget_gone(fixed, fixed + remap->new_bytes);
}

/* The request of this mremap: how much more would count, or may come without a promise. */
static void describe_mremap(struct sg_request *request, const struct remap *remap)
{
    struct sg_range range;
    struct sg_lock_state lock;
    bool is_second = remap->is_copy || remap->old_bytes == 0; /* the old place stays */
    uint64_t kept = is_second ? 0 : remap->old_bytes, more = remap->new_bytes > kept ? remap->new_bytes - kept : 0;
    uintptr_t last = remap->from + (remap->old_bytes != 0 ? remap->old_bytes - 1 : 0);
    *request = (struct sg_request){.domain = SG_DOMAIN_MAPPED, .call = "mremap", .holds_signals = true};
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    bool is_known = sg_range_map_next(&sg_tracker_maps, last, &range) && range.begin <= last && sg_self.layers == 0;
    bool counts = is_known && range.kind == SG_RANGE_COUNTED;
    bool is_sparse = is_known && range.kind == SG_RANGE_SPARSE && (range.flags & SG_RANGE_COMMITTED) != 0;
    if (counts && more != 0 && range.source != 0 && range.begin <= remap->from + kept) {
        request->shared_begin = sg_range_source_at(&range, remap->from + kept);
        request->shared_end = request->shared_begin + more / SG_SHARED_UNIT;
        more = sg_range_map_unmapped_bytes(&sg_tracker_maps, request->shared_begin, request->shared_end);
    }
    sg_lock_release(&sg_tracker_maps_lock, &lock);
    if (is_sparse && !remap->is_copy)
        request->sparse_bytes = more;
    request->size_bytes = request->growth_bytes = counts ? more : request->sparse_bytes;
}

SG_EXPORT void *mremap(void *address, size_t old_length, size_t new_length, int flags, ...)
{
    va_list arguments;
    bool is_copy = (flags & 4 /* MREMAP_DONTUNMAP */) != 0;
    va_start(arguments,
             flags); /* the kernel reads the address with both flags: with MREMAP_DONTUNMAP alone it is a hint */
    void *wanted = (flags & MREMAP_FIXED) != 0 || is_copy ? va_arg(arguments, void *) : NULL;
    va_end(arguments);
    uintptr_t fixed = (flags & MREMAP_FIXED) != 0 ? (uintptr_t)wanted : 0;
    struct remap remap = {(uintptr_t)address, sg_round_up(old_length, sg_page_bytes()),
                          sg_round_up(new_length, sg_page_bytes()), is_copy, (uintptr_t)address};
    if (sg_real_is_looking() || !sg_lifecycle_enter() || new_length == 0 || remap.from % sg_page_bytes() != 0 ||
        old_length > SG_MAP_MAX || new_length > SG_MAP_MAX || remap.from > SG_MAP_MAX ||
        sg_load_relaxed(&sg_tracker_maps.chunk_count) == 0)
        return SG_REAL(mremap)(address, old_length, new_length, flags, wanted);
    int saved_errno = errno;
    struct sg_request request;
    struct sg_map_change change;
    describe_mremap(&request, &remap);
    if (!sg_map_judge(&request))
        return MAP_FAILED;
    int result = 0;
    bool is_parked = !is_copy && remap.old_bytes != 0;
    if (is_parked) {
        sg_map_change_begin(&change);
        sg_lock_hold_signals(); /* as munmap does */
        result = sg_map_park(remap.from, remap.old_bytes, remap.new_bytes, fixed, &remap.parked);
        sg_map_change_end(&change, result);
    }
    void *moved = SG_REAL(mremap)(address, old_length, new_length, flags, wanted);
    if (moved == MAP_FAILED)
        saved_errno = errno;
    uintptr_t to = moved != MAP_FAILED ? (uintptr_t)moved : fixed;
    bool is_followed = is_parked || moved != MAP_FAILED || to != 0;
    if (is_followed) {
        sg_map_change_begin(&change);
        if (!is_parked)
            sg_lock_hold_signals();
        /* A scan may be behind the new place and not yet at the parked one. */
        uint64_t moving = sg_map_unsettled_bytes(remap.parked, remap.parked + remap.old_bytes);
        sg_ledger_begin_move(moving);
        result = moved != MAP_FAILED ? follow_mremap(&remap, to) : follow_failed_mremap(&remap, to);
        sg_map_change_end(&change, result);
        sg_ledger_end_move(moving);
    }
    sg_map_settle(&request, moved != MAP_FAILED);
    if (is_followed)
        sg_lock_let_signals();
    sg_watchdog_consider();
    errno = saved_errno;
    return moved;
}
