/*
 * mempool.c - see mempool.h.
 */
#include "hooks/cuda/mempool.h"

#include "account/ledger.h"
#include "account/tracker.h"
#include "base/compiler.h"
#include "account/pool_pieces.h"
#include "base/syscall.h"
#include "hooks/cuda/lock.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>

struct pool {
    CUmemoryPool handle;     /* NULL: destroyed, and may not be asked any more; its memory goes with its last block */
    uint64_t reserved_bytes; /* as charged */
    uint64_t unwanted_bytes;
    uint64_t landed_bytes; /* of what is reserved, what came by allocations that are over */
    uint64_t judged_bytes; /* so much it may grow by those under way */
    uint64_t blocks;
    uint64_t used_bytes;    /* by them */
    uint64_t flights;       /* allocations ever begun */
    uint64_t questions;     /* ever begun; each has its number */
    uint64_t answered;      /* the latest of them whose answer is charged */
    uint64_t bookings;      /* allocations from it */
    uint64_t trimmed_bytes; /* at most so much is reserved when a trim is over (sg_mempool_begin_trim); 0: none */
    uint32_t asking;        /* questions under way */
    uint32_t flying;        /* allocations under way */
    uint32_t device;
    enum sg_domain domain; /* since CUDA 13 a pool may be managed, or sit on the host */
    bool is_used;
    bool is_active;  /* something was allocated from it */
    bool is_mute;    /* its driver does not tell what it has reserved: its blocks count one by one */
    bool has_told;   /* it has answered before */
    bool is_emptied; /* sg_mempool_emptied */
    struct sg_pieces pieces;
};

/* By number, from 1 on. Under sg_vmm_lock; moves when it grows. */
static struct pool *pools;
static uint32_t pool_room;
static uint32_t active_count; /* (atomic) pools that something was allocated from */
static uint32_t is_behind;    /* (atomic) a query failed: the books of some pool may be out of date */
static uint32_t syncs;        /* calls under way by which pools give back (struct sg_mempool_sync) */
static uint64_t syncs_ended;  /* those that are over */
static uint32_t last_answers; /* (atomic) futex: counts the answers of pools that are being destroyed */

/* The step by which a pool of a device grows; 0: as real drivers are known to do. Under sg_vmm_lock. */
static uint64_t steps[SG_DEVICE_CAPACITY];
#define FIRST_STEP_BYTES (UINT64_C(32) << 20)
#define GRANULE_BYTES (UINT64_C(2) << 20)

#define TURN_NS UINT64_C(3000000000)

/* One request at a time, of all pools. Under sg_vmm_lock. */
static struct {
    bool is_taken;
    uint32_t clears;  /* the pool it waits to be alone in, or is; 0: none */
    uint32_t waiting; /* who waits for a change */
    uint32_t changes; /* (atomic) futex */
} turn;

/* In a table value: the lower bits lie in those of the size that do not matter, for blocks are multiples of them. */
enum { LOW_BITS = 9, LOW_MASK = (1 << LOW_BITS) - 1, NUMBERS = 1 << (LOW_BITS + 5) };
_Static_assert(SG_BLOCK_POOLED_UNIT == LOW_MASK + 1 && SG_PIECES_UNIT == LOW_MASK + 1, "as the driver rounds blocks");

static uint32_t number_in(uint64_t block)
{
    return (uint32_t)(block >> SG_BLOCK_SLOT_SHIFT & 31) << LOW_BITS | (uint32_t)(block & LOW_MASK);
}

/* ---- the list; all under the lock -------------------------------------------------------------------------------- */

static uint32_t find(CUmemoryPool handle)
{
    for (uint32_t number = 1; handle != NULL && number < pool_room; number++)
        if (pools[number].is_used && pools[number].handle == handle)
            return number;
    return 0;
}

