/*
 * mmap.c - the hooks of mmap, munmap and mremap. mprotect is in mprotect.c, madvise and mlock are in madvise.c, sbrk is
 * in brk.c.
 *
 * These mappings count (domain "mapped"), in whole pages: writable private, shared anonymous and tmpfs mappings. The
 * kernel's own commit accounting counts the same. A reservation (PROT_NONE or read-only) counts from the moment
 * mprotect makes it writable. It stays counted when it is made unwritable again, as in the kernel: its pages are still
 * there. MAP_NORESERVE mappings promise nothing; their resident pages are reported and count in LIMIT. A call that
 * makes them writable, larger or resident is judged like any other. Of private mappings of files the copied pages count
 * in the same way, and to make such a mapping larger is not judged. Shared mappings of ordinary files and mappings of
 * devices never count.
 *
 * A mapping made inside a heap or CUDA hook holds blocks that are counted there, and is not entered. An unmapping
 * inside such a hook is taken out of the range map all the same. The range map changes before the real unmap and after
 * the real map, so that ranges that another thread maps at the same addresses meanwhile are never taken out. Ranges
 * that an mremap moves are parked outside the address space during the call (fork.h).
 */
#include "hooks/mmap/change.h"
#include "base/atomics.h"
#include "hooks/mmap/sysv_attachments.h"
#include "base/compiler.h"
#include "account/predict/heaps.h"
#include "admit/check.h"
#include "admit/headroom.h"
#include "shared/decision_lock.h"
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

/* Returns whether the pages become resident within the call. The call may then take minutes, and a fatal signal must be
 * able to end it: signals are not blocked. */
static bool populates(int flags)
{
    return (flags & (MAP_POPULATE | MAP_LOCKED)) != 0 || sg_mmap_locks_future();
}

/* Returns whether the mapping must be entered in the range map. A mapping that does not count must be entered too where
 * it may replace one that does. */
static bool may_be_entered(const struct sg_mapping_kind *mapping)
{
    return mapping->kind != SG_RANGE_NONE || sg_load_relaxed(&sg_tracker_maps.chunk_count) != 0;
}

/* Returns the bytes of the mapping that become resident within the call although the mapping promises nothing. */
static uint64_t unpromised_bytes(const struct sg_mapping_kind *mapping, int flags)
{
    bool is_sparse = mapping->kind == SG_RANGE_SPARSE && (mapping->flags & (SG_RANGE_COMMITTED | SG_RANGE_SHARED)) != 0;
    bool is_only_read = mapping->kind == SG_RANGE_RESERVED && (mapping->flags & SG_RANGE_SHARED) != 0;
    uint64_t most = (mapping->flags & SG_RANGE_COPIED) != 0 ? mapping->missing_bytes : mapping->bytes;
    return mapping->is_judged && populates(flags) && (is_sparse || is_only_read) ? most : 0;
}

/* Returns the page cache that the call locks: MemAvailable contains it until then. */
static uint64_t locked_cache_bytes(const struct sg_mapping_kind *mapping, int prot, int flags)
{
    bool is_locked = (flags & MAP_LOCKED) != 0 || sg_mmap_locks_future();
    return is_locked && prot != PROT_NONE ? mapping->file_bytes : 0;
}

/* The machine's memory; 0: unknown. Takes the first snapshot, with the decision lock, if there is none yet. */
static uint64_t machine_bytes(void)
{
    struct sg_lock_state lock;
    if (SG_UNLIKELY(sg_own->machine.total_bytes == 0)) {
        sg_segment_attach();
        sg_lock_acquire(&sg_decision_lock, &lock);
        sg_check_join();
        sg_headroom_refresh(0, false);
        sg_lock_release(&sg_decision_lock, &lock);
    }
    return sg_own->machine.total_bytes;
}

/* Returns the bytes of address space that a heap may fill without another call; those of MAP_NORESERVE mappings that
 * this one replaces (`replaced` is their address, or 0) were judged before. */
