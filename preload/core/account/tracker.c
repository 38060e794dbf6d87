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
#include "account/transit.h"
#include "base/pages.h"

#include <string.h>
#include <sys/mman.h>

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
#define SLICE_BYTES (UINT64_C(64) << 20) /* most address space scanned under one hold of the lock */
#define FORK_NS UINT64_C(1000000)        /* longest wait before and for a fork */

/* MAP_NORESERVE address space that may have pages: private, and shared. `own` of the private part was resident at the
 * last scan, and `anonymous` of the whole process. All atomic. */
static struct {
    uint64_t extent, shared_extent, own, anonymous;
} sparse;
static uint64_t copied_extent;            /* (atomic) of private mappings of files that may be written to */
static uint64_t unpromised_bytes;         /* (atomic) never falls */
static uint32_t has_unforked;             /* (atomic) set by sg_tracker_note_unforked */
static uint64_t fork_until_ns SG_AT_FORK; /* (atomic) until then changes wait for a fork; 0: no fork */

static struct sg_range_map checked_units; /* units of shared memory that the present scan has checked */

static struct sg_transit in_passage; /* heap bytes in passage (struct sg_passage) */

struct scan {
    struct sg_block_table *table;
    uint64_t page;
    struct sg_seccomp_answer sandbox;
    uint64_t promised;
    uint64_t inherited;        /* missing bytes of inherited blocks and ranges */
    uint64_t managed_missing;  /* the part of promised that is managed memory */
    uint64_t tracked_heap;     /* size of the heap blocks checked */
    uint64_t resident_private; /* resident bytes of the anonymous memory checked */
    uint64_t sparse_resident;
    uint64_t sparse_own;                 /* the part of sparse_resident that is not inherited */
    uint64_t sparse_extent;              /* address space of MAP_NORESERVE mappings that may have pages */
    uint64_t shared_extent;              /* the part of sparse_extent that is shared memory */
    uint64_t heap_extent, heap_resident; /* the part of sparse_extent that is a record (heaps.h) */
    uint64_t file_extent;                /* private mappings of files that may be written to */
    uint64_t open_resident;              /* resident bytes of the MAP_NORESERVE ranges of sg_tracker_maps.open_bytes */
    uint64_t open_anonymous;             /* anonymous memory of the process before they were counted */
    bool has_sparse;
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

static uint64_t whole_pages(uintptr_t begin, uintptr_t end, uint64_t page)
{
    begin = (begin + page - 1) & ~(page - 1);
    end &= ~(page - 1);
    return end > begin ? end - begin : 0;
}

/* The bits of SG_BLOCK_SEEN_MASK: bit i says that more than seen_64ths[i] / 64 of the block was resident at some scan.
 * The steps are finer for small shares: blocks that are hardly touched are often freed before they are used. */
static const uint32_t seen_64ths[] = {0, 1, 4, 16, 32};

static uint64_t seen_bits(uint64_t resident, uint64_t whole)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < SG_ARRAY_LENGTH(seen_64ths); i++)
        if (resident > whole / 64 * seen_64ths[i])
            bits |= UINT64_C(1) << i;
    return bits;
}

/* The fewest bytes of a block that are still promised, by all scans so far. More may be missing now: resident pages may
 * have been swapped out, or given back in part. */
static uint64_t promised_least(uint64_t seen, uint64_t whole)
{
    uint32_t i = 0;
    while (i < SG_ARRAY_LENGTH(seen_64ths) && (seen >> i & 1) != 0)
        i++;
    return i == 0 ? whole : i < SG_ARRAY_LENGTH(seen_64ths) ? whole / 64 * (64 - seen_64ths[i]) : 0;
}

/* Marks a heap block as scanned. The value may have changed, or the block may be gone, since the scan read it. An
 * entry that a thread is moving cannot be marked, and that thread may be stopped: then no array becomes credit
 * before the next scan. */