static bool grow_list(void)
{
    uint32_t room = pool_room != 0 ? 2 * pool_room : 64;
    struct pool *list = room <= NUMBERS ? sg_sys_mmap(NULL, room * sizeof *list, PROT_READ | PROT_WRITE,
                                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                        : NULL;
    if (list == NULL || sg_is_error(list)) {
        sg_ledger_count_fault();
        return false;
    }
    struct pool *before = pools;
    uint32_t before_room = pool_room;
    if (before != NULL)
        memcpy(list, before, before_room * sizeof *list);
    pools = list;
    pool_room = room;
    if (before != NULL) /* last: a process that is forked meanwhile must find one of the two lists */
        (void)sg_sys_munmap(before, before_room * sizeof *list);
    return true;
}

static uint32_t add(CUmemoryPool handle, uint32_t device, enum sg_domain domain)
{
    uint32_t number = 1;
    while (number < pool_room && pools[number].is_used)
        number++;
    if (handle == NULL || (number >= pool_room && !grow_list()))
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

/* Whether the pool has as much as is known to be free: else it has given back and grown again unseen. */
static bool is_sound(const struct pool *pool)
{
    return pool->used_bytes + sg_pieces_bytes(&pool->pieces) <= pool->reserved_bytes;
}

/* After it has given memory back. If it was to give back all it can, and what it gave back beyond what is certain is
 * less than any extent without a block, then what busy streams have freed is still there. */
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
    if (pool->landed_bytes > reserved)
        pool->landed_bytes = reserved;
    if (pool->unwanted_bytes != 0)
        pool->unwanted_bytes = reserved > wanted ? reserved - wanted : 0;
}

/* A destroyed pool without blocks is gone. */
static void drop_if_gone(struct pool *pool)
{
    if (!pool->is_used || pool->handle != NULL || pool->blocks != 0 || pool->asking != 0 || pool->flying != 0)
        return;
    recharge(pool, 0);
    if (pool->is_active)
        sg_fetch_sub(&active_count, 1u);
    sg_pieces_forget(&pool->pieces);
    pool->is_used = false;
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

static void end_question(void)
{
    struct pool *pool = &pools[sg_self.open.asked_pool];
    if (sg_self.open.asked_pool == 0)
        return;
    sg_self.open.asked_pool = 0;
    pool->asking--;
    if (pool->handle == NULL) {
        drop_if_gone(pool);
        sg_fetch_add(&last_answers, 1u);
        (void)sg_sys_futex(&last_answers, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL);
    }
}

/* Releases the lock while the driver is asked. The pool keeps its number and is not destroyed (await_answers). */
static CUresult ask(uint32_t number, CUmemPool_attribute attribute, struct sg_lock_state *lock, uint64_t *bytes)
{
    SG_DRIVER(get, cuMemPoolGetAttribute);
    CUmemoryPool handle = pools[number].handle;
    cuuint64_t value = 0;
    pools[number].asking++;
    sg_self.open.asked_pool = number;
    sg_lock_release(&sg_vmm_lock, lock);
    uint32_t layers = sg_cuda_go_inside();
    CUresult result = get != NULL ? get(handle, attribute, &value) : CUDA_ERROR_NOT_SUPPORTED;
    sg_self.layers = layers;
    sg_lock_acquire(&sg_vmm_lock, lock);
    end_question();
    if (result == CUDA_SUCCESS)
        *bytes = value;
    return result;
}

/* What it has reserved. Of several who ask at once the one who asked last is told: all that was done before is in that
 * answer, and whoever does more asks once more; the others get what is charged by then. False: it did not tell, and is
 * to be asked again. */
static bool ask_reserve(uint32_t number, struct sg_lock_state *lock, uint64_t *reserved)
{
    uint64_t question = ++pools[number].questions;
    CUresult result = ask(number, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, lock, reserved);
    struct pool *pool = &pools[number];
    if (pool->handle == NULL) /* destroyed meanwhile: its memory goes with its last block */
        return false;
    if (result == CUDA_SUCCESS)
        pool->has_told = true;
    else if (!pool->has_told && (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_INVALID_VALUE))
        pool->is_mute = true; /* so drivers before CUDA 11.3 */
    else
        sg_store_release(&is_behind, 1u);
    if (result == CUDA_SUCCESS && question > pool->answered)
        pool->answered = question;
    else
        *reserved = pool->reserved_bytes;
    return result == CUDA_SUCCESS;
}

/* Waits, for a bounded time, for questions to a pool that the program destroys: the driver may make them wait for us. */
static void await_answers(uint32_t number, struct sg_lock_state *lock)
{
    const uint64_t deadline = sg_clock_ns(CLOCK_MONOTONIC) + UINT64_C(5000000000);
    const struct timespec step = {0, 100000000};
    while (pools[number].asking != 0 && sg_clock_ns(CLOCK_MONOTONIC) < deadline) {
        uint32_t seen = sg_load(&last_answers);
        sg_lock_release(&sg_vmm_lock, lock);
        (void)sg_sys_futex(&last_answers, FUTEX_WAIT_PRIVATE, seen, &step);
        sg_lock_acquire(&sg_vmm_lock, lock);
    }
}

void sg_mempool_refork(void)
{
    for (uint32_t number = 1; number < pool_room; number++) { /* those threads are the parent's */
        pools[number].asking = pools[number].flying = 0;
        pools[number].judged_bytes = pools[number].trimmed_bytes = 0;
    }
    syncs = 0;
    turn.is_taken = false;
    turn.clears = turn.waiting = 0;
}

/* ---- for hooks --------------------------------------------------------------------------------------------------- */

struct sg_mempool_view sg_mempool_memory_of(CUmemoryPool handle)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    uint32_t number = find(handle);
    struct sg_mempool_view view = {.domain = SG_DOMAIN_DEVICE};
    if (number != 0)
        view = (struct sg_mempool_view){pools[number].domain, pools[number].device, true, pools[number].unwanted_bytes};
    sg_lock_release(&sg_vmm_lock, &lock);
    return view;
}

void sg_mempool_learn(CUmemoryPool handle, uint32_t device, enum sg_domain domain)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    if (find(handle) == 0)
        (void)add(handle, device, domain);
    sg_lock_release(&sg_vmm_lock, &lock);
}

