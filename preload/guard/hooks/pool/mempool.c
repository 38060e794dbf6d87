/*
 * mempool.c - see mempool.h.
 */
#include "hooks/pool/mempool.h"

#include "account/ledger.h"
#include "account/tracker.h"
#include "base/compiler.h"
#include "hooks/pool/pool_pieces.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "hooks/cuda/contexts.h"
#include "hooks/cuda/lock.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>

struct pool {
    CUmemoryPool handle;     /* NULL: destroyed, must not be queried; charged until its last block is freed */
    uint64_t reserved_bytes; /* as charged to the ledger */
    uint64_t unwanted_bytes; /* struct sg_mempool_view */
    uint64_t settled_bytes;  /* reserved bytes that completed allocations have brought */
    uint64_t judged_bytes;   /* growth granted to the allocations under way */
    uint64_t blocks;
    uint64_t used_bytes;    /* by the blocks */
    uint64_t flights;       /* allocations ever begun */
    uint64_t queries;       /* queries ever begun; the count is the number of the latest */
    uint64_t answered;      /* number of the latest query whose answer is charged */
    uint64_t bookings;      /* allocations that the driver has granted */
    uint64_t trimmed_bytes; /* upper bound of reserved bytes after a trim (sg_mempool_begin_trim); 0: no trim */
    uint32_t querying;      /* queries under way */
    uint32_t flying;        /* allocations under way */
    uint32_t device;
    enum sg_domain domain; /* since CUDA 13 a pool may hold managed or host memory */
    bool is_used;
    bool is_active; /* something was allocated from the pool */
    bool is_opaque; /* unsupported: the driver does not tell the reserved bytes, so each block is charged by itself */
    bool has_answered; /* a query has succeeded before */
    bool is_emptied;   /* sg_mempool_emptied */
    struct sg_pieces pieces;
};

/* Indexed by number, from 1 on. Under sg_cuda_lock; the array moves when it grows. */
static struct pool *pools;
static uint32_t pool_capacity;
static uint32_t active_count; /* (atomic) active pools */
static uint32_t is_outdated;  /* (atomic) a query failed: the charge of some pool may be out of date */
static uint32_t syncs;        /* calls under way that may shrink pools (struct sg_mempool_sync) */
static uint64_t syncs_ended;  /* such calls that have ended */
static uint32_t last_answers; /* (atomic) futex: counts the answers of pools that are being destroyed */

/* The step in bytes by which the pools of a device grow; 0: not learned, FIRST_STEP_BYTES. Under sg_cuda_lock. */
static uint64_t steps[SG_DEVICE_CAPACITY];
#define FIRST_STEP_BYTES (UINT64_C(32) << 20)
#define GRANULE_BYTES (UINT64_C(2) << 20)
#define TURN_NS UINT64_C(3000000000)

/* The turn to be alone in a pool: one request at a time, over all pools. Under sg_cuda_lock. */
static struct {
    bool is_taken;
    uint32_t number;  /* the pool that the request is alone in, or waits to be alone in; 0: none */
    uint32_t waiting; /* threads that wait for a change */
    uint32_t changes; /* (atomic) futex */
} turn;

/* A table value holds the pool's number, its low bits in size bits that are always 0: blocks are multiples of 512. */
enum { LOW_BITS = 9, LOW_MASK = (1 << LOW_BITS) - 1, NUMBERS = 1 << (LOW_BITS + 5) };
_Static_assert(SG_BLOCK_POOLED_UNIT == LOW_MASK + 1 && SG_PIECES_UNIT == LOW_MASK + 1, "as the driver rounds blocks");

static uint32_t number_in(uint64_t block)
{
    return (uint32_t)(block >> SG_BLOCK_SLOT_SHIFT & 31) << LOW_BITS | (uint32_t)(block & LOW_MASK);
}

/* ---- the list; all under the lock -------------------------------------------------------------------------------- */

static uint32_t find(CUmemoryPool handle)
{
    for (uint32_t number = 1; handle != NULL && number < pool_capacity; number++)
        if (pools[number].is_used && pools[number].handle == handle)
            return number;
    return 0;
}

