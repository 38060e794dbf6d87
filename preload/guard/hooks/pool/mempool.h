/*
 * mempool.h - accounting of the memory pools of stream-ordered allocation: the bytes that each pool has reserved.
 *
 * A pool is entered when the program receives its handle or first allocates from it. The entry stays until the pool is
 * destroyed and its last block is freed. The driver is queried for a pool's reserved bytes only after the first
 * allocation. A failed query changes nothing; the pool is queried again at the next occasion.
 *
 * `block` is a table value (account/tracker.h). `key` is the number that tells a stream from all others. Any thread;
 * functions take sg_cuda_lock and release it while they query the driver.
 */
#ifndef SG_PRELOAD_HOOKS_POOL_MEMPOOL_H
#define SG_PRELOAD_HOOKS_POOL_MEMPOOL_H

#include "admit/admission.h"
#include "hooks/cuda/driver.h"

/* The known properties of a pool. For an unknown pool: domain device, all else zero. */
struct sg_mempool_view {
    enum sg_domain domain;
    uint32_t device;
    bool is_known;
    uint64_t unwanted_bytes; /* reserved bytes that were refused, but that the driver did not take back */
};

struct sg_mempool_view sg_mempool_memory_of(CUmemoryPool handle);

/* Enters a pool whose handle the program has received. Does nothing if the pool is known. */
void sg_mempool_learn(CUmemoryPool handle, uint32_t device, enum sg_domain domain);

/*
 * One allocation from a pool, from before the decision until its memory is charged. Growth of the pool is judged before
 * it happens:
 *   - Every request is in flight with the largest growth that it can cause.
 *   - A request that is alone in its pool is not judged if a free piece of the pool is known to fit (pool_pieces.h).
 *   - Every other request is judged as if the pool had no free memory.
 *   - A request that does not fit waits for its turn to be alone. If no free piece fits then, the pool's unused memory
 *     is trimmed, and the request is judged once more.
 * So the driver may serve concurrent requests in any order. The only growth that can come unjudged is the rest of a
 * step, if the pool's step is larger than known so far.
 */
struct sg_mempool_flight {
    CUmemoryPool handle;
    uint32_t device; /* of the pool */
    enum sg_domain domain;
    uint64_t size_bytes;
    uint64_t key;          /* of the stream */
    uint32_t stream;       /* number of the stream (pool_pieces.h) */
    uint32_t number;       /* of the pool; 0: it could not be entered */
    uint64_t growth_bytes; /* the largest growth of the pool that this request can cause */
    uint64_t taken_bytes;  /* result: the actual growth, at most growth_bytes */
    uint64_t excess_bytes; /* result: growth that was not judged */
    uint64_t before_bytes; /* result: reserved bytes of the pool without both */
    uint64_t grown_bytes;  /* the pool's growth, if this request alone caused it; otherwise 0 */
    uint64_t flights;      /* allocations ever begun in the pool, when this one began */
    uint64_t syncs_ended;  /* synchronisations ended by then */
    bool is_alone;         /* no other allocation was under way in the pool then */
};

/* Begins an allocation. True: a free piece fits, so nothing is to be judged, and growth_bytes are in flight. False: ask
 * admission for growth_bytes; if request->granted_bytes is not 0, settle that first. */
bool sg_mempool_begin(struct sg_mempool_flight *flight, struct sg_request *request);

/* Admission has granted growth_bytes, which are now in flight. */
void sg_mempool_judged(struct sg_mempool_flight *flight);

/* Waits at most 3 s for the turn to be alone in the pool. Nothing of the request may be in flight: two requests could
 * wait for each other. Other allocations wait until the turn ends, at most 3 s each. Result as sg_mempool_begin. */
bool sg_mempool_begin_turn(struct sg_mempool_flight *flight, struct sg_request *request);

/* True if the request may pass without headroom for a whole step of the pool: it is alone, smaller than a step, and the
 * pool has at least its size in free bytes. */
bool sg_mempool_may_pass(const struct sg_mempool_flight *flight);