/* ---- an allocation ----------------------------------------------------------------------------------------------- */

/* A small block makes its pool grow by a step, from which the next ones are cut. */
static uint64_t step_of(uint32_t device)
{
    return steps[device] != 0 ? steps[device] : FIRST_STEP_BYTES;
}

static uint64_t most_growth(const struct sg_mempool_flight *flight)
{
    uint64_t size = flight->size_bytes, step = step_of(flight->device);
    if (flight->number == 0 || pools[flight->number].is_mute) /* counted block by block */
        return size;
    uint64_t whole = (size + GRANULE_BYTES - 1) & ~(GRANULE_BYTES - 1);
    return size <= step ? step : whole < size ? size : whole;
}

/* Whether its room is there. The lock is let go for a question. */
static bool has_headroom(const struct sg_mempool_flight *flight, struct sg_lock_state *lock)
{
    uint64_t reserved;
    const struct pool *pool = &pools[flight->number];
    if (pool->handle == NULL || pool->is_mute || !pool->has_told || !is_sound(pool) ||
        !sg_pieces_has(&pool->pieces, flight->size_bytes, flight->stream) ||
        !ask_reserve(flight->number, lock, &reserved))
        return false;
    if (reserved != pools[flight->number].reserved_bytes)
        recharge(&pools[flight->number], reserved);
    pool = &pools[flight->number];
    return pool->handle != NULL && sg_pieces_has(&pool->pieces, flight->size_bytes, flight->stream);
}

static void tell_change(void)
{
    if (turn.waiting == 0)
        return;
    sg_fetch_add(&turn.changes, 1u);
    (void)sg_sys_futex(&turn.changes, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL);
}

/* False: it is too late. */
static bool await_change(struct sg_lock_state *lock, uint64_t deadline)
{
    const struct timespec step = {0, 100000000};
    if (sg_clock_ns(CLOCK_MONOTONIC) >= deadline)
        return false;
    uint32_t seen = sg_load(&turn.changes);
    turn.waiting++;
    sg_lock_release(&sg_vmm_lock, lock);
    (void)sg_sys_futex(&turn.changes, FUTEX_WAIT_PRIVATE, seen, &step);
    sg_lock_acquire(&sg_vmm_lock, lock);
    turn.waiting--;
    return true;
}

/* From here on it is under way. */
static void take_off(struct sg_mempool_flight *flight)
{
    struct pool *pool = &pools[flight->number];
    sg_thread_hold_cancel();
    sg_self.open.pool = flight->number;
    flight->is_alone = pool->flying++ == 0;
    if (flight->is_alone)
        pool->landed_bytes = pool->reserved_bytes;
    flight->stream = sg_stream_number(flight->key, true);
    flight->flights = ++pool->flights;
    flight->syncs_ended = syncs_ended;
    flight->growth_bytes = most_growth(flight);
}

