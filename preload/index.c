/*
 * index.c - see index.h.
 */
#include "index.h"

#include "atomics.h"
#include "compiler.h"
#include "files.h"
#include "ledger.h"
#include "map_shape.h"
#include "process.h"
#include "resident.h"
#include "sandbox.h"
#include "seats.h"
#include "segment.h"
#include "syscall.h"
#include "transit.h"

#include <sys/mman.h>

struct sg_table sg_index_blocks;
struct sg_table sg_index_cuda;
struct sg_table sg_index_arrays;
struct sg_table sg_index_registered;
struct sg_table sg_index_contexts;
struct sg_ranges sg_index_maps;
struct sg_lock sg_index_maps_lock;

/* Beyond this much address space, counting what is resident of MAP_NORESERVE mappings would cost too much (a sanitizer
 * reserves terabytes). */
#define SPARSE_MOST (UINT64_C(16) << 30)
/* More than any machine has, granted where the guard only observes: nobody looks how much of it is there. */
#define COUNTED_MOST (UINT64_C(4) << 40)
#define SLICE_BYTES (UINT64_C(64) << 20)

static uint64_t anonymous_bytes;  /* of this process, at the last look */
static bool has_sparse;           /* at the last look */
static uint64_t heritage_bytes;   /* at the last look */
static uint64_t unpromised_bytes; /* (atomic) never less */
static uint32_t has_unforked;     /* (atomic) sg_index_note_unforked */

static struct sg_transit passing; /* what is in no index, and was or will be */

struct scan {
    struct sg_table *table;
    uint64_t page;
    bool is_sandboxed;
    uint64_t promised;
    uint64_t inherited;        /* missing of what the parent was promised */
    uint64_t tracked_heap;     /* size of the heap blocks looked at */
    uint64_t resident_private; /* resident bytes of anonymous memory that was looked at */
    uint64_t sparse_resident;
};

static uint64_t there_of(const struct scan *scan, const struct sg_range *range, uintptr_t begin, uintptr_t end)
{
    if ((range->flags & SG_RANGE_COPIED) != 0)
        return sg_resident_copied_bytes(begin, end);
    if ((range->flags & SG_RANGE_SHARED) != 0)
        return sg_resident_cached_bytes(begin, end, scan->is_sandboxed);
    return sg_resident_bytes(begin, end, scan->is_sandboxed);
}

static uint64_t whole_pages(uintptr_t begin, uintptr_t end, uint64_t page)
{
    begin = (begin + page - 1) & ~(page - 1);
    end &= ~(page - 1);
    return end > begin ? end - begin : 0;
}

/* More than these shares of a block have been there: the bits of SG_BLOCK_SEEN. Coarse above, for what was hardly touched is
 * given up before it is used. */
static const uint32_t seen_64ths[] = {0, 1, 4, 16, 32};

static uint64_t seen_bits(uint64_t resident, uint64_t whole)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < SG_ARRAY_LENGTH(seen_64ths); i++)
        if (resident > whole / 64 * seen_64ths[i])
            bits |= UINT64_C(1) << i;
    return bits;
}

/* What is promised of a block at least, as of any look at it. Pages may go again (to swap, or given back in part): what is
 * missing now may be more. */
static uint64_t promised_least(uint64_t seen, uint64_t whole)
{
    uint32_t i = 0;
    while (i < SG_ARRAY_LENGTH(seen_64ths) && (seen >> i & 1) != 0)
        i++;
    return i == 0 ? whole : i < SG_ARRAY_LENGTH(seen_64ths) ? whole / 64 * (64 - seen_64ths[i]) : 0;
}

static void scan_block(void *context, uint64_t key, uint64_t value)
{
    struct scan *scan = context;
    uint64_t size = sg_block_size(value);
    enum sg_domain domain = sg_block_domain(value);
    if (size < SG_PROMISE_BYTES || (domain != SG_DOMAIN_HEAP && domain != SG_DOMAIN_MANAGED))
        return;
    uint64_t whole = whole_pages(key, key + size, scan->page);
    uint64_t resident = whole;
    if ((value & SG_BLOCK_SETTLED) == 0) {
        resident = size > COUNTED_MOST ? 0 : sg_resident_bytes(key, key + size, scan->is_sandboxed);
        *(domain == SG_DOMAIN_HEAP && (value & SG_BLOCK_INHERITED) != 0 ? &scan->inherited : &scan->promised) +=
            whole - resident;
        uint64_t marks = domain == SG_DOMAIN_HEAP ? seen_bits(resident, whole) << SG_BLOCK_SEEN_SHIFT : 0;
        marks |= resident == whole ? SG_BLOCK_SETTLED : 0;
        if ((value | marks) != value)
            (void)sg_table_mark(scan->table, key, value, marks);
    }
    if (domain == SG_DOMAIN_HEAP) {
        scan->tracked_heap += size;
        scan->resident_private += resident;
    }
}