static void mark_scanned(uint64_t key, uint64_t value)
{
    enum { TRIES = 16 };
    for (int i = 0; i < TRIES && value != 0 && (value & SG_BLOCK_SCANNED) == 0; i++) {
        if (sg_block_table_mark(&sg_tracker_blocks, key, value, SG_BLOCK_SCANNED))
            return;
        value = sg_block_table_find(&sg_tracker_blocks, key);
    }
    if (value != 0 && (value & SG_BLOCK_SCANNED) == 0)
        sg_ledger_bar_arrays();
}

static void scan_block(void *context, uint64_t key, uint64_t value)
{
    struct scan *scan = context;
    uint64_t size = sg_block_size(value);
    enum sg_domain domain = sg_block_domain(value);
    if (domain == SG_DOMAIN_HEAP && (value & SG_BLOCK_SCANNED) == 0) {
        mark_scanned(key, value);
        value |= SG_BLOCK_SCANNED;
    }
    if (size < SG_PROMISE_BYTES || (domain != SG_DOMAIN_HEAP && domain != SG_DOMAIN_MANAGED))
        return;
    uint64_t whole = whole_pages(key, key + size, scan->page);
    uint64_t resident = whole;
    if ((value & SG_BLOCK_SETTLED) == 0) {
        resident = size > COUNTED_MAX ? 0 : sg_residency_bytes(key, key + size, &scan->sandbox);
        *(domain == SG_DOMAIN_HEAP && (value & SG_BLOCK_INHERITED) != 0 ? &scan->inherited : &scan->promised) +=
            whole - resident;
        scan->managed_missing += domain == SG_DOMAIN_MANAGED ? whole - resident : 0;
        uint64_t marks = domain == SG_DOMAIN_HEAP ? seen_bits(resident, whole) << SG_BLOCK_SEEN_SHIFT : 0;
        marks |= resident == whole ? SG_BLOCK_SETTLED : 0;
        if ((value | marks) != value)
            (void)sg_block_table_mark(scan->table, key, value, marks);
    }
    if (domain == SG_DOMAIN_HEAP) {
        scan->tracked_heap += size;
        scan->resident_private += resident;
    }
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
    uint64_t bytes = end - begin, missing = 0;
    bool is_settled = (range->flags & SG_RANGE_SETTLED) != 0, is_all = true;
    if (!is_settled && range->end - range->begin > COUNTED_MAX)
        missing = bytes;
    else if (!is_settled && range->source != 0)
        missing = missing_of_shared(scan, range, begin, end, &is_all);
    else if (!is_settled)
        missing = bytes - resident_of(&scan->sandbox, range, begin, end);
    if ((range->flags & SG_RANGE_SHARED) == 0)
        scan->resident_private += bytes - missing;
    if (is_commit(range))
        sg_commits_note(bytes - missing, missing);
    if (is_settled)
        return;
    if (!is_commit(range))
        *((range->flags & SG_RANGE_INHERITED) != 0 ? &scan->inherited : &scan->promised) += missing;
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
    scan->has_sparse = true;
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
        scan->resident_private += resident;
    if ((range->flags & (SG_RANGE_SHARED | SG_RANGE_SHUT)) == 0)
        scan->open_resident += resident;
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
    sg_store_relaxed(&sparse.anonymous, scan->open_anonymous);
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

/* Adds the copies of files' pages to what is resident. */
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
    scan->resident_private += copies.bytes;
    scan->sparse_own += copies.own_bytes;
    scan->sparse_resident += scan->sparse_resident != SG_UNKNOWN ? copies.bytes : 0;
}

/* The copies may have been counted by an earlier scan: then what has grown since may be copies. */
static void publish_open(const struct scan *scan)
{
    uint64_t anonymous = scan->open_anonymous, before = sg_load_relaxed(&copies.anonymous);
    uint64_t open = sg_load_relaxed(&sg_tracker_maps.open_bytes), shown = sg_load(&sg_entry_own()->open_bytes);
    if (SG_LIKELY(open == 0 && shown == 0))
        return;
    if (scan->file_extent != 0 && before < anonymous)
        anonymous = before;
    sg_entry_set_open_resident(scan->open_resident + (scan->file_extent != 0 ? copies.bytes : 0), anonymous);
    sg_entry_set_open(open);
}

