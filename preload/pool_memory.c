/*
 * pool_memory.c - see pool_memory.h.
 */
#include "pool_memory.h"

#include "compiler.h"
#include "syscall.h"
#include "vmm.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>

struct pool {
    CUmemoryPool handle;     /* NULL: destroyed, and may not be asked any more; its memory goes with its last block */
    uint64_t reserved_bytes; /* as charged */
    uint64_t unwanted_bytes;
    uint64_t blocks;
    uint64_t questions; /* ever begun; each has its number */
    uint64_t answered;  /* the latest of them whose answer is charged */
    uint64_t bookings;  /* allocations from it */
    uint32_t asking;    /* questions under way */
    uint32_t device;
    enum sg_domain domain; /* since CUDA 13 a pool may be managed, or sit on the host */
    bool is_used;
    bool is_active;  /* something was allocated from it */
    bool is_mute;    /* its driver does not tell what it has reserved: its blocks count one by one */
    bool has_told;   /* it has answered before */
    bool is_emptied; /* sg_pool_emptied */
};

/* By number, from 1 on. Under sg_vmm_lock; moves when it grows. */
static struct pool *pools;
static uint32_t pool_room;
static uint32_t active_count; /* (atomic) pools that something was allocated from */
static uint32_t is_behind;    /* (atomic) a query failed: the books of some pool may be out of date */
static uint32_t last_answers; /* (atomic) futex: counts the answers of pools that are being destroyed */

/* In a table value: the lower bits lie in those of the size that do not matter beside whole pages. */
enum { LOW_BITS = 12, LOW_MASK = (1 << LOW_BITS) - 1, NUMBERS = 1 << (LOW_BITS + 5) };

static uint32_t number_in(uint64_t block)
{
    return (uint32_t)(block >> SG_BLOCK_SLOT_SHIFT & 31) << LOW_BITS | (uint32_t)(block & LOW_MASK);
}

CUresult sg_pool_ask(CUmemoryPool handle, CUmemPool_attribute attribute, uint64_t *bytes)
{
    SG_DRIVER(get, cuMemPoolGetAttribute);
    cuuint64_t value = 0;
    uint32_t layers = sg_cuda_go_inside();
    CUresult result = get != NULL ? get(handle, attribute, &value) : CUDA_ERROR_NOT_SUPPORTED;
    sg_self.layers = layers;
    if (result == CUDA_SUCCESS)
        *bytes = value;
    return result;
}

/* ---- the list; all under the lock ---------------------------------------------------------------------------------- */

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
    if (pools != NULL) {
        memcpy(list, pools, pool_room * sizeof *list);
        (void)sg_sys_munmap(pools, pool_room * sizeof *list);
    }
    pools = list;
    pool_room = room;
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

static void recharge(struct pool *pool, uint64_t reserved)
{
    if (reserved > pool->reserved_bytes)
        sg_ledger_charge(pool->domain, reserved - pool->reserved_bytes);
    else
        sg_ledger_release(pool->domain, pool->reserved_bytes - reserved);
    if (pool->domain == SG_DOMAIN_DEVICE)
        sg_ledger_charge_device(pool->device, (int64_t)(reserved - pool->reserved_bytes));
    uint64_t wanted = pool->reserved_bytes - pool->unwanted_bytes;
    pool->reserved_bytes = reserved;
    if (pool->unwanted_bytes != 0)
        pool->unwanted_bytes = reserved > wanted ? reserved - wanted : 0;
}

/* A destroyed pool without blocks is gone. */
static void drop_if_gone(struct pool *pool)
{
    if (!pool->is_used || pool->handle != NULL || pool->blocks != 0 || pool->asking != 0)
        return;
    recharge(pool, 0);
    if (pool->is_active)
        sg_fetch_sub(&active_count, 1u);
    pool->is_used = false;
}

/* ---- questions ------------------------------------------------------------------------------------------------------ */

/* The lock is let go while the driver is asked. The pool keeps its number meanwhile, though the list may move, and is not
 * destroyed (await_answers). */
static CUresult ask(uint32_t number, CUmemPool_attribute attribute, struct sg_lock_state *lock, uint64_t *bytes)
{
    CUmemoryPool handle = pools[number].handle;
    pools[number].asking++;
    sg_lock_release(&sg_vmm_lock, lock);
    CUresult result = sg_pool_ask(handle, attribute, bytes);
    sg_lock_acquire(&sg_vmm_lock, lock);
    struct pool *pool = &pools[number];
    pool->asking--;
    if (pool->handle == NULL) {
        drop_if_gone(pool);
        sg_fetch_add(&last_answers, 1u);
        (void)sg_sys_futex(&last_answers, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL);
    }
    return result;
}

/* What it has reserved. Of several who ask at once the one who asked last is told: all that was done before is in that answer, and
 * whoever does more asks once more; the others get what is charged by then. False: it did not tell, and is to be asked again. */
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

/* Others may be asking a pool that the program destroys. Not without bound: what they wait for in the driver may wait for us. */
static void await_answers(uint32_t number, struct sg_lock_state *lock)
{
    const uint64_t deadline = sg_sys_clock_ns(CLOCK_MONOTONIC) + UINT64_C(5000000000);
    const struct timespec step = {0, 100000000};
    while (pools[number].asking != 0 && sg_sys_clock_ns(CLOCK_MONOTONIC) < deadline) {
        uint32_t seen = sg_load(&last_answers);
        sg_lock_release(&sg_vmm_lock, lock);
        (void)sg_sys_futex(&last_answers, FUTEX_WAIT_PRIVATE, seen, &step);
        sg_lock_acquire(&sg_vmm_lock, lock);
    }
}