/* One slice at a time under the lock, so that a program that maps is not held up. */
static void scan_maps(struct scan *scan)
{
    struct sg_range range;
    uint64_t sparse = 0;
    for (uintptr_t at = 0;;) {
        struct sg_lock_state state;
        sg_lock_acquire(&sg_index_maps_lock, &state);
        bool has_more = sg_ranges_next(&sg_index_maps, at, &range);
        uintptr_t begin = has_more && range.begin > at ? range.begin : at;
        bool is_beyond = has_more && range.end - range.begin > COUNTED_MOST;
        uintptr_t end = has_more && range.end - begin > SLICE_BYTES && !is_beyond ? begin + SLICE_BYTES : range.end;
        if (has_more && range.kind == SG_RANGE_COUNTED) {
            bool is_settled = (range.flags & SG_RANGE_SETTLED) != 0;
            uint64_t resident = is_settled || is_beyond ? 0 : there_of(scan, &range, begin, end);
            uint32_t window = sg_files_number(range.flags);
            if (!is_settled && window != 0)
                sg_files_add_missing(window, end - begin - resident);
            else if (!is_settled)
                *((range.flags & SG_RANGE_INHERITED) != 0 ? &scan->inherited : &scan->promised) +=
                    end - begin - resident;
            if (!is_settled && resident == end - begin)
                (void)sg_ranges_flag(&sg_index_maps, begin, end, SG_RANGE_SETTLED);
            if ((range.flags & SG_RANGE_SHARED) == 0)
                scan->resident_private += is_settled ? end - begin : resident;
        } else if (has_more && range.kind == SG_RANGE_SPARSE) {
            sparse += end - begin;
            if (sparse <= SPARSE_MOST) {
                uint64_t resident = there_of(scan, &range, begin, end);
                scan->sparse_resident += resident;
                if ((range.flags & SG_RANGE_SHARED) == 0)
                    scan->resident_private += resident;
            }
        }
        sg_lock_release(&sg_index_maps_lock, &state);
        if (!has_more)
            break;
        at = end;
    }
    has_sparse = sparse != 0;
    if (sparse > SPARSE_MOST)
        scan->sparse_resident = SG_UNKNOWN;
}

bool sg_index_has_sparse(void)
{
    return has_sparse;
}

uint64_t sg_index_unpromised_bytes(void)
{
    return sg_load(&unpromised_bytes);
}

void sg_index_add_unpromised(uint64_t bytes)
{
    sg_fetch_add(&unpromised_bytes, bytes);
    sg_seats_note_unpromised(bytes);
}

uint64_t sg_index_heritage_bytes(void)
{
    return heritage_bytes;
}

uint64_t sg_index_anonymous_bytes(void)
{
    return anonymous_bytes;
}

uint64_t sg_index_promised_bytes(void)
{
    struct scan scan = {.table = &sg_index_blocks, .page = sg_page_bytes()};
    scan.is_sandboxed = sg_sandbox_is_on();
    uint64_t look = sg_transit_begin_look(&passing);
    sg_table_visit(&sg_index_blocks, scan_block, &scan);
    scan.table = &sg_index_cuda;
    sg_table_visit(&sg_index_cuda, scan_block, &scan);
    sg_files_begin_scan();
    scan_maps(&scan);
    scan.promised += sg_files_promised_bytes();
    heritage_bytes = scan.inherited;
    sg_store_relaxed(&sg_own->sparse_resident_bytes, scan.sparse_resident);
    /* Small heap blocks: what exceeds the anonymous memory that is there and is nobody else's. A block that passes may have been looked
     * at and be off the ledger by now, or found in both of its places, or be there without having been looked at. */
    uint64_t heap = sg_ledger_live_heap_bytes();
    heap += sg_transit_since(&passing, look); /* behind the ledger */
    uint64_t small = heap > scan.tracked_heap ? heap - scan.tracked_heap : 0;
    anonymous_bytes = sg_process_anonymous_bytes(0);
    uint64_t there = anonymous_bytes;
    there = there > scan.resident_private ? there - scan.resident_private : 0;
    return scan.promised + (small > there ? small - there : 0);
}

#define WITHDRAW_BYTES (UINT64_C(32) << 20)

/* What has come is no part of what is promised, and may be swapped out since. The dear question only where the cheap one does not tell
 * that all is there. */
static void withdraw(uintptr_t begin, uintptr_t end, uint64_t most)
{
    uint64_t page = sg_page_bytes(), taken = 0;
    begin = sg_round_up(begin, page);
    end &= ~(page - 1);
    if (end <= begin)
        return;
    bool is_looked_at = end - begin <= COUNTED_MOST;
    if (is_looked_at && !sg_sandbox_is_on() && sg_resident_cached_bytes(begin, end, false) == end - begin)
        return;
    if (is_looked_at && !sg_resident_taken_bytes(begin, end, &taken))
        return;
    uint64_t missing = end - begin - taken;
    (void)sg_ledger_withdraw(missing < most ? missing : most);
}

