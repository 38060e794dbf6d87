/*
 * tracker.h - the live memory by address: the block tables, the map of ranges, and the promises computed from them.
 *
 *   sg_tracker_blocks   heap blocks of SG_TRACKED_BYTES and more     lock-free table
 *   sg_tracker_cuda     CUDA pointers: device, managed, pinned       lock-free table
 *   sg_tracker_arrays   CUDA arrays, mipmapped too, by handle        lock-free table
 *   sg_tracker_registered  host memory that CUDA pins in place       lock-free table
 *   sg_tracker_contexts CUDA contexts by handle, with their cost     lock-free table
 *   sg_tracker_maps     mappings                                     ranges under sg_tracker_maps_lock
 *
 * What the process is promised and has not touched yet, the kernel says for its private memory as a whole (procfs.h).
 * Of shared and managed memory a scan asks which pages are there (residency.h). A block or range of these that a scan
 * found fully resident is "settled": it promises nothing, and no later scan checks it again.
 */
#ifndef SG_PRELOAD_ACCOUNT_TRACKER_H
#define SG_PRELOAD_ACCOUNT_TRACKER_H

#include "base/atomics.h"
#include "base/lock.h"
#include "base/range_map.h"
#include "sparkguard_abi.h"
#include "account/block_table.h"
#include "account/ledger.h"
#include "account/thread_record.h"
#include "account/tmpfs_ranges.h"

/* SG_TRACKED_BYTES: smallest heap block in sg_tracker_blocks. SG_PROMISE_BYTES: smallest managed block whose residency
 * a scan checks. */
enum { SG_TRACKED_BYTES = SG_ARRAY_MIN, SG_PROMISE_BYTES = 1024 * 1024 };

extern struct sg_block_table sg_tracker_blocks;
extern struct sg_block_table sg_tracker_cuda;
extern struct sg_block_table sg_tracker_arrays;
extern struct sg_block_table sg_tracker_registered;
extern struct sg_block_table sg_tracker_contexts;
extern struct sg_range_map sg_tracker_maps;

/* A table value. Bits 0 to 42: size in bytes (no machine has 8 TiB for one block). Bits 43 to 47: number of the call
 * site (callsites.h). Bits 48 to 50: domain. The bits above depend on the domain. */
#define SG_BLOCK_SIZE_MASK ((UINT64_C(1) << 43) - 1)
#define SG_BLOCK_SITE_SHIFT 43
#define SG_BLOCK_SETTLED (UINT64_C(1) << 54)
/* Heap blocks, which have no device number: a forked child has the block from its parent. Such a block does not become
 * array credit, which would be the child's own. */
#define SG_BLOCK_INHERITED (UINT64_C(1) << 51)

/* A block of a CUDA pool. The pool's reserved memory counts instead of the block. The size is in whole units: the low
 * nine bits of the size field hold the low bits of the pool's number. */
#define SG_BLOCK_POOLED (UINT64_C(1) << 55)
#define SG_BLOCK_POOLED_UNIT UINT64_C(512) /* bytes; the driver's rounding */

/* CUDA blocks, five bits: the slot of the context that the block was allocated in; for a pooled block the high bits of
 * the pool's number. */
#define SG_BLOCK_SLOT_SHIFT 56

/* The table value of a block without a call site. */
static inline uint64_t sg_block(uint64_t size_bytes, enum sg_domain domain, uint32_t device)
{
    return (size_bytes & SG_BLOCK_SIZE_MASK) | (uint64_t)domain << 48 | (uint64_t)(device & 7) << 51;
}

static inline uint64_t sg_block_size(uint64_t block)
{
    uint64_t size_bytes = block & SG_BLOCK_SIZE_MASK;
    return (block & SG_BLOCK_POOLED) == 0 ? size_bytes : size_bytes & ~(SG_BLOCK_POOLED_UNIT - 1);
}

static inline uint32_t sg_block_site(uint64_t block)
{
    return (uint32_t)(block >> SG_BLOCK_SITE_SHIFT & (SG_CALLSITE_CAPACITY - 1));
}