/* Before anybody else can be judged who might take its room. True: that is there. */
static bool fly_alone(struct sg_mempool_flight *flight, struct sg_request *request, struct sg_lock_state *lock)
{
    if (!flight->is_alone || pools[flight->number].is_mute ||
        !sg_pieces_has(&pools[flight->number].pieces, flight->size_bytes, flight->stream))
        return false;
    sg_admission_fly(request, flight->growth_bytes);
    return has_headroom(flight, lock);
}

bool sg_mempool_begin(struct sg_mempool_flight *flight, struct sg_request *request)
{
    struct sg_lock_state lock;
    bool is_there = false;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    uint64_t deadline = sg_clock_ns(CLOCK_MONOTONIC) + TURN_NS;
    flight->number = find(flight->handle);
    if (flight->number == 0)
        flight->number = add(flight->handle, flight->device, flight->domain);
    while (flight->number != 0 && turn.clears == flight->number && await_change(&lock, deadline))
        continue;
    if (flight->number == 0) {
        flight->growth_bytes = most_growth(flight);
    } else {
        take_off(flight);
        if (pools[flight->number].unwanted_bytes == 0)
            is_there = fly_alone(flight, request, &lock);
        const struct pool *pool = &pools[flight->number];
        flight->has_headroom = !flight->is_alone && sg_pieces_has(&pool->pieces, flight->size_bytes, flight->stream);
    }
    sg_lock_release(&sg_vmm_lock, &lock);
    return is_there;
}

void sg_mempool_judged(struct sg_mempool_flight *flight)
{
    struct sg_lock_state lock;
    flight->taken_bytes = flight->growth_bytes;
    if (flight->number == 0)
        return;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    sg_self.open.judged_bytes = flight->growth_bytes;
    pools[flight->number].judged_bytes += flight->growth_bytes;
    sg_lock_release(&sg_vmm_lock, &lock);
}

/* It is under way no more. */
static void land(void)
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
    tell_change();
    sg_thread_let_cancel();
}

bool sg_mempool_begin_turn(struct sg_mempool_flight *flight, struct sg_request *request)
{
    struct sg_lock_state lock;
    if (flight->number == 0)
        return false;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    uint64_t deadline = sg_clock_ns(CLOCK_MONOTONIC) + TURN_NS;
    land(); /* two that wait to be alone must not wait for each other */
    while (turn.is_taken && await_change(&lock, deadline))
        continue;
    bool has_turn = sg_self.open.has_turn = !turn.is_taken;
    turn.is_taken = true;
    flight->number = find(flight->handle);
    if (has_turn && flight->number != 0) {
        turn.clears = flight->number;
        while (turn.clears != 0 && pools[turn.clears].flying != 0 && await_change(&lock, deadline))
            continue;
    }
    flight->number = find(flight->handle);
    if (flight->number != 0)
        take_off(flight);
    if (has_turn && (flight->number == 0 || !flight->is_alone))
        turn.clears = 0; /* it is too late, or the pool is gone */
    bool is_there = flight->number != 0 && has_turn && fly_alone(flight, request, &lock);
    tell_change();
    sg_lock_release(&sg_vmm_lock, &lock);
    return is_there;
}

bool sg_mempool_may_pass(const struct sg_mempool_flight *flight)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    const struct pool *pool = &pools[flight->number];
    bool may_pass = flight->number != 0 && sg_self.open.has_turn && flight->is_alone && !pool->is_mute &&
                    pool->unwanted_bytes == 0 && flight->size_bytes < step_of(flight->device) &&
                    pool->reserved_bytes >= pool->used_bytes &&
                    pool->reserved_bytes - pool->used_bytes >= flight->size_bytes;
    sg_lock_release(&sg_vmm_lock, &lock);
    return may_pass;
}

bool sg_mempool_begin_trim(const struct sg_mempool_flight *flight)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct pool *pool = &pools[flight->number];
    bool has_spare =
        flight->number != 0 && pool->handle != NULL && !pool->is_mute && pool->reserved_bytes > pool->used_bytes;
    if (has_spare && sg_self.open.has_turn && flight->is_alone && pool->flying == 1) {
        pool->trimmed_bytes = pool->reserved_bytes - sg_pieces_sure_bytes(&pool->pieces);
    } else if (has_spare) { /* as a synchronisation: growth may hide what it gives back */
        syncs += !sg_self.open.is_syncing;
        sg_self.open.is_syncing = true;
    }
    sg_lock_release(&sg_vmm_lock, &lock);
    return has_spare;
}