void sg_pool_refork(void)
{
    for (uint32_t number = 1; number < pool_room; number++)
        pools[number].asking = 0; /* those threads are the parent's */
}

/* ---- for hooks ------------------------------------------------------------------------------------------------------ */

struct sg_pool_view sg_pool_memory_of(CUmemoryPool handle)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    uint32_t number = find(handle);
    struct sg_pool_view view = {.domain = SG_DOMAIN_DEVICE};
    if (number != 0)
        view = (struct sg_pool_view){.domain = pools[number].domain,
                                     .device = pools[number].device,
                                     .is_known = true,
                                     .unwanted_bytes = pools[number].unwanted_bytes};
    sg_lock_release(&sg_vmm_lock, &lock);
    return view;
}

void sg_pool_learn(CUmemoryPool handle, uint32_t device, enum sg_domain domain)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    if (find(handle) == 0)
        (void)add(handle, device, domain);
    sg_lock_release(&sg_vmm_lock, &lock);
}

/* At once, though it may still be too much: others may ask the pool meanwhile, and would book it as well. */
void sg_pool_book(struct sg_pool_growth *growth)
{
    struct sg_lock_state lock;
    uint64_t reserved;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    uint32_t number = find(growth->handle);
    if (number == 0)
        number = add(growth->handle, growth->device, growth->domain);
    if (number != 0 && !pools[number].is_mute) {
        activate(&pools[number]);
        pools[number].bookings++;
        pools[number].is_emptied = false;
        bool has_told = ask_reserve(number, &lock, &reserved);
        struct pool *pool = &pools[number];
        uint64_t before = pool->reserved_bytes;
        if (has_told)
            recharge(pool, reserved);
        else if (!pool->is_mute && pool->handle != NULL)
            recharge(pool, before + growth->admitted_bytes); /* until it tells */
        uint64_t grown = pool->reserved_bytes > before ? pool->reserved_bytes - before : 0;
        growth->before_bytes = before;
        growth->excess_bytes = grown > growth->admitted_bytes ? grown - growth->admitted_bytes : 0;
        if (growth->excess_bytes == 0)
            pool->unwanted_bytes = 0; /* what has been granted since, was judged with it */
    }
    sg_lock_release(&sg_vmm_lock, &lock);
}

void sg_pool_book_refused(const struct sg_pool_growth *growth)
{
    struct sg_lock_state lock;
    uint64_t reserved;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    uint32_t number = find(growth->handle);
    if (number != 0 && ask_reserve(number, &lock, &reserved))
        recharge(&pools[number], reserved);
    if (number != 0 && pools[number].reserved_bytes > growth->before_bytes)
        pools[number].unwanted_bytes += pools[number].reserved_bytes - growth->before_bytes;
    sg_lock_release(&sg_vmm_lock, &lock);
}

uint64_t sg_pool_add_block(CUmemoryPool handle, uint64_t bytes)
{
    struct sg_lock_state lock;
    uint64_t block = 0;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    uint32_t number = find(handle);
    if (number != 0 && !pools[number].is_mute) {
        pools[number].blocks++;
        block = sg_block(bytes & ~(uint64_t)LOW_MASK, pools[number].domain, pools[number].device) | SG_BLOCK_POOLED |
                (uint64_t)(number >> LOW_BITS) << SG_BLOCK_SLOT_SHIFT | (number & LOW_MASK);
    }
    sg_lock_release(&sg_vmm_lock, &lock);
    return block;
}

/* The handle is forgotten before the call: the driver may give it to a new pool before that returns. */
uint32_t sg_pool_begin_destroy(CUmemoryPool handle)
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

void sg_pool_end_destroy(uint32_t number, CUmemoryPool handle, CUresult result)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    pools[number].blocks--;
    if (result != CUDA_SUCCESS)
        pools[number].handle = handle;
    drop_if_gone(&pools[number]);
    sg_lock_release(&sg_vmm_lock, &lock);
}

/* ---- for everybody -------------------------------------------------------------------------------------------------- */

void sg_pool_memory_refresh(void)
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

void sg_pool_memory_catch_up(void)
{
    if (SG_UNLIKELY(sg_load_acquire(&is_behind) != 0))
        sg_pool_memory_refresh();
}

void sg_pool_block_gone(uint64_t block)
{
    struct sg_lock_state lock;
    uint64_t reserved;
    uint32_t number = number_in(block);
    sg_lock_acquire(&sg_vmm_lock, &lock);
    if (pools[number].handle != NULL && ask_reserve(number, &lock, &reserved)) /* while the block holds the number */
        recharge(&pools[number], reserved);
    if (pools[number].blocks != 0)
        pools[number].blocks--;
    drop_if_gone(&pools[number]);
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

uint32_t sg_pool_emptied(uint32_t device, bool has_ended)
{
    struct sg_lock_state lock;
    uint32_t emptied = 0;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    for (uint32_t number = 1; number < pool_room; number++) {
        bool is_now = is_emptied(number, device, has_ended, &lock);
        pools[number].is_emptied = is_now;
        emptied += is_now;
    }
    sg_lock_release(&sg_vmm_lock, &lock);
    return emptied;
}

bool sg_pool_is_emptied(uint64_t block)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    bool is_emptied = pools[number_in(block)].is_emptied;
    sg_lock_release(&sg_vmm_lock, &lock);
    return is_emptied;
}