void sg_index_withdraw_block(uintptr_t begin, uint64_t bytes)
{
    if (bytes < WITHDRAW_BYTES)
        return;
    uint64_t entry = sg_table_find(&sg_index_blocks, begin), seen = sg_index_seen_of(entry) >> SG_BLOCK_SEEN_SHIFT;
    uint64_t least = promised_least(seen, whole_pages(begin, begin + bytes, sg_page_bytes()));
    if (entry != 0 && least != 0)
        withdraw(begin, begin + bytes, least);
}

void sg_index_withdraw_range(const struct sg_range *range)
{
    /* Of what is shared nothing tells what was swapped out. */
    uint32_t others = SG_RANGE_SETTLED | SG_RANGE_INHERITED | SG_RANGE_SHARED;
    if (range->kind == SG_RANGE_COUNTED && range->end - range->begin >= WITHDRAW_BYTES && (range->flags & others) == 0)
        withdraw(range->begin, range->end, UINT64_MAX);
}

struct sg_passage sg_index_begin_large_passage(uintptr_t begin, uint64_t bytes, bool stays)
{
    uint64_t entry = stays ? sg_table_find(&sg_index_blocks, begin) : 0;
    struct sg_passage passage = {.bytes = bytes};
    passage.promised_bytes = entry != 0 && (entry & SG_BLOCK_SETTLED) == 0 ? bytes : 0;
    sg_ledger_begin_move(passage.promised_bytes);
    sg_transit_begin(&passing, bytes);
    return passage;
}

void sg_index_end_large_passage(struct sg_passage passage)
{
    sg_transit_end(&passing, passage.bytes);
    sg_ledger_end_move(passage.promised_bytes);
}

uint64_t sg_index_seen_of(uint64_t entry)
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
               !sg_table_mark(&sg_index_blocks, key, value, SG_BLOCK_SETTLED))
            value = sg_table_find(&sg_index_blocks, key); /* a look has marked it, too */
}

void sg_index_give_back(uintptr_t begin, uintptr_t end)
{
    struct sg_lock_state state;
    sg_index_add_unpromised(end - begin);
    sg_lock_acquire(&sg_index_maps_lock, &state);
    bool is_mapped = sg_ranges_bytes(&sg_index_maps, begin, end, SG_RANGE_COUNTED) != 0;
    if (is_mapped && sg_ranges_flag(&sg_index_maps, begin, end, SG_RANGE_SETTLED) != 0)
        sg_ledger_count_fault();
    sg_lock_release(&sg_index_maps_lock, &state);
    if (is_mapped || end - begin < SG_PROMISE_BYTES / 2)
        return;
    struct sg_range range = {begin, end, 0, 0};
    sg_table_visit(&sg_index_blocks, give_back_block, &range);
}

void sg_index_note_unforked(void)
{
    sg_store_relaxed(&has_unforked, 1u);
}

/* In a forked child: whether it lacks any of a block's pages. Such a block is seldom used there. */
static bool is_unforked(uint64_t key, uint64_t value)
{
    uint64_t page = sg_page_bytes(), begin = sg_round_up(key, page), end = (key + sg_block_size(value)) & ~(page - 1);
    return sg_load_relaxed(&has_unforked) != 0 && (value & SG_BLOCK_SETTLED) == 0 && end > begin &&
           !sg_sandbox_is_on() && sg_sys_msync(begin, end - begin, MS_ASYNC) == -ENOMEM;
}

static void inherit_block(void *context, uint64_t key, uint64_t value)
{
    struct sg_table *table = context;
    uint64_t mark =
        table == &sg_index_blocks ? SG_BLOCK_INHERITED : SG_BLOCK_SETTLED; /* CUDA's is of no use to a child */
    if (sg_block_size(value) >= SG_PROMISE_BYTES && is_unforked(key, value))
        mark |= SG_BLOCK_SETTLED;
    if (sg_block_size(value) >= SG_PROMISE_BYTES)
        (void)sg_table_mark(table, key, value, mark);
}

/* What is missing of a memory file is told from the parent's by itself. */
void sg_index_inherit(void)
{
    struct sg_lock_state state;
    struct sg_range range;
    sg_table_visit(&sg_index_blocks, inherit_block, &sg_index_blocks);
    sg_table_visit(&sg_index_cuda, inherit_block, &sg_index_cuda);
    sg_lock_acquire(&sg_index_maps_lock, &state);
    for (uintptr_t at = 0; sg_ranges_next(&sg_index_maps, at, &range); at = range.end)
        if (range.kind == SG_RANGE_COUNTED && sg_files_number(range.flags) == 0 &&
            sg_ranges_flag(&sg_index_maps, range.begin, range.end, SG_RANGE_INHERITED) != 0)
            sg_ledger_count_fault();
    sg_lock_release(&sg_index_maps_lock, &state);
}

void sg_index_refork(bool is_map_whole)
{
    sg_lock_reset(&sg_index_maps_lock);
    sg_transit_refork(&passing);
    if (is_map_whole)
        return;
    sg_index_maps = (struct sg_ranges){0}; /* its memory is lost to the child; better than a torn list */
    sg_ledger_count_fault();
}
