/*
 * change.h - requests for mappings, and changes of the range map (sg_tracker_maps).
 *
 * The hooks of mmap, mremap, mprotect, madvise, sbrk and shmat share these functions. A hook first asks for admission,
 * then calls the real function and changes the range map, and then settles the request. The ledger stays in step with
 * the range map. Any thread may call them.
 *
 * The "maps lock" below is sg_tracker_maps_lock.
 */
#ifndef SG_PRELOAD_HOOKS_MMAP_CHANGE_H
#define SG_PRELOAD_HOOKS_MMAP_CHANGE_H

#include "admit/admission.h"
#include "hooks/lifecycle.h"
#include "base/lock.h"
#include "hooks/mmap/mapping_kind.h"
#include "hooks/open_call.h"
#include "account/thread_record.h"

#include <stdbool.h>
#include <stdint.h>

/* Returns whether a mapping that this thread makes now counts by itself. A mapping that the heap or CUDA makes for its
 * own blocks does not: those blocks are counted instead. Call this only in the hook itself or in a function inlined
 * there: SG_FRAME_END must give the frame of the hook. */
static SG_INLINE bool sg_mmap_is_outermost(void) /* for hooks that have called sg_lifecycle_enter */
{
    return SG_LIKELY(sg_self.layers == 0) ||
           ((sg_self.layers & SG_LAYER_HEAP) == 0 && sg_open_call_was_left(SG_FRAME_END()));
}

static SG_INLINE bool sg_mmap_is_counting(void)
{
    return sg_lifecycle_enter() && sg_mmap_is_outermost();
}

/* One change of sg_tracker_maps. Begin takes the maps lock and blocks signals. End charges the ledger with the change
 * of counted bytes, or releases them, and lets signals in once the map and the ledger agree. `result` is the sum of the
 * results of the functions that changed the map; other than 0 is counted as a fault of the record. */
struct sg_mmap_change {
    struct sg_lock_state lock;
    uint64_t before_bytes, shut_bytes, inherited_bytes; /* sums of the range map before it */
};
void sg_mmap_change_begin(struct sg_mmap_change *change);
void sg_mmap_change_end(struct sg_mmap_change *change, int result);

/* Stores the call site of a mapping that is about to be made in mapping->flags. Only a mapping above LARGE that
 * counts or may count later gets one. The search reads files, so signals must not be blocked. */
void sg_mmap_name_site(struct sg_mapping_kind *mapping, const void *caller);

/* Does one whole change: enters `mapping` at `address`. Takes the maps lock. */
void sg_mmap_set(uintptr_t address, const struct sg_mapping_kind *mapping);

/* Settles the parts of a mapping of a memory file that have pages already, touched or only allocated (fallocate).
 * `offset`: in the file. Takes the maps lock. */
void sg_mmap_settle_allocated(uintptr_t address, const struct sg_mapping_kind *mapping, int fd, uint64_t offset);

/* Fills in the sizes of a request for this mapping; a mapping that does not count or is not judged leaves them 0.
 * `replaced` is the start address of what the mapping replaces (MAP_FIXED), or 0. Takes the maps lock. */
void sg_mmap_describe(struct sg_request *request, const struct sg_mapping_kind *mapping, uintptr_t replaced);

/* Fills in a request to make the reserved memory of [begin, end) writable. Returns false if nothing is reserved there.
 * Takes the maps lock. */
bool sg_mmap_describe_commit(struct sg_request *request, uintptr_t begin, uintptr_t end, const char *call);

/* Returns the bytes of MAP_NORESERVE mappings that no call has made writable yet. Under the maps lock. */
uint64_t sg_mmap_closed_bytes(uintptr_t address, uint64_t bytes);

/* Returns the bytes of private MAP_NORESERVE memory that is or was writable. Takes the maps lock. */
uint64_t sg_mmap_open_bytes(uintptr_t address, uint64_t bytes);

/* Returns whether all `bytes` at `address` are private address space that this process had reserved. Takes the maps
 * lock. */
bool sg_mmap_is_own_reservation(uintptr_t address, uint64_t bytes);

/* Returns the bytes that would become resident if every page were brought in, and that no promise covers. These are
 * pages of MAP_NORESERVE mappings, and pages of shared memory (tmpfs files, for example) that this process only reads;
 * with `is_copying`, also the copies of private mappings of files. Takes the maps lock for one range at a time. */
uint64_t sg_mmap_absent_bytes(uintptr_t address, uint64_t bytes, bool is_copying);

/* Returns the bytes whose pages a scan looks for: of shared memory and MAP_NORESERVE mappings. Under the maps lock. */
uint64_t sg_mmap_scanned_bytes(uintptr_t begin, uintptr_t end);

/* Enters `mapping` at `address` in the range map, in place of what was there. Under the maps lock, inside a change.
 * Returns 0, or an error for sg_mmap_change_end. */
int sg_mmap_enter(uintptr_t address, const struct sg_mapping_kind *mapping);

/* Asks for admission of a mapping. Returns false and sets errno to ENOMEM if the request is refused. After true, call
 * sg_mmap_settle, whatever the real call returned.
 *
 * The request is filled in: growth_bytes more of mappings, of which size_bytes are not resident.
 *
 * Signals are blocked from an admission that puts bytes in flight until sg_mmap_settle. A large request blocks them
 * only if it says so (holds_signals). */
bool sg_mmap_judge(struct sg_request *request);

/* Fills in and judges a request for `growth` bytes of mappings, none of them resident. `sparse_bytes` of them belong to
 * MAP_NORESERVE mappings. */
bool sg_mmap_ask(struct sg_request *request, uint64_t growth, uint64_t sparse_bytes, const char *call);

/* Ends a request after the real call: the admitted bytes become a promise if `is_done`, and are given up otherwise. */
void sg_mmap_settle(struct sg_request *request, bool is_done);

#endif