static inline enum sg_domain sg_block_domain(uint64_t block)
{
    return (enum sg_domain)(block >> 48 & 7);
}

static inline uint32_t sg_block_device(uint64_t block)
{
    return (uint32_t)(block >> 51 & 7);
}

/* Asks the kernel how much of this process's private memory has no pages, and lowers the promises to it. Costs a read
 * of /proc/self/statm. Under sg_decision_lock. */
void sg_tracker_observe(void);

/* The scan: an observation, and for shared, managed and MAP_NORESERVE memory the resident pages of each unsettled block
 * and range. Also updates sparse_resident_bytes of the segment, the managed memory that the registry entry shows as
 * missing, and the promises that a forked child has inherited. Costs up to 3 ms per unsettled GiB of those
 * (residency.h). Returns the resident bytes of MAP_NORESERVE mappings, without those inherited at fork. Under
 * sg_decision_lock. */
uint64_t sg_tracker_scan(void);

/* The most resident bytes that MAP_NORESERVE mappings, and copies of files' pages, can have now: by the last scan, and
 * by the growth of the process's anonymous memory since. add_sparse_extent notes address space mapped since. Any
 * thread. */
uint64_t sg_tracker_sparse_most_bytes(void);
void sg_tracker_add_sparse_extent(uint64_t bytes, bool is_shared);

/* Notes a new private mapping of a file that may be written to: so many bytes may be copied. Any thread. */
void sg_tracker_add_copied_extent(uint64_t bytes);

/* The bytes of a range that have no resident pages. Under sg_tracker_maps_lock. */
uint64_t sg_tracker_absent_bytes(const struct sg_range *range);

/* The bytes of [begin, end) that may be private memory with a promise: without shared memory and MAP_NORESERVE
 * mappings. Takes sg_tracker_maps_lock. */
uint64_t sg_tracker_promisable_bytes(uintptr_t begin, uintptr_t end);

/* In a forked child, before any new block or mapping is entered: marks all existing blocks and ranges as inherited. */
void sg_tracker_inherit(void);

/* Whether that has been done, or need not be: a block without SG_BLOCK_INHERITED is this process's own. Any thread. */
bool sg_tracker_has_inherited(void);

/*
 * Detects a copy of sg_tracker_maps that a fork has torn. Each change of the map, and of the data that belongs to it,
 * is under sg_tracker_maps_lock. It begins before the first store and ends after the last.
 *
 * fork copies memory page by page while other threads go on. A store that is missing in the child had to wait for the
 * end of the fork, because the page was write-protected. All later stores of that thread, and of the next owners of the
 * lock, are missing as well. Therefore a change whose end is visible in the child is complete there; a change whose
 * begin is not visible has not begun there. If more changes have begun than ended, the child's copy is torn.
 */
struct sg_tracker_changes {
    uint32_t begun, ended; /* (atomic) */
};
extern struct sg_tracker_changes sg_tracker_changes;

static inline void sg_tracker_begin_change(void)
{
    sg_store(&sg_tracker_changes.begun, sg_load_relaxed(&sg_tracker_changes.begun) + 1);
}

static inline void sg_tracker_end_change(void)
{
    sg_store(&sg_tracker_changes.ended, sg_load_relaxed(&sg_tracker_changes.ended) + 1);
}

/* Whether no change is going on; in a forked child: whether its copy of the map is complete. */
static inline bool sg_tracker_is_whole(void)
{
    return sg_load(&sg_tracker_changes.begun) == sg_load(&sg_tracker_changes.ended);
}

/* Around a fork. begin_fork waits until no change is going on, and makes other threads wait before they begin one. Both
 * wait 1 ms at most: a fork may itself wait for a thread that waits here. No lock is held. */
void sg_tracker_begin_fork(void);
void sg_tracker_end_fork(void);

/* Waits for the end of a fork, 1 ms at most. To be called before a change, without sg_tracker_maps_lock. */
void sg_tracker_wait_for_fork(void);

/* In a forked child: resets the lock, and forgets the map if it is torn (`is_map_whole` false). */
void sg_tracker_atfork_child(bool is_map_whole);

#endif