static bool grow_list(void)
{
    uint32_t capacity = pool_capacity != 0 ? 2 * pool_capacity : 64;
    struct pool *list = capacity <= NUMBERS ? sg_sys_mmap(NULL, capacity * sizeof *list, PROT_READ | PROT_WRITE,
                                                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                            : NULL;
    if (list == NULL || sg_is_error(list)) {
        sg_ledger_count_fault();
        return false;
    }
    struct pool *before = pools;
    uint32_t before_capacity = pool_capacity;
    if (before != NULL)
        memcpy(list, before, before_capacity * sizeof *list);
    pools = list;
    pool_capacity = capacity;
    if (before != NULL) /* unmap last: a child forked meanwhile must find one of the two arrays mapped */
        (void)sg_sys_munmap(before, before_capacity * sizeof *list);
    return true;
}

static uint32_t add(CUmemoryPool handle, uint32_t device, enum sg_domain domain)
{
    uint32_t number = 1;
    while (number < pool_capacity && pools[number].is_used)
        number++;
    if (handle == NULL || (number >= pool_capacity && !grow_list()))
        return 0;
    pools[number] = (struct pool){.handle = handle, .device = device, .domain = domain, .is_used = true};
    return number;
}

static void activate(struct pool *pool)
{
    if (!pool->is_active)
        sg_fetch_add(&active_count, 1u);
    pool->is_active = true;
}

/* False if the pool reserves less than its blocks and known free pieces: it has shrunk and grown again unseen. */
static bool is_sound(const struct pool *pool)
{
    return pool->used_bytes + sg_pieces_bytes(&pool->pieces) <= pool->reserved_bytes;
}

/* After the pool has shrunk. A full trim surely gives back the extents that all streams may use. If it gave back less
 * beyond those than the smallest empty extent, then the pieces freed by busy streams are still in the pool. */
static void forget_pieces(struct pool *pool)
{
    sg_pieces_forget_empty(&pool->pieces, true);
    if (pool->trimmed_bytes != 0 && pool->trimmed_bytes >= pool->reserved_bytes &&
        pool->trimmed_bytes - pool->reserved_bytes < sg_pieces_least_empty_bytes(&pool->pieces))
        return;
    sg_pieces_forget_empty(&pool->pieces, false);
    if (!is_sound(pool))
        sg_pieces_forget(&pool->pieces);
}

static void recharge(struct pool *pool, uint64_t reserved)
{
    if (reserved > pool->reserved_bytes)
        sg_ledger_charge(pool->domain, reserved - pool->reserved_bytes);
    else
        sg_ledger_release(pool->domain, pool->reserved_bytes - reserved);
    if (pool->domain == SG_DOMAIN_DEVICE)
        sg_ledger_charge_device(pool->device, (int64_t)(reserved - pool->reserved_bytes));
    uint64_t wanted = pool->reserved_bytes - pool->unwanted_bytes;
    bool is_less = reserved < pool->reserved_bytes;
    pool->reserved_bytes = reserved;
    if (is_less)
        forget_pieces(pool);
    if (pool->settled_bytes > reserved)
        pool->settled_bytes = reserved;
    if (pool->unwanted_bytes != 0)
        pool->unwanted_bytes = reserved > wanted ? reserved - wanted : 0;
}

/* Removes the entry of a destroyed pool that has no blocks, queries or allocations any more. */
static void drop_if_gone(struct pool *pool)
{
    if (!pool->is_used || pool->handle != NULL || pool->blocks != 0 || pool->querying != 0 || pool->flying != 0)
        return;
    recharge(pool, 0);
    if (pool->is_active)
        sg_fetch_sub(&active_count, 1u);
    sg_pieces_forget(&pool->pieces);
    pool->is_used = false;
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

static void end_query(void)
{
    struct pool *pool = &pools[sg_self.open.asked_pool];
    if (sg_self.open.asked_pool == 0)
        return;
    sg_self.open.asked_pool = 0;
    pool->querying--;
    if (pool->handle == NULL) {
        drop_if_gone(pool);
        sg_fetch_add(&last_answers, 1u);
        (void)sg_sys_futex(&last_answers, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL);
    }
}

/* Releases the lock during the query. The pool keeps its number, and its destruction waits (wait_for_queries). */
static CUresult query(uint32_t number, CUmemPool_attribute attribute, struct sg_lock_state *lock, uint64_t *bytes)
{
    SG_DRIVER(get, cuMemPoolGetAttribute);
    CUmemoryPool handle = pools[number].handle;
    cuuint64_t value = 0;
    pools[number].querying++;
    sg_self.open.asked_pool = number;
    sg_lock_release(&sg_cuda_lock, lock);
    uint32_t layers = sg_cuda_go_inside();
    CUresult result = get != NULL ? get(handle, attribute, &value) : CUDA_ERROR_NOT_SUPPORTED;
    sg_self.layers = layers;
    sg_lock_acquire(&sg_cuda_lock, lock);
    end_query();
    if (result == CUDA_SUCCESS)
        *bytes = value;
    return result;
}

/* Queries the reserved bytes. If queries run concurrently, the last one begun counts: it covers all earlier changes.
 * A query begun before it that returns later gets the charged bytes instead. False: the query failed; repeat it. */
static bool query_reserved(uint32_t number, struct sg_lock_state *lock, uint64_t *reserved)
{
    uint64_t query_number = ++pools[number].queries;
    CUresult result = query(number, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, lock, reserved);
    struct pool *pool = &pools[number];
    if (pool->handle == NULL) /* destroyed meanwhile: charged until its last block is freed */
        return false;
    if (result == CUDA_SUCCESS)
        pool->has_answered = true;
    else if (!pool->has_answered && (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_INVALID_VALUE))
        pool->is_opaque = true; /* drivers before CUDA 11.3 */
    else
        sg_store_release(&is_outdated, 1u);
    if (result == CUDA_SUCCESS && query_number > pool->answered)
        pool->answered = query_number;
    else
        *reserved = pool->reserved_bytes;
    return result == CUDA_SUCCESS;
}

/* Waits at most 5 s for queries of a pool that the program destroys: the driver may block them until we go on. */
static void wait_for_queries(uint32_t number, struct sg_lock_state *lock)
{
    const uint64_t deadline = sg_clock_ns(CLOCK_MONOTONIC) + UINT64_C(5000000000);
    const struct timespec step = {0, 100000000};
    while (pools[number].querying != 0 && sg_clock_ns(CLOCK_MONOTONIC) < deadline) {
        uint32_t seen = sg_load(&last_answers);
        sg_lock_release(&sg_cuda_lock, lock);
        (void)sg_sys_futex(&last_answers, FUTEX_WAIT_PRIVATE, seen, &step);
        sg_lock_acquire(&sg_cuda_lock, lock);
    }
}

void sg_mempool_atfork_child(void)
{
    for (uint32_t number = 1; number < pool_capacity; number++) { /* only the parent has those threads */
        pools[number].querying = pools[number].flying = 0;
        pools[number].judged_bytes = pools[number].trimmed_bytes = 0;
    }
    syncs = 0;
    turn.is_taken = false;
    turn.number = turn.waiting = 0;
}

/* ---- for hooks --------------------------------------------------------------------------------------------------- */

struct sg_mempool_view sg_mempool_memory_of(CUmemoryPool handle)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    uint32_t number = find(handle);
    struct sg_mempool_view view = {.domain = SG_DOMAIN_DEVICE};
    if (number != 0)
        view = (struct sg_mempool_view){pools[number].domain, pools[number].device, true, pools[number].unwanted_bytes};
    sg_lock_release(&sg_cuda_lock, &lock);
    return view;
}

void sg_mempool_learn(CUmemoryPool handle, uint32_t device, enum sg_domain domain)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    if (find(handle) == 0)
        (void)add(handle, device, domain);
    sg_lock_release(&sg_cuda_lock, &lock);
}

