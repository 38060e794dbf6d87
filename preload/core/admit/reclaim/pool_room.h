/*
 * pool_room.h - the part of a request for device memory that the driver's pool would serve.
 *
 * The driver from 590 on keeps device memory that was freed on a unified machine, by guarded and unguarded programs, and
 * what a call that failed had got so far. It serves a request from this pool first and takes only the rest from the
 * machine. No counter shows the pool. Its upper bound is what no counter of the machine explains, less the device memory
 * of living processes. It is computed at each snapshot and cannot drift. Two words of the registry say more:
 *
 *   pool_proven_bytes     in the pool for certain: freed by guarded processes or left by failed calls, and not taken since
 *   pool_disproven_bytes  not in the pool: the driver took a request from the machine that its pool was to serve
 *
 * The proven part counts as room for device memory, and half of the rest; all of it right after NVML has listed the
 * living processes. A request may pass the reserve by the error of the bound. Its measured fall then corrects the words,
 * so that the next request does not. While requests for device memory are in flight, only the proven part counts.
 *
 * All functions need the decision lock, except where noted.
 */
#ifndef SG_PRELOAD_ADMIT_RECLAIM_POOL_ROOM_H
#define SG_PRELOAD_ADMIT_RECLAIM_POOL_ROOM_H

#include "admit/admission.h"
#include "admit/headroom.h"
#include "base/compiler.h"

#include <stdbool.h>
#include <stdint.h>

/* What a request takes from the machine by the last snapshot, with the driver's lists of its pages: for device memory of
 * the machine a 160th more than it asks for (24 bytes for 4 KiB). Any thread, without the lock. */
uint64_t sg_pool_room_with_lists(const struct sg_request *request);

/* Bytes of the pool that would serve this request; 0 unless it is for device memory of a unified machine whose driver
 * lists pools. `parts`: enum sg_headroom_part, which requests under way take their part first. */
uint64_t sg_pool_room_bytes(const struct sg_request *request, uint32_t parts);

/* The same for any request for device memory that may come: for figures that a program queries. NVML's list serves them
 * for 5 s. */
uint64_t sg_pool_room_for_all(void);

/* What the machine would have more if the pool were emptied: its upper bound, in steps that are worth it. 0: the driver
 * lists no pools, or the bytes are too few to tell. */
uint64_t sg_pool_room_most_bytes(void);

/* Device memory that comes in a moment, because its process is ending. From a driver without pools also what processes held
 * that ended within the last 3 s, if it has not returned it yet. */
uint64_t sg_pool_room_due_bytes(void);

/* Whether NVML's list of processes is too old and could show that more, or less, of the pool is room. `is_reported`: for
 * sg_pool_room_for_all. */
bool sg_pool_room_wants_list(bool is_reported);

/* Device memory of living guarded processes with their contexts. Takes the lock. */
uint64_t sg_pool_room_owned_bytes(void);

/* Notes NVML's list: the device memory of all living processes of the machine. `owned_before`: sg_pool_room_owned_bytes()
 * from before NVML was asked. Takes the lock. */
void sg_pool_room_note_list(uint64_t listed_bytes, uint64_t owned_before);

/* Whether this process may empty the pool now: it can write drop_caches, and no process did within the last 10 s. */
bool sg_pool_room_may_drop(void);

/* Empties the pool by drop_caches. Any thread, without the lock. */
void sg_pool_room_drop(void);

/* Notes the figures of the machine for a request that a new snapshot has just admitted, if it is for device memory, and
 * what the pool is to serve of it. Before it goes in flight. `relies`: it fits with the pool only. */
void sg_pool_room_begin(struct sg_request *request, bool relies);

/* Measures what the call took from the machine, and corrects the two words. Call it when the call has returned and its
 * memory is charged, while the request is in flight. `is_granted`: the call succeeded. Takes the lock. */
void sg_pool_room_end(struct sg_request *request, bool is_granted);

#endif
