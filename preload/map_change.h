/*
 * map_change.h - what the hooks of mmap and its like share: a change of the index of mappings with the ledger in step, and the
 * request that comes before one. Any thread.
 */
#ifndef SG_MAP_CHANGE_H
#define SG_MAP_CHANGE_H

#include "admission.h"
#include "lock.h"
#include "map_shape.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether what this thread maps now counts by itself: not what backs a heap's block or CUDA memory. */
bool sg_map_is_counting(void);

/* One change of sg_index_maps, between begin and end under its lock; end charges or releases what it made of the sum. `result`:
 * of the functions that changed it. Signals are blocked until both are in step. */
struct sg_map_change {
    struct sg_lock_state lock;
    uint64_t before_bytes;
    bool drops_files; /* to be set if ranges of memory files may go (files.h) */
};
void sg_map_change_begin(struct sg_map_change *change);
void sg_map_change_end(struct sg_map_change *change, int result);

/* Names the call site of a mapping that is about to be made, if it is worth one. Reads files: not while signals are held. */
void sg_map_name_site(struct sg_map_shape *shape, const void *caller);

/* A change by itself: what is known of the shape's bytes from `address` on. */
void sg_map_set(uintptr_t address, const struct sg_map_shape *shape);

/* Bytes of one kind (enum sg_range_kind) in the index. */
uint64_t sg_map_bytes(uintptr_t address, uint64_t bytes, uint32_t kind);

/* Bytes of what counts there whose room comes back at once when it is replaced: nobody else has its pages. */
uint64_t sg_map_replaced_bytes(uintptr_t address, uint64_t bytes);

/* Bytes of what counts there and may not all have come yet. Under the lock. */
uint64_t sg_map_unsettled_bytes(uintptr_t begin, uintptr_t end);

/* Whether there are ranges of memory files. Under the lock. */
bool sg_map_has_files(uintptr_t begin, uintptr_t end);

/* Asks for growth_bytes more of mappings, of which size_bytes are not there yet: false if refused (errno is set). ask:
 * for `growth` bytes of which none are. settle follows, whatever became of the real call; until then signals are held where
 * anything is in flight, of judge's large requests those that say so. */
bool sg_map_judge(struct sg_request *request);
bool sg_map_ask(struct sg_request *request, uint64_t growth, const char *call);
void sg_map_settle(struct sg_request *request, bool is_done);

#endif