/* ---- an allocation ----------------------------------------------------------------------------------------------- */

/* A small block makes its pool grow by a whole step. The next small blocks are cut from the same step. */
static uint64_t step_of(uint32_t device)
{
    return steps[device] != 0 ? steps[device] : FIRST_STEP_BYTES;
}

static uint64_t max_growth(const struct sg_mempool_flight *flight)
{
    uint64_t size = flight->size_bytes, step = step_of(flight->device);
    if (flight->number == 0 || pools[flight->number].is_opaque) /* charged block by block */
        return size;
    uint64_t whole = (size + GRANULE_BYTES - 1) & ~(GRANULE_BYTES - 1);
    return size <= step ? step : whole < size ? size : whole;
}

/* Whether a free piece fits, after a new query. Releases the lock meanwhile. */
static bool has_headroom(const struct sg_mempool_flight *flight, struct sg_lock_state *lock)
{
    uint64_t reserved;
    const struct pool *pool = &pools[flight->number];
    if (pool->handle == NULL || pool->is_opaque || !pool->has_answered || !is_sound(pool) ||
        !sg_pieces_has(&pool->pieces, flight->size_bytes, flight->stream) ||
        !query_reserved(flight->number, lock, &reserved))
        return false;
    if (reserved != pools[flight->number].reserved_bytes)
        recharge(&pools[flight->number], reserved);
    pool = &pools[flight->number];
    return pool->handle != NULL && sg_pieces_has(&pool->pieces, flight->size_bytes, flight->stream);
}