/* The most copies there can be: what was found last, and as much as anonymous memory has grown since. */
static uint64_t most_copies(void)
{
    uint64_t extent = sg_load_relaxed(&copied_extent);
    if (SG_LIKELY(extent == 0))
        return 0;
    uint64_t before = sg_load_relaxed(&copies.anonymous), anonymous = sg_procfs_anonymous_bytes(0);
    uint64_t most = sg_load_relaxed(&copies.own_bytes) + (anonymous > before ? anonymous - before : 0);
    return most < extent ? most : extent;
}

/* The most resident bytes that private MAP_NORESERVE memory can have: what was found last, and as much as anonymous
 * memory has grown since. The kernel's figure is late by some pages for each thread or processor. */
static uint64_t most_sparse(void)
{
    const uint64_t lag = UINT64_C(16) << 20;
    uint64_t extent = sg_load_relaxed(&sparse.extent);
    if (SG_LIKELY(extent == 0))
        return 0;
    uint64_t before = sg_load_relaxed(&sparse.anonymous), anonymous = sg_procfs_anonymous_bytes(0);
    if (before == 0 || anonymous == 0) /* no scan has seen such memory, or it cannot be read */
        return extent;
    uint64_t most = sg_load_relaxed(&sparse.own) + lag + (anonymous > before ? anonymous - before : 0);
    return most < extent ? most : extent;
}

uint64_t sg_tracker_sparse_most_bytes(void)
{
    return sg_load_relaxed(&sparse.shared_extent) + most_sparse() + most_copies();
}

void sg_tracker_add_copied_extent(uint64_t bytes)
{
    sg_fetch_add(&copied_extent, bytes);
    sg_tracker_add_unpromised(bytes);
}

void sg_tracker_add_sparse_extent(uint64_t bytes, bool is_shared)
{
    sg_fetch_add(is_shared ? &sparse.shared_extent : &sparse.extent, bytes);
}

void sg_tracker_add_unpromised(uint64_t bytes)
{
    sg_fetch_add(&unpromised_bytes, bytes);
    sg_entry_note_unpromised(bytes);
}

/* The sum of one word of all threads' records. */
static uint64_t sum_of_records(size_t offset)
{
    uint64_t sum = 0;
    uint32_t used = sg_load(&sg_own->record_used);
    for (uint32_t i = 0; i < used && i < SG_RECORD_LIMIT; i++)
        sum += sg_load((const uint64_t *)(const void *)((const char *)&sg_own->record[i] + offset));
    return sum;
}

/* Other processes subtract the growth of this process's anonymous memory since its scan from its promises
 * (sg_peers_sum). Where memory may grow without a promise, growth tells nothing. */
static uint64_t expected_of(const struct scan *scan, uint64_t anonymous)
{
    bool is_all_promised =
        !scan->has_sparse && (sg_load(&sg_own->slot.flags) & SG_SLOT_CUDA) == 0 && !sg_commits_are_on_record();
    return is_all_promised && anonymous != 0 ? anonymous + sg_ledger_credit_bytes() + sg_load(&unpromised_bytes) : 0;
}

