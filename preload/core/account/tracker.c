/*
 * tracker.c - see tracker.h.
 */
#include "account/tracker.h"

#include "base/atomics.h"
#include "account/commits.h"
#include "account/predict/heaps.h"
#include "base/compiler.h"
#include "account/ledger.h"
#include "base/procfs.h"
#include "account/residency.h"
#include "base/seccomp.h"
#include "shared/own_entry.h"
#include "shared/segment.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "account/thread_record.h"
#include "base/pages.h"

#include <string.h>

struct sg_block_table sg_tracker_blocks;
struct sg_block_table sg_tracker_cuda;
struct sg_block_table sg_tracker_arrays;
struct sg_block_table sg_tracker_registered;
struct sg_block_table sg_tracker_contexts;
struct sg_range_map sg_tracker_maps;
struct sg_tracker_changes sg_tracker_changes;

/* 16 GiB: without PAGEMAP_SCAN, residency of more MAP_NORESERVE address space is not counted, because that costs too
 * much (a sanitizer reserves terabytes). */
#define SPARSE_MAX (UINT64_C(16) << 30)
/* 4 TiB: a larger block exceeds any machine, and is granted in observe mode only. Its residency is not counted. */
#define COUNTED_MAX (UINT64_C(4) << 40)
#define OBSERVED_MIN (UINT64_C(1) << 20) /* the kernel is not asked about smaller promises */
#define SLICE_BYTES (UINT64_C(64) << 20) /* most address space scanned under one hold of the lock */
#define FORK_NS UINT64_C(1000000)        /* longest wait before and for a fork */

/* MAP_NORESERVE address space that may have pages: private, and shared. `own` of the private part was resident at the
 * last scan, and `anonymous` of the whole process. All atomic. */
static struct {
    uint64_t extent, shared_extent, own, anonymous;
} sparse SG_AT_FORK;
static uint64_t copied_extent;            /* (atomic) of private mappings of files that may be written to */
static uint64_t fork_until_ns SG_AT_FORK; /* (atomic) until then changes wait for a fork; 0: no fork */

static uint32_t is_heir SG_AT_FORK; /* (atomic) a forked child that has not marked yet what it has inherited */

static struct sg_range_map checked_units; /* units of shared memory that the present scan has checked */

struct scan {
    struct sg_seccomp_answer sandbox;
    uint64_t page;
    uint64_t missing, swapped; /* of private memory, by the kernel */
    uint64_t shared;           /* missing bytes of shared and managed memory */
    uint64_t managed;          /* the part of shared that is managed memory */
    uint64_t committed_extent; /* address space of commits (commits.h) */
    uint64_t sparse_resident;
    uint64_t sparse_own;                 /* the part of sparse_resident that is not inherited */
    uint64_t sparse_extent;              /* address space of MAP_NORESERVE mappings that may have pages */
    uint64_t shared_extent;              /* the part of sparse_extent that is shared memory */
    uint64_t heap_extent, heap_resident; /* the part of sparse_extent that is a record (heaps.h) */
    uint64_t file_extent;                /* private mappings of files that may be written to */
    uint64_t anonymous;                  /* anonymous memory of the process before they were counted */
    uint64_t sparse_untouched; /* private MAP_NORESERVE memory that is writable and has no pages: no promise */
};

/* The copies found last. They cannot have become many more or fewer while the anonymous memory has hardly changed. To
 * count them costs as much as all resident pages of the file do. */
static struct {
    uint64_t anonymous, file_extent; /* of the process, when they were counted; anonymous is atomic */
    uint64_t bytes, own_bytes;       /* own: without those inherited at fork; atomic */
} copies SG_AT_FORK;
#define COPIES_STEP (UINT64_C(16) << 20)

static uint64_t resident_of(struct sg_seccomp_answer *sandbox, const struct sg_range *range, uintptr_t begin,
                            uintptr_t end)
{
    if ((range->flags & SG_RANGE_COPIED) != 0)
        return sg_residency_copied_bytes(begin, end);
    if ((range->flags & SG_RANGE_SHARED) != 0)
        return sg_residency_cached_bytes(begin, end, sandbox);
    return sg_residency_bytes(begin, end, sandbox);
}

uint64_t sg_tracker_absent_bytes(const struct sg_range *range)
{
    uint64_t whole = range->end - range->begin;
    if (whole > COUNTED_MAX)
        return whole;
    struct sg_seccomp_answer sandbox = {0};
    uint64_t resident = resident_of(&sandbox, range, range->begin, range->end);
    return whole > resident ? whole - resident : 0;
}

