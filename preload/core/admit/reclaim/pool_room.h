/*
 * pool_room.h - the part of a request for device memory that the driver's pool would serve.
 *
 * The driver from 590 on keeps device memory that was freed on a unified machine, by guarded and unguarded programs,
 * and what a call that failed had got so far. It serves a request from this pool first and takes only the rest from the
 * machine. No counter shows the pool. Its upper bound is what no counter of the machine explains, less the device
 * memory of living processes. It is computed at each snapshot and cannot drift. Words of the registry say more:
 *
 *   pool_proven_bytes     freed by guarded processes or left by failed calls, and not taken since by those that share
 *                         the registry. A program that shares it not, or is not guarded, may have taken it.
 *   pool_disproven_bytes  not in the pool, and no process's that NVML lists: a call fell on the machine
 *   pool_missed_ns        when a guess without NVML's list was last wrong
 *
 * What NVML's list leaves of the bound is sure, if the list was asked for the request itself. Nothing else is. The
 * proven part counts nevertheless, and half of the rest, or all of it within a second of a list: as far as the machine
 * keeps its floor if none of it is there. So a wrong bound, or a wrong word of the registry, costs the reserve at most.
 * While requests for device memory are in flight, of the rest nothing counts. They are in flight whole: for host memory
 * nothing is in the pool.
 *
 * All functions need the decision lock, except where noted.
 */
#ifndef SG_PRELOAD_ADMIT_RECLAIM_POOL_ROOM_H
#define SG_PRELOAD_ADMIT_RECLAIM_POOL_ROOM_H

#include "admit/admission.h"
#include "admit/headroom.h"

#include <stdbool.h>
#include <stdint.h>

/* What a request takes from the machine by the last snapshot, with the driver's lists of its pages: for device memory
 * of the machine a 160th more than it asks for (24 bytes for 4 KiB). Any thread, without the lock. */
uint64_t sg_pool_room_with_lists(const struct sg_request *request);

/* Bytes of the pool that would serve this request; 0 unless it is for device memory of a unified machine whose driver
 * lists pools. `parts`: enum sg_headroom_part, which requests under way take their part first. */
uint64_t sg_pool_room_bytes(const struct sg_request *request, uint32_t parts);

/* The same for any request for device memory that may come: for figures that a program queries. NVML's list serves them
 * for 5 s. `is_observer`: for a tool, which has no list of its own and takes the last one of the registry. */
uint64_t sg_pool_room_for_all(bool is_observer);

/* What the machine would have more if the pool were emptied: its upper bound, in steps that are worth it. 0: the driver
 * lists no pools, or the bytes are too few to tell. */
uint64_t sg_pool_room_most_bytes(void);

/* Device memory that comes in a moment, because its process is ending. From a driver without pools also what processes
 * held that ended within the last 3 s, if it has not returned it yet. */
uint64_t sg_pool_room_due_bytes(void);

/* How old NVML's list may be: it is to be asked now; for a decision that the pool cannot take below the floor; for
 * sg_pool_room_for_all. */
enum sg_pool_list { SG_POOL_LIST_NEW, SG_POOL_LIST_RECENT, SG_POOL_LIST_REPORTED };

/* Whether NVML's list of processes is older and could show that more, or less, of the pool is room. */
bool sg_pool_room_wants_list(enum sg_pool_list age);

/* Device memory of living guarded processes with their contexts. Also notes what nobody owns. Takes the lock. */
uint64_t sg_pool_room_owned_bytes(void);

/* Notes NVML's list: the device memory of all living processes of the machine. `owned_before`:
 * sg_pool_room_owned_bytes() from before NVML was asked. Takes the lock. */
void sg_pool_room_note_list(uint64_t listed_bytes, uint64_t owned_before);

/* Whether this process may empty the pool now: it is root outside containers, and no process did within the last 10
 * s. */
bool sg_pool_room_may_drop(void);

/* Empties the pool by drop_caches. Any thread, without the lock. */
void sg_pool_room_drop(void);

/* Notes the figures of the machine for a request that a new snapshot has just admitted, if it is for device memory.
 * Before it goes in flight. `relies`: it fits with the pool only. */
void sg_pool_room_begin(struct sg_request *request, bool relies);

/* Measures what the call took from the machine, and corrects the two words. Call it when the call has returned and its
 * memory is charged, while the request is in flight. `is_granted`: the call succeeded. Takes the lock. */
void sg_pool_room_end(struct sg_request *request, bool is_granted);

#endif