struct sg_tracker_scan sg_tracker_scan(void)
{
    struct scan scan = {.table = &sg_tracker_blocks, .page = sg_page_bytes()};
    uint64_t scan_start = sg_transit_begin_scan(&in_passage);
    uint64_t freed = sum_of_records(offsetof(struct sg_record, freed_bytes));
    scan.promised = sum_of_records(offsetof(struct sg_record, paying_bytes)); /* after the credit was taken back */
    sg_block_table_visit(&sg_tracker_blocks, scan_block, &scan);
    scan.table = &sg_tracker_cuda;
    sg_block_table_visit(&sg_tracker_cuda, scan_block, &scan);
    sg_entry_set_managed_missing(scan.managed_missing);
    bool has_sparse = sg_load_relaxed(&sg_tracker_maps.open_bytes) != 0 || sg_load_relaxed(&sparse.extent) != 0;
    scan.open_anonymous = has_sparse ? sg_procfs_anonymous_bytes(0) : 0;
    scan_maps(&scan);
    scan_copies(&scan);
    publish_open(&scan);
    scan.promised += sg_commits_end_scan();
    sg_store_relaxed(&sg_own->sparse_resident_bytes, scan.sparse_resident);
    /* Small heap blocks are not checked one by one. Their promise is their size less the anonymous resident memory that
     * belongs to no checked block. Blocks in passage are added: such a block may have been checked and be off the
     * ledger by now, or be found at both of its addresses, or have resident pages although it was not checked. */
    uint64_t heap = sg_ledger_live_heap_bytes();
    heap += sg_transit_since(&in_passage, scan_start); /* read after the ledger */
    heap += sum_of_records(offsetof(struct sg_record, freeing_bytes)) - freed;
    uint64_t small = heap > scan.tracked_heap ? heap - scan.tracked_heap : 0;
    uint64_t anonymous = sg_procfs_anonymous_bytes(0);
    uint64_t resident = anonymous > scan.resident_private ? anonymous - scan.resident_private : 0;
    return (struct sg_tracker_scan){.promised_bytes = scan.promised + (small > resident ? small - resident : 0),
                                    .inherited_bytes = scan.inherited,
                                    .sparse_bytes = scan.sparse_own,
                                    .expected_anonymous_bytes = expected_of(&scan, anonymous),
                                    .has_sparse = scan.has_sparse};
}

#define WITHDRAW_BYTES (UINT64_C(32) << 20) /* smaller blocks hardly matter before the next scan */

/* Withdraws the missing bytes of [begin, end), at most `max_bytes`. Bytes that became resident are not promised any
 * more, even if they are swapped out now. mincore comes first, because it is cheaper: if it finds all pages resident,
 * there is nothing to withdraw. */
static void withdraw(uintptr_t begin, uintptr_t end, uint64_t max_bytes)
{
    uint64_t page = sg_page_bytes(), taken = 0;
    begin = sg_round_up(begin, page);
    end &= ~(page - 1);
    if (end <= begin)
        return;
    bool is_countable = end - begin <= COUNTED_MAX;
    struct sg_seccomp_answer sandbox = {0};
    if (is_countable && !sg_seccomp_ask_once(&sandbox) &&
        sg_residency_cached_bytes(begin, end, &sandbox) == end - begin)
        return;
    if (is_countable && !sg_residency_taken_bytes(begin, end, &taken))
        return;
    uint64_t missing = end - begin - taken;
    (void)sg_ledger_withdraw(missing < max_bytes ? missing : max_bytes);
}

void sg_tracker_withdraw_block(uintptr_t begin, uint64_t bytes)
{
    if (bytes < WITHDRAW_BYTES)
        return;
    uint64_t entry = sg_block_table_find(&sg_tracker_blocks, begin),
             seen = sg_tracker_seen_of(entry) >> SG_BLOCK_SEEN_SHIFT;
    uint64_t least = promised_least(seen, whole_pages(begin, begin + bytes, sg_page_bytes()));
    if (entry != 0 && least != 0)
        withdraw(begin, begin + bytes, least);
}

void sg_tracker_withdraw_range(const struct sg_range *range)
{
    /* Shared ranges are skipped: no interface tells which of their pages were swapped out. */
    uint32_t others = SG_RANGE_SETTLED | SG_RANGE_INHERITED | SG_RANGE_SHARED;
    if (is_commit(range) && sg_commits_are_on_record()) /* the bytes may not be promised */
        return;
    if (range->kind == SG_RANGE_COUNTED && range->end - range->begin >= WITHDRAW_BYTES && (range->flags & others) == 0)
        withdraw(range->begin, range->end, UINT64_MAX);
}