static uint64_t heap_bytes(const struct sg_mapping_kind *mapping, uintptr_t replaced)
{
    const uint64_t fits_all = UINT64_C(1) << 30; /* no machine is smaller */
    const uint32_t others = SG_RANGE_SHARED | SG_RANGE_COPIED;
    bool is_open = mapping->kind == SG_RANGE_SPARSE && (mapping->flags & SG_RANGE_COMMITTED) != 0;
    if (SG_LIKELY(!is_open) || (mapping->flags & others) != 0 || !mapping->is_judged)
        return 0;
    if (mapping->bytes > fits_all && sg_heaps_is_reservation(mapping->bytes, machine_bytes()))
        return 0;
    return mapping->bytes - (replaced != 0 ? sg_mmap_open_bytes(replaced, mapping->bytes) : 0);
}

static struct sg_request request_of(const struct sg_mapping_kind *mapping, uintptr_t address, int prot, int flags)
{
    uint64_t cache = locked_cache_bytes(mapping, prot, flags);
    if (cache != 0) /* not in LIMIT, as no page cache is */
        return (struct sg_request){.domain = SG_DOMAIN_MAPPED, .size_bytes = cache, .wording.call = "mmap"};
    uint64_t unpromised = unpromised_bytes(mapping, flags), replaced = (flags & MAP_FIXED) != 0 ? address : 0;
    struct sg_request request = {.domain = SG_DOMAIN_MAPPED,
                                 .wording.call = "mmap",
                                 .wording.file_bytes = mapping->memory_file_bytes,
                                 .wording.allocated_bytes = mapping->allocated_bytes,
                                 .holds_signals = !populates(flags)};
    sg_mmap_describe(&request, mapping, replaced);
    uint64_t heap = unpromised == 0 ? heap_bytes(mapping, replaced) : 0;
    if (SG_UNLIKELY(heap != 0)) {
        request.kind = SG_REQUEST_HEAP;
        request.size_bytes = request.growth_bytes = request.sparse_bytes = heap;
    }
    if ((mapping->flags & SG_RANGE_COMMITTED) != 0 && mapping->kind == SG_RANGE_COUNTED && mapping->is_judged)
        request.kind = SG_REQUEST_COMMIT;
    if (unpromised != 0) {
        request.size_bytes = unpromised < mapping->missing_bytes ? unpromised : mapping->missing_bytes;
        request.growth_bytes = request.sparse_bytes = unpromised;
    }
    return request;
}