static void scan_managed(void *context, uint64_t key, uint64_t value)
{
    struct scan *scan = context;
    uint64_t size = sg_block_size(value), page = scan->page;
    uintptr_t begin = sg_round_up(key, page), end = (key + size) & ~(page - 1);
    if (size < SG_PROMISE_BYTES || sg_block_domain(value) != SG_DOMAIN_MANAGED || (value & SG_BLOCK_SETTLED) != 0)
        return;
    uint64_t resident = size > COUNTED_MAX ? 0 : sg_residency_bytes(begin, end, &scan->sandbox);
    scan->managed += end - begin - resident;
    if (resident == end - begin)
        (void)sg_block_table_mark(&sg_tracker_cuda, key, value, SG_BLOCK_SETTLED);
}

/* The missing bytes of shared memory, without units that this scan has already checked at another address; *is_all
 * becomes false if there are such units. */
static uint64_t missing_of_shared(struct scan *scan, const struct sg_range *range, uintptr_t begin, uintptr_t end,
                                  bool *is_all)
{
    struct sg_range seen;
    uint64_t missing = 0, last = sg_range_source_at(range, end), next;
    for (uint64_t at = sg_range_source_at(range, begin); at < last; at = next) {
        bool has_seen = sg_range_map_within(&checked_units, at, last, &seen);
        next = !has_seen ? last : seen.begin > at ? seen.begin : seen.end;
        if (has_seen && seen.begin == at) {
            *is_all = false;
            continue;
        }
        uintptr_t from = range->begin + (at - range->source) * SG_SHARED_UNIT;
        uint64_t bytes = (next - at) * SG_SHARED_UNIT,
                 absent = bytes - resident_of(&scan->sandbox, range, from, from + bytes);
        sg_tmpfs_add_missing(at, next, absent);
        (void)sg_range_map_set(&checked_units, at, next, SG_RANGE_COUNTED,
                               0); /* out of memory: the units may be counted twice */
        missing += absent;
    }
    return missing;
}

/* Whether the range is a commit: made writable inside a reservation of this process (commits.h). */
static bool is_commit(const struct sg_range *range)
{
    return (range->flags & SG_RANGE_COMMITTED) != 0 && (range->flags & (SG_RANGE_SHARED | SG_RANGE_INHERITED)) == 0;
}

/* Scans the part [begin, end) of a COUNTED range. Under sg_tracker_maps_lock. */
static void scan_counted(struct scan *scan, const struct sg_range *range, uintptr_t begin, uintptr_t end)
{
    uint64_t bytes = end - begin, missing;
    bool is_all = true;
    if (is_commit(range))
        scan->committed_extent += bytes;
    if ((range->flags & SG_RANGE_SHARED) == 0 || (range->flags & SG_RANGE_SETTLED) != 0)
        return;
    if (range->end - range->begin > COUNTED_MAX)
        missing = bytes;
    else if (range->source != 0)
        missing = missing_of_shared(scan, range, begin, end, &is_all);
    else
        missing = bytes - resident_of(&scan->sandbox, range, begin, end);
    scan->shared += missing;
    if (missing != 0 || !is_all)
        return;
    sg_tracker_begin_change();
    (void)sg_range_map_flag(&sg_tracker_maps, begin, end, SG_RANGE_SETTLED);
    sg_tracker_end_change();
}

/* Scans the part [begin, end) of a MAP_NORESERVE range. Skips private memory that never was writable: it has no pages
 * of its own. */
static void scan_sparse(struct scan *scan, const struct sg_range *range, uintptr_t begin, uintptr_t end)
{
    if ((range->flags & SG_RANGE_COPIED) != 0) {
        scan->file_extent += end - begin;
        return;
    }
    if ((range->flags & (SG_RANGE_COMMITTED | SG_RANGE_SHARED)) == 0)
        return;
    scan->sparse_extent += end - begin;
    scan->shared_extent += (range->flags & SG_RANGE_SHARED) != 0 ? end - begin : 0;
    if (scan->sparse_extent > SPARSE_MAX && !sg_residency_is_cheap())
        return;
    uint64_t resident = resident_of(&scan->sandbox, range, begin, end);
    scan->sparse_resident += resident;
    if ((range->flags & SG_RANGE_INHERITED) == 0)
        scan->sparse_own += resident;
    if ((range->flags & SG_RANGE_SHARED) == 0)
        scan->sparse_untouched += end - begin - resident;
    uint64_t machine_bytes = sg_own->machine.total_bytes;
    if ((range->flags & (SG_RANGE_SHARED | SG_RANGE_INHERITED)) == 0 && range->end - range->begin <= machine_bytes) {
        scan->heap_extent += end - begin;
        scan->heap_resident += resident;
    }
}