static void signal_change(void)
{
    if (turn.waiting == 0)
        return;
    sg_fetch_add(&turn.changes, 1u);
    (void)sg_sys_futex(&turn.changes, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL);
}

/* Waits at most 100 ms for a change, with the lock released. False: the deadline has passed. */
static bool wait_for_change(struct sg_lock_state *lock, uint64_t deadline)
{
    const struct timespec step = {0, 100000000};
    if (sg_clock_ns(CLOCK_MONOTONIC) >= deadline)
        return false;
    uint32_t seen = sg_load(&turn.changes);
    turn.waiting++;
    sg_lock_release(&sg_cuda_lock, lock);
    (void)sg_sys_futex(&turn.changes, FUTEX_WAIT_PRIVATE, seen, &step);
    sg_lock_acquire(&sg_cuda_lock, lock);
    turn.waiting--;
    return true;
}

/* Counts the allocation as under way in its pool. */
static void start_flight(struct sg_mempool_flight *flight)
{
    struct pool *pool = &pools[flight->number];
    sg_thread_hold_cancel();
    sg_self.open.pool = flight->number;
    flight->is_alone = pool->flying++ == 0;
    if (flight->is_alone)
        pool->settled_bytes = pool->reserved_bytes;
    flight->stream = sg_pieces_stream_number(flight->key, true);
    flight->flights = ++pool->flights;
    flight->syncs_ended = syncs_ended;
    flight->growth_bytes = max_growth(flight);
}

/* Puts the growth in flight before another request can take the free piece unjudged. True: a free piece fits. */
static bool start_alone(struct sg_mempool_flight *flight, struct sg_request *request, struct sg_lock_state *lock)
{
    if (!flight->is_alone || pools[flight->number].is_opaque ||
        !sg_pieces_has(&pools[flight->number].pieces, flight->size_bytes, flight->stream))
        return false;
    sg_admission_fly(request, flight->growth_bytes);
    return has_headroom(flight, lock);
}

bool sg_mempool_begin(struct sg_mempool_flight *flight, struct sg_request *request)
{
    struct sg_lock_state lock;
    bool fits = false;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    uint64_t deadline = sg_clock_ns(CLOCK_MONOTONIC) + TURN_NS;
    flight->number = find(flight->handle);
    if (flight->number == 0)
        flight->number = add(flight->handle, flight->device, flight->domain);
    while (flight->number != 0 && turn.number == flight->number && wait_for_change(&lock, deadline))
        continue;
    if (flight->number == 0) {
        flight->growth_bytes = max_growth(flight);
    } else {
        start_flight(flight);
        if (pools[flight->number].unwanted_bytes == 0)
            fits = start_alone(flight, request, &lock);
    }
    sg_lock_release(&sg_cuda_lock, &lock);
    return fits;
}

void sg_mempool_judged(struct sg_mempool_flight *flight)
{
    struct sg_lock_state lock;
    flight->taken_bytes = flight->growth_bytes;
    if (flight->number == 0)
        return;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    sg_self.open.judged_bytes = flight->growth_bytes;
    pools[flight->number].judged_bytes += flight->growth_bytes;
    sg_lock_release(&sg_cuda_lock, &lock);
}