static void end_turn(void)
{
    if (!sg_self.open.has_turn)
        return;
    sg_self.open.has_turn = false;
    turn.is_taken = false;
    turn.clears = 0;
    if (sg_self.open.pool != 0)
        pools[sg_self.open.pool].trimmed_bytes = 0;
    tell_change();
}

void sg_mempool_end_turn(void)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    end_turn();
    sg_lock_release(&sg_vmm_lock, &lock);
}

/* Learns the step from what a small block made its pool grow, without what is reserved or judged by others. */
static void learn_step(const struct sg_mempool_flight *flight)
{
    uint64_t size = flight->size_bytes, grown = flight->grown_bytes;
    if (grown >= size && (size < step_of(flight->device) || grown / 2 >= size))
        steps[flight->device] = grown;
}

static void book(struct sg_mempool_flight *flight, struct sg_lock_state *lock)
{
    uint64_t reserved;
    uint32_t number = flight->number;
    activate(&pools[number]);
    pools[number].bookings++;
    pools[number].is_emptied = false;
    bool has_told = ask_reserve(number, lock, &reserved);
    struct pool *pool = &pools[number];
    if (pool->handle == NULL)
        return;
    if (has_told && reserved < flight->size_bytes) /* its block is there: some drivers' counter stands at 0 */
        pool->is_mute = true;
    if (pool->is_mute)
        return;
    recharge(pool, has_told ? reserved : pool->reserved_bytes + sg_self.open.judged_bytes); /* until it tells */
    uint64_t own = sg_self.open.judged_bytes;
    uint64_t grown = pool->reserved_bytes - pool->landed_bytes;
    flight->taken_bytes = grown < own ? grown : own;
    flight->excess_bytes = grown > pool->judged_bytes ? grown - pool->judged_bytes : 0;
    flight->before_bytes = pool->reserved_bytes - flight->taken_bytes - flight->excess_bytes;
    pool->landed_bytes += flight->taken_bytes + flight->excess_bytes;
    if (flight->excess_bytes == 0)
        pool->unwanted_bytes = 0; /* what has been granted since, was judged with it */
    flight->grown_bytes = flight->is_alone && pool->flights == flight->flights ? grown : 0;
    learn_step(flight);
}

/* At once, though it may still be too much: others may ask the pool meanwhile, and would book it as well. */
void sg_mempool_book(struct sg_mempool_flight *flight)
{
    struct sg_lock_state lock;
    flight->excess_bytes = flight->grown_bytes = 0;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    if (flight->number != 0 && !pools[flight->number].is_mute)
        book(flight, &lock);
    sg_lock_release(&sg_vmm_lock, &lock);
}

/* Whether no other thread has made pools give back since the flight began: then growth hides nothing that has gone. */
static bool is_steady(const struct sg_mempool_flight *flight)
{
    return syncs == sg_self.open.is_syncing && syncs_ended == flight->syncs_ended;
}

/* A block of this flight lies there: it, and the rest of what the pool has grown for it. If the pool may have given
 * back as much meanwhile as it has grown, it shows neither: then what is empty may be gone, even where the block lies. */
static void note_place(struct pool *pool, const struct sg_mempool_flight *flight, uint64_t address, uint64_t size)
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

/* Its room is known only if it is certain that nothing of the pool has gone since it grew for this block. */
void sg_mempool_book_refused(const struct sg_mempool_flight *flight, uint64_t address)
{
    struct sg_lock_state lock;
    uint64_t reserved, size = (flight->size_bytes + LOW_MASK) & ~(uint64_t)LOW_MASK;
    uint64_t grown = flight->before_bytes + flight->taken_bytes + flight->excess_bytes;
    uint32_t number = flight->number;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    bool has_told = number != 0 && ask_reserve(number, &lock, &reserved);
    struct pool *pool = &pools[number];
    if (has_told)
        recharge(pool, reserved);
    if (has_told && reserved == grown && flight->grown_bytes != 0 && pool->flights == flight->flights &&
        is_steady(flight)) {
        note_place(pool, flight, address, size);
        uint32_t begun = sg_pieces_begin_free(&pool->pieces, address, size, flight->stream);
        sg_pieces_end_free(&pool->pieces, address, size, begun, true);
    }
    if (number != 0 && pool->reserved_bytes > flight->before_bytes)
        pool->unwanted_bytes += pool->reserved_bytes - flight->before_bytes;
    sg_lock_release(&sg_vmm_lock, &lock);
}

