/*
 * change.h - what the hooks of mmap and its like share: a change of the index of mappings with the ledger in step, and
 * the request that comes before one. Any thread.
 */
#ifndef SG_PRELOAD_HOOKS_MMAP_CHANGE_H
#define SG_PRELOAD_HOOKS_MMAP_CHANGE_H

#include "admit/admission.h"
#include "hooks/lifecycle.h"
#include "base/lock.h"
#include "account/mapping_kind.h"
#include "hooks/open_call.h"
#include "account/thread_record.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether what this thread maps now counts by itself: not what backs a heap's block or CUDA memory. In the hook
 * itself, or inlined there (SG_MARK_HERE). */
static SG_INLINE bool sg_map_is_counting(void)
{
    return sg_lifecycle_enter() && (SG_LIKELY(sg_self.layers == 0) ||
                                    ((sg_self.layers & SG_LAYER_HEAP) == 0 && sg_open_call_was_left(SG_FRAME_END())));
}

/* One change of sg_tracker_maps, between begin and end under its lock; end charges or releases what it made of the sum.
 * `result`: of the functions that changed it. Signals are blocked until both are in step. */
struct sg_map_change {
    struct sg_lock_state lock;
    uint64_t before_bytes;
};
void sg_map_change_begin(struct sg_map_change *change);
void sg_map_change_end(struct sg_map_change *change, int result);

/* Names the call site of a mapping that is about to be made, if it is worth one. Reads files: not while signals are
 * held. */
void sg_map_name_site(struct sg_mapping_kind *shape, const void *caller);

/* A change by itself: what is known of the shape's bytes from `address` on. */
void sg_map_set(uintptr_t address, const struct sg_mapping_kind *shape);

/* The request for a mapping of this kind. replaced: where it takes the place of others, or 0. */
void sg_map_describe(struct sg_request *request, const struct sg_mapping_kind *shape, uintptr_t replaced);

/* The same for what is reserved in [begin, end) and is to become writable. False: nothing is. */
bool sg_map_describe_commit(struct sg_request *request, uintptr_t begin, uintptr_t end, const char *call);

/* Bytes of MAP_NORESERVE mappings that no call has made writable yet. Under the lock. */
uint64_t sg_map_closed_bytes(uintptr_t address, uint64_t bytes);

/* Whether all of it is address space that this process had reserved, none of it shared. */
bool sg_map_is_own_reservation(uintptr_t address, uint64_t bytes);

/* Bytes that come if all pages are made to, and that nobody promised: of MAP_NORESERVE mappings, and of memory files
 * and their like that this process only reads. */
uint64_t sg_map_absent_bytes(uintptr_t address, uint64_t bytes);

/* Bytes of what counts there and may not all have come yet. Under the lock. */
uint64_t sg_map_unsettled_bytes(uintptr_t begin, uintptr_t end);

/* The index knows of the shape from `address` on, instead of what it did. Under the lock, inside a change. */
int sg_map_enter(uintptr_t address, const struct sg_mapping_kind *shape);

/* Asks for growth_bytes more of mappings, of which size_bytes are not there yet: false if refused (errno is set).
 * ask: for `growth` bytes (as request has them) of which none are there, and sparse_bytes of them are of
 * MAP_NORESERVE mappings. settle follows, whatever became of the real call; until then signals are held where
 * anything is in flight, of judge's large requests those that say so. */
bool sg_map_judge(struct sg_request *request);
struct sg_request sg_map_request(uint64_t growth, uint64_t sparse_bytes, const char *call);
bool sg_map_ask(struct sg_request *request, uint64_t growth, uint64_t sparse_bytes, const char *call);
void sg_map_settle(struct sg_request *request, bool is_done);

#endif