/* How much of a range is scanned under one hold of the lock, so that mmap calls of the program do not wait long. Sparse
 * ranges of terabytes are scanned in larger slices: only their resident pages cost time. */
static uint64_t slice_of(const struct sg_range *range)
{
    uint64_t bytes = range->kind == SG_RANGE_SPARSE ? (range->end - range->begin) / 256 : 0;
    return bytes > SLICE_BYTES ? sg_round_up(bytes, SLICE_BYTES) : SLICE_BYTES;
}

static void scan_maps(struct scan *scan)
{
    struct sg_range range;
    sg_range_map_clear(&checked_units);
    for (uintptr_t at = 0;;) {
        struct sg_lock_state state;
        sg_lock_acquire(&sg_tracker_maps_lock, &state);
        bool has_more = sg_range_map_next(&sg_tracker_maps, at, &range);
        uintptr_t begin = has_more && range.begin > at ? range.begin : at;
        bool is_beyond = has_more && range.end - range.begin > COUNTED_MAX;
        bool is_cut =
            has_more && range.end - begin > slice_of(&range) && (!is_beyond || range.kind != SG_RANGE_COUNTED);
        uintptr_t end = is_cut ? begin + slice_of(&range) : range.end;
        if (has_more && range.kind == SG_RANGE_COUNTED) {
            scan_counted(scan, &range, begin, end);
        } else if (has_more && range.kind == SG_RANGE_SPARSE) {
            scan_sparse(scan, &range, begin, end);
        }
        sg_lock_release(&sg_tracker_maps_lock, &state);
        if (!has_more)
            break;
        at = end;
    }
    sg_store_relaxed(&sparse.anonymous, scan->anonymous);
    sg_store_relaxed(&sparse.own, scan->sparse_own);
    sg_store_relaxed(&sparse.extent, scan->sparse_extent - scan->shared_extent);
    sg_store_relaxed(&sparse.shared_extent, scan->shared_extent);
    sg_heaps_note(scan->heap_extent, scan->heap_resident);
    if (scan->sparse_extent > SPARSE_MAX && !sg_residency_is_cheap())
        scan->sparse_resident = SG_UNKNOWN;
}

/* Counts the copies of one slice that begins at `at`, or after it. Returns its end, or 0 if there is none. */
static uintptr_t count_copies(uintptr_t at, uint64_t *own)
{
    struct sg_lock_state state;
    struct sg_range range;
    sg_lock_acquire(&sg_tracker_maps_lock, &state);
    bool has_more = sg_range_map_within(&sg_tracker_maps, at, UINTPTR_MAX, &range);
    uintptr_t end = !has_more ? 0 : range.end - range.begin > SLICE_BYTES ? range.begin + SLICE_BYTES : range.end;
    uint64_t bytes = has_more && (range.flags & SG_RANGE_COPIED) != 0 ? sg_residency_copied_bytes(range.begin, end) : 0;
    sg_lock_release(&sg_tracker_maps_lock, &state);
    copies.bytes += bytes;
    *own += has_more && (range.flags & SG_RANGE_INHERITED) == 0 ? bytes : 0;
    return has_more && (range.flags & SG_RANGE_COPIED) == 0 ? range.end : end;
}

/* Adds the copies of files' pages to what is resident, and what is not copied to what is untouched. There may be more
 * copies than were found last. */
static void scan_copies(struct scan *scan)
{
    if (scan->file_extent == 0 && copies.file_extent == 0)
        return;
    uint64_t anonymous = sg_procfs_anonymous_bytes(0);
    uint64_t change = anonymous > copies.anonymous ? anonymous - copies.anonymous : copies.anonymous - anonymous;
    if (scan->file_extent != copies.file_extent || change >= COPIES_STEP) {
        uint64_t own = 0;
        copies.file_extent = scan->file_extent;
        copies.bytes = 0;
        for (uintptr_t at = 0; scan->file_extent != 0 && (at = count_copies(at, &own)) != 0;)
            ;
        sg_store_relaxed(&copies.own_bytes, own);
        sg_store_relaxed(&copies.anonymous, anonymous);
    }
    sg_store_relaxed(&copied_extent, scan->file_extent);
    scan->sparse_own += copies.own_bytes;
    scan->sparse_resident += scan->sparse_resident != SG_UNKNOWN ? copies.bytes : 0;
    uint64_t copied = copies.bytes + COPIES_STEP;
    scan->sparse_untouched += scan->file_extent > copied ? scan->file_extent - copied : 0;
}