uint64_t sg_mempool_add_block(const struct sg_mempool_flight *flight, uint64_t address)
{
    struct sg_lock_state lock;
    uint64_t block = 0, size = (flight->size_bytes + LOW_MASK) & ~(uint64_t)LOW_MASK;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    uint32_t number = flight->number;
    struct pool *pool = &pools[number];
    if (number != 0 && !pool->is_mute) {
        pool->blocks++;
        pool->used_bytes += size;
        block = sg_block(size, pool->domain, pool->device) | SG_BLOCK_POOLED |
                (uint64_t)(number >> LOW_BITS) << SG_BLOCK_SLOT_SHIFT | (number & LOW_MASK);
        note_place(pool, flight, address, size);
    }
    sg_lock_release(&sg_vmm_lock, &lock);
    return block;
}

void sg_mempool_end(void)
{
    struct sg_open_call *open = &sg_self.open;
    struct sg_lock_state lock;
    if (SG_LIKELY((open->pool | open->asked_pool) == 0 && !open->has_turn && !open->is_syncing))
        return;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    end_question();
    end_turn();
    land();
    syncs -= open->is_syncing;
    syncs_ended += open->is_syncing;
    open->is_syncing = false;
    sg_lock_release(&sg_vmm_lock, &lock);
}

/* ---- frees and synchronisations ---------------------------------------------------------------------------------- */

/* The pool of a block that holds the number; NULL if its room is not kept. */
static struct pool *pool_with_room(uint64_t block)
{
    struct pool *pool = &pools[number_in(block)];
    return (block & SG_BLOCK_POOLED) != 0 && pool->is_used && pool->handle != NULL && !pool->is_mute ? pool : NULL;
}

void sg_mempool_begin_free(uint64_t block, uint64_t address)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct pool *pool = pool_with_room(block);
    if (pool != NULL)
        sg_self.open.free_begun = sg_pieces_begin_free(&pool->pieces, address, sg_block_size(block), SG_STREAM_DONE);
    sg_lock_release(&sg_vmm_lock, &lock);
}

void sg_mempool_free_in(uint64_t block, uint64_t address, uint64_t key)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct pool *pool = pool_with_room(block);
    uint32_t stream = sg_stream_number(key, true);
    if (pool != NULL)
        sg_self.open.free_begun = sg_pieces_begin_free(&pool->pieces, address, sg_block_size(block), stream);
    sg_lock_release(&sg_vmm_lock, &lock);
}

void sg_mempool_end_free(uint64_t block, uint64_t address, bool is_freed)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct pool *pool = pool_with_room(block);
    if (pool != NULL)
        sg_pieces_end_free(&pool->pieces, address, sg_block_size(block), sg_self.open.free_begun, is_freed);
    sg_lock_release(&sg_vmm_lock, &lock);
}

struct sg_mempool_sync sg_mempool_begin_sync(uint64_t key)
{
    struct sg_mempool_sync sync = {.key = key};
    struct sg_lock_state lock;
    if (sg_load_acquire(&active_count) == 0)
        return sync;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    uint32_t stream = key != SG_SYNC_CONTEXT ? sg_stream_number(key, false) : 0;
    sync.frees = sg_stream_frees(stream);
    syncs += !sg_self.open.is_syncing;
    sg_self.open.is_syncing = true;
    sg_lock_release(&sg_vmm_lock, &lock);
    return sync;
}

/* Blocks that another thread has freed meanwhile may still be in use, whenever it began, and are not told apart. */
static void see_done(const struct sg_mempool_sync *sync, uint32_t device)
{
    uint32_t stream = sync->key != SG_SYNC_CONTEXT ? sg_stream_number(sync->key, false) : 0;
    bool is_seen =
        sync->key != SG_SYNC_NOTHING && stream != SG_STREAM_UNKNOWN && sg_stream_frees(stream) == sync->frees;
    for (uint32_t number = 1; is_seen && number < pool_room; number++)
        if (pools[number].is_used && (stream != 0 || pools[number].device == device))
            sg_pieces_see_done(&pools[number].pieces, stream != 0 ? stream : SG_STREAM_UNKNOWN);
}