/* Ends what start_flight has begun. */
static void end_flight(void)
{
    struct sg_open_call *open = &sg_self.open;
    struct pool *pool = &pools[open->pool];
    if (open->pool == 0)
        return;
    pool->judged_bytes -= open->judged_bytes;
    open->judged_bytes = 0;
    open->pool = 0;
    pool->flying--;
    drop_if_gone(pool);
    signal_change();
    sg_thread_let_cancel();
}

bool sg_mempool_begin_turn(struct sg_mempool_flight *flight, struct sg_request *request)
{
    struct sg_lock_state lock;
    if (flight->number == 0)
        return false;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    uint64_t deadline = sg_clock_ns(CLOCK_MONOTONIC) + TURN_NS;
    end_flight(); /* or two requests that wait to be alone would wait for each other */
    while (turn.is_taken && wait_for_change(&lock, deadline))
        continue;
    bool has_turn = sg_self.open.has_turn = !turn.is_taken;
    turn.is_taken = true;
    flight->number = find(flight->handle);
    if (has_turn && flight->number != 0) {
        turn.number = flight->number;
        while (turn.number != 0 && pools[turn.number].flying != 0 && wait_for_change(&lock, deadline))
            continue;
    }
    flight->number = find(flight->handle);
    if (flight->number != 0)
        start_flight(flight);
    if (has_turn && (flight->number == 0 || !flight->is_alone))
        turn.number = 0; /* the deadline has passed, or the pool is gone */
    bool fits = flight->number != 0 && has_turn && start_alone(flight, request, &lock);
    signal_change();
    sg_lock_release(&sg_cuda_lock, &lock);
    return fits;
}

bool sg_mempool_may_pass(const struct sg_mempool_flight *flight)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    const struct pool *pool = &pools[flight->number];
    bool may_pass = flight->number != 0 && sg_self.open.has_turn && flight->is_alone && !pool->is_opaque &&
                    pool->unwanted_bytes == 0 && flight->size_bytes < step_of(flight->device) &&
                    pool->reserved_bytes >= pool->used_bytes &&
                    pool->reserved_bytes - pool->used_bytes >= flight->size_bytes;
    sg_lock_release(&sg_cuda_lock, &lock);
    return may_pass;
}

bool sg_mempool_begin_trim(const struct sg_mempool_flight *flight)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    struct pool *pool = &pools[flight->number];
    bool has_spare =
        flight->number != 0 && pool->handle != NULL && !pool->is_opaque && pool->reserved_bytes > pool->used_bytes;
    if (has_spare && sg_self.open.has_turn && flight->is_alone && pool->flying == 1) {
        pool->trimmed_bytes = pool->reserved_bytes - sg_pieces_sure_bytes(&pool->pieces);
    } else if (has_spare) { /* count as a synchronisation: growth may hide what the trim gives back */
        syncs += !sg_self.open.is_syncing;
        sg_self.open.is_syncing = true;
    }
    sg_lock_release(&sg_cuda_lock, &lock);
    return has_spare;
}

static void end_turn(void)
{
    if (!sg_self.open.has_turn)
        return;
    sg_self.open.has_turn = false;
    turn.is_taken = false;
    turn.number = 0;
    if (sg_self.open.pool != 0)
        pools[sg_self.open.pool].trimmed_bytes = 0;
    signal_change();
}

void sg_mempool_end_turn(void)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    end_turn();
    sg_lock_release(&sg_cuda_lock, &lock);
}

/* Learns the step from the growth that one small block alone has caused. */
static void learn_step(const struct sg_mempool_flight *flight)
{
    uint64_t size = flight->size_bytes, grown = flight->grown_bytes;
    if (grown >= size && (size < step_of(flight->device) || grown / 2 >= size))
        steps[flight->device] = grown;
}

/* True if the driver still has the block. Releases the lock during the query. */
static bool is_there(uint64_t address, struct sg_lock_state *lock)
{
    sg_lock_release(&sg_cuda_lock, lock);
    bool is_taken = sg_context_has_taken(address);
    sg_lock_acquire(&sg_cuda_lock, lock);
    return !is_taken;
}