uint64_t sg_tracker_sparse_most_bytes(void)
{
    const uint64_t lag = UINT64_C(16) << 20; /* the kernel's figure is late by some pages a thread or processor */
    uint64_t shared = sg_load_relaxed(&sparse.shared_extent), extent = sg_load_relaxed(&sparse.extent),
             file_extent = sg_load_relaxed(&copied_extent);
    if (SG_LIKELY((extent | file_extent) == 0))
        return shared;
    uint64_t before = sg_load_relaxed(&sparse.anonymous), before_copies = sg_load_relaxed(&copies.anonymous);
    uint64_t now = sg_procfs_anonymous_bytes(0);
    uint64_t most = sg_load_relaxed(&sparse.own) + lag + sg_above(now, before);
    uint64_t copied = sg_load_relaxed(&copies.own_bytes) + sg_above(now, before_copies);
    if (before == 0 || now == 0) /* no scan has seen such memory, or it cannot be read */
        most = extent;
    return shared + sg_smaller(most, extent) + sg_smaller(copied, file_extent);
}

void sg_tracker_add_copied_extent(uint64_t bytes)
{
    sg_fetch_add(&copied_extent, bytes);
}

void sg_tracker_add_sparse_extent(uint64_t bytes, bool is_shared)
{
    sg_fetch_add(is_shared ? &sparse.shared_extent : &sparse.extent, bytes);
}

/* Missing bytes of private memory, by the kernel. What was made unwritable is read last: it is raised before the kernel
 * takes the memory off the writable memory. */
static bool read_missing(uint64_t *missing, uint64_t *swapped)
{
    if (!sg_procfs_missing_bytes(0, missing, swapped))
        return false;
    *missing += sg_entry_sum(SG_SUM_UNWRITABLE);
    return true;
}

void sg_tracker_observe(void)
{
    uint64_t begin = sg_ledger_begin_observation(), missing, swapped;
    if (sg_ledger_promised_bytes() >= OBSERVED_MIN && read_missing(&missing, &swapped))
        sg_ledger_observe(begin, missing);
}

/* What a forked child has inherited, and what of it has no pages yet. A mapping that the kernel cleared at the fork is
 * new in the child. */
static void observe_inherited(uint64_t missing)
{
    uint64_t inherited = sg_load(&sg_own->slot.inherited_promise_bytes);
    sg_entry_set_inherited(inherited < missing ? inherited : missing);
}

/* What is promised of private memory. MAP_NORESERVE memory that was swapped out looks untouched. Of commits, which may
 * follow a record, only a part (commits.h). */
static uint64_t promise_of(const struct scan *scan)
{
    uint64_t untouched = scan->sparse_untouched > scan->swapped ? scan->sparse_untouched - scan->swapped : 0;
    uint64_t missing = scan->missing > untouched ? scan->missing - untouched : 0;
    uint64_t committed = missing < scan->committed_extent ? missing : scan->committed_extent;
    sg_commits_note(scan->committed_extent - committed, committed);
    return missing - committed + sg_commits_end_scan();
}

uint64_t sg_tracker_scan(void)
{
    struct scan scan = {.page = sg_page_bytes()};
    bool was_on_record = sg_commits_are_on_record();
    sg_ledger_begin_scan();
    sg_tmpfs_begin_scan();
    bool is_known = read_missing(&scan.missing, &scan.swapped);
    sg_block_table_visit(&sg_tracker_cuda, scan_managed, &scan);
    sg_entry_set_managed_missing(scan.managed);
    bool has_sparse = sg_load_relaxed(&sg_tracker_maps.open_bytes) != 0 || sg_load_relaxed(&sparse.extent) != 0;
    scan.anonymous = has_sparse ? sg_procfs_anonymous_bytes(0) : 0;
    scan_maps(&scan);
    scan_copies(&scan);
    sg_store_relaxed(&sg_own->sparse_resident_bytes, scan.sparse_resident);
    struct sg_ledger_scan found = {.missing_bytes = is_known ? promise_of(&scan) : SG_BYTES_MAX,
                                   .shared_bytes = scan.shared + scan.managed,
                                   .sparse_bytes = scan.sparse_own,
                                   .may_rise = was_on_record && is_known};
    sg_tmpfs_end_scan(&found);
    if (is_known)
        observe_inherited(scan.missing);
    return scan.sparse_own;
}