/* True if the pool holds bytes that no block uses. The caller must then trim the pool before the turn ends. */
bool sg_mempool_begin_trim(const struct sg_mempool_flight *flight);

/* Ends this thread's turn, if it has one, and wakes the waiting requests. */
void sg_mempool_end_turn(void);

/* The driver has allocated the block at `address`: charges the bytes that the pool has reserved, and fills in the
 * results of `flight`. */
void sg_mempool_book(struct sg_mempool_flight *flight, uint64_t address);

/* The same after a block that exceeded the headroom was freed again. Growth that stays in the pool counts as unwanted.
 * `address` is that block's. */
void sg_mempool_book_refused(const struct sg_mempool_flight *flight, uint64_t address);

/* Ends all that this thread's open call has begun in pools: allocation, turn, query and synchronisation. Call it
 * whether the request was granted or not. */
void sg_mempool_end(void);

/* A call of the program that may make pools give memory back: a synchronisation, a trim. After a synchronisation,
 * blocks that were freed before in its stream, or on its device (SG_SYNC_CONTEXT), are free for all streams.
 * SG_SYNC_NOTHING: the call completes no known stream. */
#define SG_SYNC_CONTEXT UINT64_C(0)
#define SG_SYNC_NOTHING UINT64_MAX

struct sg_mempool_sync {
    uint64_t key;   /* of the stream, or SG_SYNC_CONTEXT, SG_SYNC_NOTHING */
    uint64_t frees; /* frees that had ended in that stream, or in all */
};

/* Before the call. Costs one load if no pool was ever used. */
struct sg_mempool_sync sg_mempool_begin_sync(uint64_t key);

/* After the call. If it succeeded (`is_done`), marks freed blocks as free for all and refreshes the charges of all
 * pools. `device` matters only for SG_SYNC_CONTEXT. */
void sg_mempool_end_sync(const struct sg_mempool_sync *sync, uint32_t device, bool is_done);

/* Adds a block to its pool. Returns the table value, which names the pool. 0: the driver does not support the query for
 * this pool's reserved bytes, or the pool is unknown; the block must then be charged by itself. */
uint64_t sg_mempool_add_block(const struct sg_mempool_flight *flight, uint64_t address);

/* Before cuMemPoolDestroy: forgets the handle and waits until running queries have returned, because a destroyed
 * pool must not be queried. Returns the number to pass to sg_mempool_end_destroy. 0: unknown pool, no end needed. */
uint32_t sg_mempool_begin_destroy(CUmemoryPool handle);

/* After cuMemPoolDestroy: restores the handle if the call failed. */
void sg_mempool_end_destroy(uint32_t number, CUmemoryPool handle, CUresult result);

/* Charges the ledger with the current reserved bytes of every used pool. Queries the driver once per pool. */
void sg_mempool_memory_refresh(void);

/* The same, but only if an earlier query has failed. Otherwise costs one load. */
void sg_mempool_memory_catch_up(void);

/* Call after a pool's block is freed; removes a destroyed pool's entry with its last block. */
void sg_mempool_block_gone(uint64_t block);

/* The two halves of a free: before the real call, and after it with its outcome. Blocks outside pools are ignored.
 * A block freed in stream order: only that stream may use its memory until it is synchronised. With SG_SYNC_NOTHING all
 * streams may. The last sg_mempool_begin_free before the call counts. */
void sg_mempool_begin_free(uint64_t block, uint64_t address, uint64_t key);
void sg_mempool_end_free(uint64_t block, uint64_t address, bool is_freed);

/* Counts and marks the pools whose blocks have disappeared with the primary context of a device. `has_ended`: the
 * context is known to have existed and ended; false: it may never have existed. */
uint32_t sg_mempool_emptied(uint32_t device, bool has_ended);

/* True if the last sg_mempool_emptied has marked the pool of this block. */
bool sg_mempool_is_emptied(uint64_t block);

/* In a forked child: forgets the queries, allocations and turns of the parent's threads. Takes no lock. */
void sg_mempool_atfork_child(void);

#endif