static void charge_growth(struct sg_mempool_flight *flight, uint64_t address, struct sg_lock_state *lock)
{
    uint64_t reserved;
    uint32_t number = flight->number;
    activate(&pools[number]);
    pools[number].bookings++;
    pools[number].is_emptied = false;
    bool is_known = query_reserved(number, lock, &reserved);
    if (is_known && reserved < flight->size_bytes) { /* some drivers' counter stays at 0, or the block is gone */
        bool has_block = is_there(address, lock);
        is_known = pools[number].handle != NULL && query_reserved(number, lock, &reserved);
        pools[number].is_opaque |= has_block && is_known && reserved < flight->size_bytes;
    }
    struct pool *pool = &pools[number];
    if (pool->handle == NULL || pool->is_opaque)
        return;
    recharge(pool, is_known ? reserved : pool->reserved_bytes + sg_self.open.judged_bytes); /* until a query works */
    uint64_t own = sg_self.open.judged_bytes;
    uint64_t grown = pool->reserved_bytes - pool->settled_bytes;
    flight->taken_bytes = grown < own ? grown : own;
    flight->excess_bytes = grown > pool->judged_bytes ? grown - pool->judged_bytes : 0;
    flight->before_bytes = pool->reserved_bytes - flight->taken_bytes - flight->excess_bytes;
    pool->settled_bytes += flight->taken_bytes + flight->excess_bytes;
    if (flight->excess_bytes == 0)
        pool->unwanted_bytes = 0; /* later grants were judged with it charged */
    flight->grown_bytes = flight->is_alone && pool->flights == flight->flights ? grown : 0;
    learn_step(flight);
}

/* Charges the growth even if it will be refused: another thread's query of the pool would charge it meanwhile. */
void sg_mempool_book(struct sg_mempool_flight *flight, uint64_t address)
{
    struct sg_lock_state lock;
    flight->excess_bytes = flight->grown_bytes = 0;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    if (flight->number != 0 && !pools[flight->number].is_opaque)
        charge_growth(flight, address, &lock);
    sg_lock_release(&sg_cuda_lock, &lock);
}

/* True if no other thread has made pools shrink since the flight began. Otherwise growth may hide a shrink. */
static bool is_steady(const struct sg_mempool_flight *flight)
{
    return syncs == sg_self.open.is_syncing && syncs_ended == flight->syncs_ended;
}

/* Notes the new block, and the rest of its growth as a free piece. If the pool may have shrunk meanwhile by as much as
 * it has grown, its size shows neither: then empty extents may be gone, even the block's, and are forgotten. */
static void note_block(struct pool *pool, const struct sg_mempool_flight *flight, uint64_t address, uint64_t size)
{
    uint64_t grown = is_steady(flight) ? flight->grown_bytes : 0;
    if (pool->handle == NULL)
        return;
    if (!is_steady(flight))
        sg_pieces_forget_empty(&pool->pieces, false);
    sg_pieces_take(&pool->pieces, address, size, grown);
    if (grown > size)
        sg_pieces_add(&pool->pieces, address + size, grown - size);
}

/* The freed block becomes a known piece only if the pool has certainly not shrunk since it grew for the block. */
void sg_mempool_book_refused(const struct sg_mempool_flight *flight, uint64_t address)
{
    struct sg_lock_state lock;
    uint64_t reserved, size = (flight->size_bytes + LOW_MASK) & ~(uint64_t)LOW_MASK;
    uint64_t grown = flight->before_bytes + flight->taken_bytes + flight->excess_bytes;
    uint32_t number = flight->number;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    bool is_known = number != 0 && query_reserved(number, &lock, &reserved);
    struct pool *pool = &pools[number];
    if (is_known)
        recharge(pool, reserved);
    if (is_known && reserved == grown && flight->grown_bytes != 0 && pool->flights == flight->flights &&
        is_steady(flight)) {
        note_block(pool, flight, address, size);
        uint32_t begun = sg_pieces_begin_free(&pool->pieces, address, size, flight->stream);
        sg_pieces_end_free(&pool->pieces, address, size, begun, true);
    }
    if (number != 0 && pool->reserved_bytes > flight->before_bytes)
        pool->unwanted_bytes += pool->reserved_bytes - flight->before_bytes;
    sg_lock_release(&sg_cuda_lock, &lock);
}