struct sg_passage sg_tracker_begin_large_passage(uintptr_t begin, uint64_t bytes, bool stays)
{
    uint64_t entry = stays ? sg_block_table_find(&sg_tracker_blocks, begin) : 0;
    struct sg_passage passage = {.bytes = bytes};
    passage.promised_bytes = entry != 0 && (entry & SG_BLOCK_SETTLED) == 0 ? bytes : 0;
    sg_ledger_begin_move(passage.promised_bytes);
    sg_transit_begin(&in_passage, bytes);
    return passage;
}

void sg_tracker_end_large_passage(struct sg_passage passage)
{
    sg_transit_end(&in_passage, passage.bytes);
    sg_ledger_end_move(passage.promised_bytes);
}

uint64_t sg_tracker_seen_of(uint64_t entry)
{
    bool is_nothing_promised = (entry & (SG_BLOCK_SETTLED | SG_BLOCK_INHERITED)) != 0;
    return is_nothing_promised ? SG_BLOCK_SEEN_MASK : entry & SG_BLOCK_SEEN_MASK;
}

static void give_back_block(void *context, uint64_t key, uint64_t value)
{
    const struct sg_range *range = context;
    uint64_t size = sg_block_size(value);
    if (size >= SG_PROMISE_BYTES && key < range->end && key + size > range->begin &&
        range->begin <= key + sg_page_bytes() && key + size <= range->end + sg_page_bytes())
        while (value != 0 && (value & SG_BLOCK_SETTLED) == 0 &&
               !sg_block_table_mark(&sg_tracker_blocks, key, value, SG_BLOCK_SETTLED))
            value = sg_block_table_find(&sg_tracker_blocks, key); /* a scan has changed the value meanwhile */
}

void sg_tracker_give_back(uintptr_t begin, uintptr_t end)
{
    struct sg_lock_state state;
    sg_tracker_add_unpromised(end - begin);
    sg_tracker_wait_for_fork();
    sg_lock_acquire(&sg_tracker_maps_lock, &state);
    bool is_mapped = sg_range_map_bytes(&sg_tracker_maps, begin, end, SG_RANGE_COUNTED) != 0;
    if (is_mapped) {
        sg_tracker_begin_change();
        if (sg_range_map_flag(&sg_tracker_maps, begin, end, SG_RANGE_SETTLED) != 0)
            sg_ledger_count_fault();
        sg_tracker_end_change();
    }
    sg_lock_release(&sg_tracker_maps_lock, &state);
    if (is_mapped || end - begin < SG_PROMISE_BYTES / 2)
        return;
    struct sg_range range = {.begin = begin, .end = end};
    sg_block_table_visit(&sg_tracker_blocks, give_back_block, &range);
}

void sg_tracker_note_unforked(void)
{
    sg_store_relaxed(&has_unforked, 1u);
}

/* In a forked child: whether some of a block's pages are not mapped here (MADV_DONTFORK): msync fails then. Such a
 * block is seldom used in the child. */
static bool is_unforked(uint64_t key, uint64_t value)
{
    uint64_t page = sg_page_bytes(), begin = sg_round_up(key, page), end = (key + sg_block_size(value)) & ~(page - 1);
    return sg_load_relaxed(&has_unforked) != 0 && (value & SG_BLOCK_SETTLED) == 0 && end > begin &&
           sg_sys_msync(begin, end - begin, MS_ASYNC) == -ENOMEM;
}

static void inherit_block(void *context, uint64_t key, uint64_t value)
{
    struct sg_block_table *table = context;
    uint64_t mark =
        table == &sg_tracker_blocks ? SG_BLOCK_INHERITED : SG_BLOCK_SETTLED; /* a child cannot use CUDA blocks */
    if (sg_block_size(value) >= SG_PROMISE_BYTES && is_unforked(key, value))
        mark |= SG_BLOCK_SETTLED;
    mark |= table == &sg_tracker_blocks ? SG_BLOCK_SCANNED : 0;
    if (sg_block_size(value) < SG_PROMISE_BYTES)
        mark &= SG_BLOCK_SCANNED;
    (void)sg_block_table_mark(table, key, value, mark);
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
    sg_lock_release(&sg_tracker_maps_lock, &state);
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
    sg_transit_atfork_child(&in_passage);
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