static SG_INLINE void *map(void *address, size_t length, int prot, int flags, int fd, off_t offset, const void *caller)
{
    if (sg_real_is_looking()) /* mappings of the dynamic linker are not the program's */
        return sg_sys_mmap(address, length, prot, flags, fd, (uint64_t)offset);
    if (!sg_mmap_is_counting() || length == 0 || length > PTRDIFF_MAX)
        return real_mmap(address, length, prot, flags, fd, offset);
    int saved_errno = errno;
    struct sg_mapping_kind mapping = sg_mapping_kind_of(length, prot, flags, fd, (uint64_t)offset);
    bool is_private = mapping.kind == SG_RANGE_COUNTED && (mapping.flags & SG_RANGE_SHARED) == 0;
    if ((flags & MAP_FIXED) != 0 && is_private && sg_mmap_is_own_reservation((uintptr_t)address, mapping.bytes))
        mapping.flags |= SG_RANGE_COMMITTED;
    struct sg_request request = request_of(&mapping, (uintptr_t)address, prot, flags);
    sg_mmap_name_site(&mapping, caller);
    if (!sg_mmap_judge(&request))
        return MAP_FAILED;
    bool is_held = !populates(flags) && may_be_entered(&mapping);
    if (is_held) /* until the range map agrees with the kernel, as in munmap */
        sg_lock_hold_signals();
    void *mapped = real_mmap(address, length, prot, flags, fd, offset);
    if (mapped == MAP_FAILED)
        saved_errno = errno;
    if (mapped != MAP_FAILED && mapping.kind == SG_RANGE_SPARSE)
        sg_ledger_note_moved(mapping.bytes); /* writable, and not in the range map yet */
    if (mapped != MAP_FAILED && may_be_entered(&mapping)) {
        sg_mmap_set((uintptr_t)mapped, &mapping);
        if (mapping.is_partly_allocated)
            sg_mmap_settle_allocated((uintptr_t)mapped, &mapping, fd, (uint64_t)offset);
        if (mapping.kind == SG_RANGE_SPARSE && (prot & PROT_WRITE) != 0 && (mapping.flags & SG_RANGE_COPIED) == 0)
            sg_tracker_add_sparse_extent(mapping.bytes, (mapping.flags & SG_RANGE_SHARED) != 0);
        if (mapping.kind == SG_RANGE_COUNTED)
            sg_ledger_count_allocation(SG_DOMAIN_MAPPED);
    }
    if (mapped != MAP_FAILED && (mapping.flags & SG_RANGE_COPIED) != 0)
        sg_tracker_add_copied_extent(mapping.bytes); /* pages of a file are copied when they are written to */
    /* Huge pages and locked page cache are there by now, and no promise. */
    sg_mmap_settle(&request, mapped != MAP_FAILED && !mapping.is_huge && mapping.file_bytes == 0);
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

/* One function, as in the C library: who compares their addresses finds them equal. */
_Static_assert(sizeof(off_t) == sizeof(off64_t), "mmap and mmap64 take the same");
SG_EXPORT void *mmap64(void *address, size_t length, int prot, int flags, int fd, off64_t offset)
    __attribute__((alias("mmap")));

/* Copy of the ranges in [begin, end), from which they are restored if the real call fails. */
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

/* Restores the ranges after a real munmap that failed: nothing was unmapped. */
static void restore_ranges(uintptr_t begin, uintptr_t end, uintptr_t parked, const struct saved_ranges *saved)
{
    struct sg_mmap_change change;
    sg_mmap_change_begin(&change);
    int result = parked != 0 ? sg_mmap_unpark(parked, begin, end - begin) : 0;
    for (unsigned i = 0; parked == 0 && i < saved->count; i++)
        result |= sg_range_map_set_shared(&sg_tracker_maps, saved->range[i].begin, saved->range[i].end,
                                          saved->range[i].kind, saved->range[i].flags, saved->range[i].source);
    uint64_t promised = sg_mmap_scanned_bytes(begin, end);
    sg_mmap_change_end(&change, result);
    if (promised != 0) /* promise all bytes until the next scan: the last one may have missed them */
        sg_ledger_promise(promised, false);
}

static void forget_parked(uintptr_t parked, uint64_t bytes)
{
    struct sg_mmap_change change;
    sg_mmap_change_begin(&change);
    sg_sysv_attached_cut(parked, parked + bytes);
    sg_mmap_change_end(&change, sg_range_map_set(&sg_tracker_maps, parked, parked + bytes, SG_RANGE_NONE, 0));
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
    struct sg_mmap_change change;
    sg_mmap_change_begin(&change);
    sg_lock_hold_signals(); /* until the range map agrees with the kernel: a handler must not longjmp out before */
    save_ranges(begin, end, &saved);
    int result = 0;
    if (saved.count == SG_ARRAY_LENGTH(saved.range)) /* more ranges than can be saved, perhaps */
        result = sg_mmap_park(begin, end - begin, 0, 0, &parked);
    else if (saved.count != 0)
        result = sg_range_map_set(&sg_tracker_maps, begin, end, SG_RANGE_NONE, 0);
    sg_mmap_change_end(&change, result);
    int answer = SG_REAL(munmap)(address, length);
    if (answer == 0 && saved.count != 0 && saved.range[0].kind == SG_RANGE_COUNTED)
        sg_ledger_count_free(SG_DOMAIN_MAPPED);
    if (answer != 0)
        restore_ranges(begin, end, parked, &saved);
    else if (parked != 0)
        forget_parked(parked, end - begin);
    sg_lock_let_signals();
    return answer;
}

/* One call of mremap: its arguments, and where its ranges are parked meanwhile. */
struct remap {
    uintptr_t from;
    uint64_t old_bytes;
    uint64_t new_bytes;
    bool is_copy;     /* MREMAP_DONTUNMAP, Linux 5.7: the old range stays mapped, without pages */
    uintptr_t parked; /* `from` if nothing is parked */
};

/* Returns the flags of the part by which a mapping grows: this process promises it anew. */
static uint32_t flags_of_new(const struct sg_range *last)
{
    return last->flags & ~((uint32_t)SG_RANGE_SETTLED | (uint32_t)SG_RANGE_INHERITED);
}

/* Updates the old range after MREMAP_DONTUNMAP. Its private pages have moved, and it promises new ones. Shared pages
 * have not gone; only the new range tells how many of them are missing. */
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

/* Updates the range map after a successful mremap to `to`. */
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

/* Drops the ranges of [begin, end) that are no longer mapped, by asking the kernel. Does nothing under a seccomp
 * filter. */
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

/* Updates the range map after a failed mremap. With a fixed address, kernels before Linux 6.1 find out late that they
 * cannot move: by then they have unmapped what was at the fixed address, and the end of an old range that shrinks.
 * Linux 6.18 checks first. */
static int follow_failed_mremap(const struct remap *remap, uintptr_t fixed)
{
    int result = 0;
    if (remap->parked != remap->from)
        result = sg_mmap_unpark(remap->parked, remap->from, remap->old_bytes);
    if (fixed == 0)
        return result;
    if (remap->old_bytes > remap->new_bytes)
        result |= forget_gone(remap->from + remap->new_bytes, remap->from + remap->old_bytes);
    return result | forget_gone(fixed, fixed + remap->new_bytes);
}

/* Fills in the request of this mremap: the bytes that would count in addition, or become resident without a promise.
 * `is_counting`: sg_mmap_is_outermost() in the hook itself. */
static void describe_mremap(struct sg_request *request, const struct remap *remap, bool is_counting)
{
    struct sg_range range;
    struct sg_lock_state lock;
    bool stays_mapped = remap->is_copy || remap->old_bytes == 0;
    uint64_t kept = stays_mapped ? 0 : remap->old_bytes, more = remap->new_bytes > kept ? remap->new_bytes - kept : 0;
    uintptr_t last = remap->from + (remap->old_bytes != 0 ? remap->old_bytes - 1 : 0);
    *request = (struct sg_request){.domain = SG_DOMAIN_MAPPED, .wording.call = "mremap", .holds_signals = true};
    sg_lock_acquire(&sg_tracker_maps_lock, &lock);
    bool is_known = sg_range_map_next(&sg_tracker_maps, last, &range) && range.begin <= last && is_counting;
    bool counts = is_known && range.kind == SG_RANGE_COUNTED;
    request->is_shared = counts && (range.flags & SG_RANGE_SHARED) != 0;
    bool is_sparse = is_known && range.kind == SG_RANGE_SPARSE && (range.flags & SG_RANGE_COMMITTED) != 0 &&
                     (range.flags & SG_RANGE_COPIED) == 0;
    if (counts && more != 0 && range.source != 0 && range.begin <= remap->from + kept) {
        request->shared.begin = sg_range_source_at(&range, remap->from + kept);
        request->shared.end = request->shared.begin + more / SG_SHARED_UNIT;
        more = sg_range_map_unmapped_bytes(&sg_tracker_maps, request->shared.begin, request->shared.end);
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
    va_start(arguments, flags);
    /* The kernel reads the address with both flags; with MREMAP_DONTUNMAP alone it is a hint. */
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
    struct sg_mmap_change change;
    describe_mremap(&request, &remap, sg_mmap_is_outermost());
    if (!sg_mmap_judge(&request))
        return MAP_FAILED;
    int result = 0;
    bool is_parked = !is_copy && remap.old_bytes != 0;
    if (is_parked) {
        sg_mmap_change_begin(&change);
        sg_lock_hold_signals(); /* as in munmap */
        sg_ledger_note_moved(sg_mmap_scanned_bytes(remap.from, remap.from + remap.old_bytes));
        result = sg_mmap_park(remap.from, remap.old_bytes, remap.new_bytes, fixed, &remap.parked);
        sg_mmap_change_end(&change, result);
    }
    void *moved = SG_REAL(mremap)(address, old_length, new_length, flags, wanted);
    if (moved == MAP_FAILED)
        saved_errno = errno;
    uintptr_t to = moved != MAP_FAILED ? (uintptr_t)moved : fixed;
    bool is_followed = is_parked || moved != MAP_FAILED || to != 0;
    if (is_followed) {
        sg_mmap_change_begin(&change);
        if (!is_parked)
            sg_lock_hold_signals();
        /* A scan that has passed the new address and not yet reached the parked one would miss them. */
        sg_ledger_note_moved(sg_mmap_scanned_bytes(remap.parked, remap.parked + remap.old_bytes));
        result = moved != MAP_FAILED ? follow_mremap(&remap, to) : follow_failed_mremap(&remap, to);
        sg_mmap_change_end(&change, result);
    }
    sg_mmap_settle(&request, moved != MAP_FAILED);
    if (is_followed)
        sg_lock_let_signals();
    sg_watchdog_consider();
    errno = saved_errno;
    return moved;
}