uint64_t sg_mempool_add_block(const struct sg_mempool_flight *flight, uint64_t address)
{
    struct sg_lock_state lock;
    uint64_t block = 0, size = (flight->size_bytes + LOW_MASK) & ~(uint64_t)LOW_MASK;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    uint32_t number = flight->number;
    struct pool *pool = &pools[number];
    if (number != 0 && !pool->is_opaque) {
        pool->blocks++;
        pool->used_bytes += size;
        block = sg_block(size, pool->domain, pool->device) | SG_BLOCK_POOLED |
                (uint64_t)(number >> LOW_BITS) << SG_BLOCK_SLOT_SHIFT | (number & LOW_MASK);
        note_block(pool, flight, address, size);
    }
    sg_lock_release(&sg_cuda_lock, &lock);
    return block;
}

void sg_mempool_end(void)
{
    struct sg_open_call *open = &sg_self.open;
    struct sg_lock_state lock;
    if (SG_LIKELY((open->pool | open->asked_pool) == 0 && !open->has_turn && !open->is_syncing))
        return;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    end_query();
    end_turn();
    end_flight();
    syncs -= open->is_syncing;
    syncs_ended += open->is_syncing;
    open->is_syncing = false;
    sg_lock_release(&sg_cuda_lock, &lock);
}

/* ---- frees and synchronisations ---------------------------------------------------------------------------------- */

/* The pool of a block that keeps the number in use; NULL if the pool's free pieces are not tracked. */
static struct pool *pool_of_block(uint64_t block)
{
    struct pool *pool = &pools[number_in(block)];
    return (block & SG_BLOCK_POOLED) != 0 && pool->is_used && pool->handle != NULL && !pool->is_opaque ? pool : NULL;
}

void sg_mempool_begin_free(uint64_t block, uint64_t address, uint64_t key)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    struct pool *pool = pool_of_block(block);
    uint32_t stream = key == SG_SYNC_NOTHING ? SG_STREAM_DONE : sg_pieces_stream_number(key, true);
    if (pool != NULL)
        sg_self.open.free_begun = sg_pieces_begin_free(&pool->pieces, address, sg_block_size(block), stream);
    sg_lock_release(&sg_cuda_lock, &lock);
}

void sg_mempool_end_free(uint64_t block, uint64_t address, bool is_freed)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    struct pool *pool = pool_of_block(block);
    if (pool != NULL)
        sg_pieces_end_free(&pool->pieces, address, sg_block_size(block), sg_self.open.free_begun, is_freed);
    sg_lock_release(&sg_cuda_lock, &lock);
}

struct sg_mempool_sync sg_mempool_begin_sync(uint64_t key)
{
    struct sg_mempool_sync sync = {.key = key};
    struct sg_lock_state lock;
    if (sg_load_acquire(&active_count) == 0)
        return sync;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    uint32_t stream = key != SG_SYNC_CONTEXT ? sg_pieces_stream_number(key, false) : 0;
    sync.frees = sg_pieces_stream_frees(stream);
    syncs += !sg_self.open.is_syncing;
    sg_self.open.is_syncing = true;
    sg_lock_release(&sg_cuda_lock, &lock);
    return sync;
}

/* Does nothing if a free in the stream has ended meanwhile: that block may be in use and cannot be told apart. */
static void mark_done(const struct sg_mempool_sync *sync, uint32_t device)
{
    uint32_t stream = sync->key != SG_SYNC_CONTEXT ? sg_pieces_stream_number(sync->key, false) : 0;
    bool is_seen =
        sync->key != SG_SYNC_NOTHING && stream != SG_STREAM_UNKNOWN && sg_pieces_stream_frees(stream) == sync->frees;
    for (uint32_t number = 1; is_seen && number < pool_capacity; number++)
        if (pools[number].is_used && (stream != 0 || pools[number].device == device))
            sg_pieces_see_done(&pools[number].pieces, stream != 0 ? stream : SG_STREAM_UNKNOWN);
}

void sg_mempool_end_sync(const struct sg_mempool_sync *sync, uint32_t device, bool is_done)
{
    struct sg_lock_state lock;
    if (sg_self.open.is_syncing) {
        sg_lock_acquire(&sg_cuda_lock, &lock);
        if (is_done) /* before the refresh, which then knows better which pieces may be gone */
            mark_done(sync, device);
        sg_lock_release(&sg_cuda_lock, &lock);
    }
    if (is_done)
        sg_mempool_memory_refresh();
    sg_mempool_end();
}