uint64_t sg_tracker_promisable_bytes(uintptr_t begin, uintptr_t end)
{
    struct sg_lock_state state;
    struct sg_range range;
    uint64_t bytes = end - begin;
    sg_lock_acquire(&sg_tracker_maps_lock, &state);
    for (uintptr_t at = begin; sg_range_map_within(&sg_tracker_maps, at, end, &range); at = range.end)
        if ((range.flags & SG_RANGE_SHARED) != 0 || range.kind != SG_RANGE_COUNTED)
            bytes -= range.end - range.begin;
    sg_lock_release(&sg_tracker_maps_lock, &state);
    return bytes;
}

/* A child cannot use CUDA blocks. */
static void inherit_block(void *context, uint64_t key, uint64_t value)
{
    struct sg_block_table *table = context;
    (void)sg_block_table_mark(table, key, value, table == &sg_tracker_blocks ? SG_BLOCK_INHERITED : SG_BLOCK_SETTLED);
}

/* Shared memory (source != 0) is not marked: its missing bytes are published per range of a file, not as inherited. */
void sg_tracker_inherit(void)
{
    struct sg_lock_state state;
    struct sg_range range;
    sg_block_table_visit(&sg_tracker_blocks, inherit_block, &sg_tracker_blocks);
    sg_block_table_visit(&sg_tracker_cuda, inherit_block, &sg_tracker_cuda);
    sg_lock_acquire(&sg_tracker_maps_lock, &state);
    for (uintptr_t at = 0; sg_range_map_next(&sg_tracker_maps, at, &range); at = range.end)
        if ((range.kind == SG_RANGE_COUNTED || range.kind == SG_RANGE_SPARSE) && range.source == 0 &&
            sg_range_map_flag(&sg_tracker_maps, range.begin, range.end, SG_RANGE_INHERITED) != 0)
            sg_ledger_count_fault();
    uint64_t bytes = sg_tracker_maps.inherited_bytes;
    sg_lock_release(&sg_tracker_maps_lock, &state);
    sg_ledger_inherit(bytes);
    sg_store_relaxed(&is_heir, 0u);
}

bool sg_tracker_has_inherited(void)
{
    return sg_load_relaxed(&is_heir) == 0;
}

static void sleep_briefly(void)
{
    const struct timespec step = {0, 20000};
    (void)sg_syscall(SYS_nanosleep, (long)&step, 0, 0, 0, 0, 0);
}

void sg_tracker_begin_fork(void)
{
    uint64_t until_ns = sg_clock_ns(CLOCK_MONOTONIC) + FORK_NS;
    sg_store(&fork_until_ns, until_ns);
    while (!sg_tracker_is_whole() && sg_clock_ns(CLOCK_MONOTONIC) < until_ns)
        sleep_briefly();
}

void sg_tracker_end_fork(void)
{
    sg_store(&fork_until_ns, UINT64_C(0));
}

void sg_tracker_wait_for_fork(void)
{
    while (SG_UNLIKELY(sg_load_relaxed(&fork_until_ns) != 0) && sg_self.is_forking == 0 &&
           sg_clock_ns(CLOCK_MONOTONIC) < sg_load(&fork_until_ns))
        sleep_briefly();
}

void sg_tracker_atfork_child(bool is_map_whole)
{
    sg_store(&fork_until_ns, UINT64_C(0));
    /* The thread that was making a change is not in the child. */
    if (!is_map_whole)
        sg_store(&sg_tracker_changes.ended, sg_load(&sg_tracker_changes.begun));
    sg_lock_reset(&sg_tracker_maps_lock);
    sg_store_relaxed(&is_heir, 1u);
    memset(&copies, 0, sizeof copies);
    sg_store_relaxed(&sparse.anonymous, UINT64_C(0));
    sg_heaps_atfork_child();
    sg_commits_atfork_child();
    sg_tmpfs_atfork_child(is_map_whole);
    if (is_map_whole)
        return;
    sg_tracker_maps =
        (struct sg_range_map){0}; /* leaks the map's memory in the child, which is better than a torn map */
    sg_ledger_count_fault();
}
