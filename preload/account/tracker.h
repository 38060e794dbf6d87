/*
 * tracker.h - what is live, by address: the tables and the map of ranges, and what of it is only promised.
 *
 *   sg_tracker_blocks   heap blocks of SG_TRACKED_BYTES and more     lock-free table
 *   sg_tracker_cuda     CUDA pointers: device, managed, pinned       lock-free table
 *   sg_tracker_arrays   CUDA arrays, mipmapped too, by handle      lock-free table
 *   sg_tracker_registered  host memory that CUDA pins in place       lock-free table
 *   sg_tracker_contexts CUDA contexts by handle, what they took  lock-free table
 *   sg_tracker_maps     mappings                                     ranges under sg_tracker_maps_lock
 *
 * A promise is what was granted and is not there yet: a block's size less its resident bytes (residency.h), once. A
 * block that was fully resident is "settled" and never looked at again.
 */
#ifndef SG_PRELOAD_ACCOUNT_TRACKER_H
#define SG_PRELOAD_ACCOUNT_TRACKER_H

#include "base/atomics.h"
#include "base/compiler.h"
#include "base/lock.h"
#include "base/range_map.h"
#include "sparkguard_abi.h"
#include "account/block_table.h"
#include "account/tmpfs_ranges.h"

enum { SG_TRACKED_BYTES = 64 * 1024, SG_PROMISE_BYTES = 1024 * 1024 };

extern struct sg_block_table sg_tracker_blocks;
extern struct sg_block_table sg_tracker_cuda;
extern struct sg_block_table sg_tracker_arrays;
extern struct sg_block_table sg_tracker_registered;
extern struct sg_block_table sg_tracker_contexts;
extern struct sg_range_map sg_tracker_maps;

/* A table value: 43 bits of size (no machine has 8 TiB for one block), the number of the call site (callsites.h), and
 * what else must be known when the block goes. */
#define SG_BLOCK_SIZE_MASK ((UINT64_C(1) << 43) - 1)
#define SG_BLOCK_SITE_SHIFT 43
#define SG_BLOCK_SETTLED (UINT64_C(1) << 54)
#define SG_BLOCK_INHERITED (UINT64_C(1) << 51) /* of heap blocks, which are on no device: as SG_RANGE_INHERITED */

/* Of heap blocks: a bit for each share that some look has found there (tracker.c), for ever. */
#define SG_BLOCK_SEEN_SHIFT 56
#define SG_BLOCK_SEEN_MASK (UINT64_C(31) << SG_BLOCK_SEEN_SHIFT)

/* A block of a CUDA pool: the pool's reserved memory counts, not the block, whose size is known in such units only. */
#define SG_BLOCK_POOLED (UINT64_C(1) << 55)
#define SG_BLOCK_POOLED_UNIT UINT64_C(512) /* as the driver rounds them */

/* Of a CUDA block, five bits: the slot of the context it was allocated in, or else the upper ones of its pool's number. */
#define SG_BLOCK_SLOT_SHIFT 56

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

/* What is promised now, by a look at every unsettled block; also updates sparse_resident_bytes. Costs up to 3 ms per
 * GiB that is not settled (residency.h). Under the decision lock. */
uint64_t sg_tracker_promised_bytes(void);

/* The anonymous resident bytes of this process that this look was made with. */
uint64_t sg_tracker_anonymous_bytes(void);

/* Whether it found MAP_NORESERVE mappings; how much address space of them can have pages that nobody promised; and
 * how much of that was there, without what the parent of a forked child has as well. */
bool sg_tracker_has_sparse(void);
uint64_t sg_tracker_sparse_room_bytes(void);
void sg_tracker_add_sparse_room(uint64_t bytes); /* since. Any thread */
uint64_t sg_tracker_sparse_bytes(void);

/* Before a heap block goes, or a part of a mapping: what it still promises goes with it, and nothing else does; where
 * that cannot be told, nothing, until the next scan. While it is in the index: a look that does not find it there any
 * more ends later and says how much is promised without it. Only what is large enough to matter before the next scan. */
void sg_tracker_withdraw_block(uintptr_t begin, uint64_t bytes);
void sg_tracker_withdraw_range(const struct sg_range *range);

/* What munmap or free gives back, or realloc moves (`stays`): from before it is taken out of the index, for its address
 * may be another thread's at once, until it is gone or entered anew. A look meanwhile cannot tell where its pages are,
 * nor what it promises: it counts too much rather than too little. */
struct sg_passage {
    uint64_t bytes;
    uint64_t promised_bytes;
};
struct sg_passage sg_tracker_begin_large_passage(uintptr_t begin, uint64_t bytes, bool stays);
void sg_tracker_end_large_passage(struct sg_passage passage);

static inline struct sg_passage sg_tracker_begin_passage(uintptr_t begin, uint64_t bytes, bool stays)
{
    if (SG_LIKELY(bytes < SG_PROMISE_BYTES))
        return (struct sg_passage){0};
    return sg_tracker_begin_large_passage(begin, bytes, stays);
}

static inline void sg_tracker_end_passage(struct sg_passage passage)
{
    if (SG_UNLIKELY(passage.bytes != 0))
        sg_tracker_end_large_passage(passage);
}

/* What the entry of a block that is resized must keep of the old one's: of what has been there, less is promised. */
uint64_t sg_tracker_seen_of(uint64_t entry);

/* The bytes of a range that have no pages. Under the maps' lock. */
uint64_t sg_tracker_absent_bytes(const struct sg_range *range);

/* Anonymous memory that may come without a promise: given back and touched again, copies of a file's pages. The sum,
 * and more of it. Any thread. */
uint64_t sg_tracker_unpromised_bytes(void);
void sg_tracker_add_unpromised(uint64_t bytes);

/* The program gave the pages of [begin, end) back (MADV_DONTNEED): what lies there promises nothing any more. */
void sg_tracker_give_back(uintptr_t begin, uintptr_t end);

/* What is in no mapping that we know, and may be part of a heap block, will be in no forked child. */
void sg_tracker_note_unforked(void);

/* In a forked child, before anything is entered: what is missing of what there is, the parent has promised. */
void sg_tracker_inherit(void);

/* How much that is, by the last snapshot. */
uint64_t sg_tracker_inherited_bytes(void);

/*
 * A change of sg_tracker_maps, and of what goes with it, under the maps' lock: it begins before the first store and
 * ends behind the last. fork copies memory on write, beside threads that go on: a store that the child does not see had
 * to wait for the end of the fork, and so had all that its thread, and who got the lock from it, stored later. So a
 * change whose end the child sees it sees as a whole, and one whose beginning it does not see has not begun there.
 * Where more have begun than ended, the child's copy is torn.
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

static inline bool sg_tracker_is_whole(void)
{
    return sg_load(&sg_tracker_changes.begun) == sg_load(&sg_tracker_changes.ended);
}

/* Before a fork: waits until no change is going on, and keeps other threads from beginning one. Both for a millisecond
 * at most, so that nobody waits for a fork that waits itself. Nothing is held meanwhile. */
void sg_tracker_begin_fork(void);
void sg_tracker_end_fork(void);

/* Before a change, without the lock. */
void sg_tracker_wait_for_fork(void);

/* In a forked child whose parent may have been changing the map: forgets it if it is torn. */
void sg_tracker_refork(bool is_map_whole);

#endif