void sg_mempool_end_sync(const struct sg_mempool_sync *sync, uint32_t device, bool is_done)
{
    struct sg_lock_state lock;
    if (sg_self.open.is_syncing) {
        sg_lock_acquire(&sg_vmm_lock, &lock);
        if (is_done) /* first: then it is known better what a pool can have given back */
            see_done(sync, device);
        sg_lock_release(&sg_vmm_lock, &lock);
    }
    if (is_done)
        sg_mempool_memory_refresh();
    sg_mempool_end();
}

/* The handle is forgotten before the call: the driver may give it to a new pool before that returns. */
uint32_t sg_mempool_begin_destroy(CUmemoryPool handle)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    uint32_t number = find(handle);
    if (number != 0) {
        pools[number].handle = NULL;
        pools[number].blocks++; /* or the last block could take the number with it meanwhile */
        await_answers(number, &lock);
    }
    sg_lock_release(&sg_vmm_lock, &lock);
    return number;
}

void sg_mempool_end_destroy(uint32_t number, CUmemoryPool handle, CUresult result)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    pools[number].blocks--;
    if (result != CUDA_SUCCESS)
        pools[number].handle = handle;
    drop_if_gone(&pools[number]);
    sg_lock_release(&sg_vmm_lock, &lock);
}

/* ---- for everybody ----------------------------------------------------------------------------------------------- */

void sg_mempool_memory_refresh(void)
{
    struct sg_lock_state lock;
    if (sg_load_acquire(&active_count) == 0)
        return;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    sg_store_release(&is_behind, 0u);
    for (uint32_t number = 1; number < pool_room; number++) {
        const struct pool *pool = &pools[number];
        uint64_t reserved;
        if (pool->is_used && pool->is_active && !pool->is_mute && pool->handle != NULL &&
            ask_reserve(number, &lock, &reserved))
            recharge(&pools[number], reserved);
    }
    sg_lock_release(&sg_vmm_lock, &lock);
}

void sg_mempool_memory_catch_up(void)
{
    if (SG_UNLIKELY(sg_load_acquire(&is_behind) != 0))
        sg_mempool_memory_refresh();
}

void sg_mempool_block_gone(uint64_t block)
{
    struct sg_lock_state lock;
    uint64_t reserved, size = sg_block_size(block);
    uint32_t number = number_in(block);
    sg_lock_acquire(&sg_vmm_lock, &lock);
    if (pools[number].handle != NULL && !pools[number].is_mute &&
        ask_reserve(number, &lock, &reserved)) /* while the block holds the number */
        recharge(&pools[number], reserved);
    struct pool *pool = &pools[number];
    pool->blocks -= pool->blocks != 0;
    pool->used_bytes -= size < pool->used_bytes ? size : pool->used_bytes;
    if (pool->is_mute && pool->blocks == 0) /* it told once, and no more */
        recharge(pool, 0);
    drop_if_gone(pool);
    sg_lock_release(&sg_vmm_lock, &lock);
}

/* A pool that is still there says so itself; of a destroyed one its blocks ended with the context, if that was there. */
static bool is_emptied(uint32_t number, uint32_t device, bool has_ended, struct sg_lock_state *lock)
{
    uint64_t used = 1, bookings = pools[number].bookings;
    if (!pools[number].is_used || pools[number].blocks == 0)
        return false;
    if (pools[number].handle == NULL && !has_ended)
        return pools[number].is_emptied; /* another thread may be about to take its blocks out */
    if (pools[number].handle == NULL)
        return pools[number].domain == SG_DOMAIN_DEVICE && pools[number].device == device;
    return ask(number, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, lock, &used) == CUDA_SUCCESS && used == 0 &&
           pools[number].bookings == bookings;
}

uint32_t sg_mempool_emptied(uint32_t device, bool has_ended)
{
    struct sg_lock_state lock;
    uint32_t emptied = 0;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    for (uint32_t number = 1; number < pool_room; number++) {
        bool is_now = is_emptied(number, device, has_ended, &lock);
        pools[number].is_emptied = is_now;
        if (is_now)
            sg_pieces_forget(&pools[number].pieces);
        emptied += is_now;
    }
    sg_lock_release(&sg_vmm_lock, &lock);
    return emptied;
}

bool sg_mempool_is_emptied(uint64_t block)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    bool is_emptied = pools[number_in(block)].is_emptied;
    sg_lock_release(&sg_vmm_lock, &lock);
    return is_emptied;
}