/* Forgets the handle before the call: the driver may give it to a new pool before the call returns. */
uint32_t sg_mempool_begin_destroy(CUmemoryPool handle)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    uint32_t number = find(handle);
    if (number != 0) {
        pools[number].handle = NULL;
        pools[number].blocks++; /* or a free of the last block would release the number meanwhile */
        wait_for_queries(number, &lock);
    }
    sg_lock_release(&sg_cuda_lock, &lock);
    return number;
}

void sg_mempool_end_destroy(uint32_t number, CUmemoryPool handle, CUresult result)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    pools[number].blocks--;
    if (result != CUDA_SUCCESS)
        pools[number].handle = handle;
    drop_if_gone(&pools[number]);
    sg_lock_release(&sg_cuda_lock, &lock);
}

/* ---- refreshing the charges -------------------------------------------------------------------------------------- */

void sg_mempool_memory_refresh(void)
{
    struct sg_lock_state lock;
    if (sg_load_acquire(&active_count) == 0)
        return;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    sg_store_release(&is_outdated, 0u);
    for (uint32_t number = 1; number < pool_capacity; number++) {
        const struct pool *pool = &pools[number];
        uint64_t reserved;
        if (pool->is_used && pool->is_active && !pool->is_opaque && pool->handle != NULL &&
            query_reserved(number, &lock, &reserved))
            recharge(&pools[number], reserved);
    }
    sg_lock_release(&sg_cuda_lock, &lock);
}

void sg_mempool_memory_catch_up(void)
{
    if (SG_UNLIKELY(sg_load_acquire(&is_outdated) != 0))
        sg_mempool_memory_refresh();
}

void sg_mempool_block_gone(uint64_t block)
{
    struct sg_lock_state lock;
    uint64_t reserved, size = sg_block_size(block);
    uint32_t number = number_in(block);
    sg_lock_acquire(&sg_cuda_lock, &lock);
    if (pools[number].handle != NULL && !pools[number].is_opaque &&
        query_reserved(number, &lock, &reserved)) /* while the block keeps the number in use */
        recharge(&pools[number], reserved);
    struct pool *pool = &pools[number];
    pool->blocks -= pool->blocks != 0;
    pool->used_bytes -= size < pool->used_bytes ? size : pool->used_bytes;
    if (pool->is_opaque && pool->blocks == 0) /* charged by an earlier query */
        recharge(pool, 0);
    drop_if_gone(pool);
    sg_lock_release(&sg_cuda_lock, &lock);
}

/* A living pool is queried. The blocks of a destroyed pool are gone if the context existed and has ended. */
static bool is_emptied(uint32_t number, uint32_t device, bool has_ended, struct sg_lock_state *lock)
{
    uint64_t used = 1, bookings = pools[number].bookings;
    if (!pools[number].is_used || pools[number].blocks == 0)
        return false;
    if (pools[number].handle == NULL && !has_ended)
        return pools[number].is_emptied; /* another thread may be removing its blocks now */
    if (pools[number].handle == NULL)
        return pools[number].domain == SG_DOMAIN_DEVICE && pools[number].device == device;
    return query(number, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, lock, &used) == CUDA_SUCCESS && used == 0 &&
           pools[number].bookings == bookings;
}

uint32_t sg_mempool_emptied(uint32_t device, bool has_ended)
{
    struct sg_lock_state lock;
    uint32_t emptied = 0;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    for (uint32_t number = 1; number < pool_capacity; number++) {
        bool is_now = is_emptied(number, device, has_ended, &lock);
        pools[number].is_emptied = is_now;
        if (is_now)
            sg_pieces_forget(&pools[number].pieces);
        emptied += is_now;
    }
    sg_lock_release(&sg_cuda_lock, &lock);
    return emptied;
}

bool sg_mempool_is_emptied(uint64_t block)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    bool is_emptied = pools[number_in(block)].is_emptied;
    sg_lock_release(&sg_cuda_lock, &lock);
    return is_emptied;
}
