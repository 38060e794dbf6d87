/*
 * hook_pool.c - stream-ordered memory.
 *
 * What counts is what a pool has reserved, not each block: freed blocks stay in the pool up to its release threshold. After
 * every call that may change it the driver is asked, and the difference is charged or released. A request is judged by
 * what it makes the pool grow. Where the driver cannot tell, blocks are counted one by one.
 */
#include "cuda_call.h"

#include "compiler.h"
#include "vmm.h"

enum { POOL_ROOM = 32 };

/* A pool this process has allocated from, in a slot it keeps while one of its blocks lives. Under sg_vmm_lock. */
struct pool {
    CUmemoryPool handle;     /* NULL: destroyed, and may not be asked any more; its memory goes with its last block */
    uint64_t reserved_bytes; /* as charged */
    uint64_t blocks;
    uint32_t device;
    enum sg_domain domain; /* since CUDA 13 a pool may be managed, or sit on the host */
    bool is_used;
};

static struct pool pools[POOL_ROOM];
static uint32_t pool_count; /* (atomic) slots in use */

static bool get_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, uint64_t *bytes)
{
    SG_DRIVER(get, cuMemPoolGetAttribute);
    cuuint64_t value = 0;
    if (get == NULL || get(handle, attribute, &value) != CUDA_SUCCESS)
        return false;
    *bytes = value;
    return true;
}

static CUmemoryPool current_pool(uint32_t device)
{
    SG_DRIVER(get, cuDeviceGetMemPool);
    CUmemoryPool handle = NULL;
    return get != NULL && get(&handle, (CUdevice)device) == CUDA_SUCCESS ? handle : NULL;
}

/* The bytes a request of `size` makes the pool grow: nothing if the pool has them free. */
static uint64_t growth_of(CUmemoryPool handle, uint64_t size)
{
    uint64_t reserved, used;
    if (handle == NULL || !get_attribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) ||
        !get_attribute(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) || used > reserved)
        return size;
    return reserved - used >= size ? 0 : size - (reserved - used);
}

static void recharge(struct pool *pool, uint64_t reserved)
{
    if (reserved > pool->reserved_bytes)
        sg_ledger_charge(pool->domain, reserved - pool->reserved_bytes);
    else
        sg_ledger_release(pool->domain, pool->reserved_bytes - reserved);
    if (pool->domain == SG_DOMAIN_DEVICE)
        sg_ledger_charge_device(pool->device, (int64_t)(reserved - pool->reserved_bytes));
    pool->reserved_bytes = reserved;
}

/* Under the lock: a destroyed pool without blocks is gone. */
static void drop_if_gone(struct pool *pool)
{
    if (!pool->is_used || pool->handle != NULL || pool->blocks != 0)
        return;
    recharge(pool, 0);
    pool->is_used = false;
    sg_fetch_sub(&pool_count, 1u);
}

/* Under the lock: the pool of that handle, or NULL. */
static struct pool *find_pool(CUmemoryPool handle)
{
    for (uint32_t i = 0; handle != NULL && i < POOL_ROOM; i++)
        if (pools[i].is_used && pools[i].handle == handle)
            return &pools[i];
    return NULL;
}

void sg_pool_memory_refresh(void)
{
    struct sg_lock_state lock;
    if (sg_load_acquire(&pool_count) == 0)
        return;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    for (uint32_t i = 0; i < POOL_ROOM; i++) {
        uint64_t reserved;
        if (pools[i].is_used && pools[i].handle != NULL &&
            get_attribute(pools[i].handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved))
            recharge(&pools[i], reserved);
    }
    sg_lock_release(&sg_vmm_lock, &lock);
}

void sg_pool_block_gone(uint64_t block)
{
    struct sg_lock_state lock;
    struct pool *pool = &pools[block >> SG_BLOCK_SLOT_SHIFT & (POOL_ROOM - 1)];
    sg_lock_acquire(&sg_vmm_lock, &lock);
    if (pool->blocks != 0)
        pool->blocks--;
    drop_if_gone(pool);
    sg_lock_release(&sg_vmm_lock, &lock);
    sg_pool_memory_refresh();
}

/* A pool that is still there says so itself; of a destroyed one its blocks ended with the context. */
uint32_t sg_pool_emptied(uint32_t device)
{
    struct sg_lock_state lock;
    uint32_t emptied = 0;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    for (uint32_t i = 0; i < POOL_ROOM; i++) {
        uint64_t used = 1;
        if (!pools[i].is_used || pools[i].blocks == 0)
            continue;
        if (pools[i].handle == NULL
                ? pools[i].domain == SG_DOMAIN_DEVICE && pools[i].device == device
                : get_attribute(pools[i].handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) && used == 0)
            emptied |= 1u << i;
    }
    sg_lock_release(&sg_vmm_lock, &lock);
    return emptied;
}

/* What is charged for a pool, and its domain; a pool whose making we did not see, such as a device's own, is a device's. */
static uint64_t charged_bytes(CUmemoryPool handle, enum sg_domain *domain)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    const struct pool *pool = find_pool(handle);
    uint64_t bytes = pool != NULL ? pool->reserved_bytes : 0;
    *domain = pool != NULL ? pool->domain : SG_DOMAIN_DEVICE;
    sg_lock_release(&sg_vmm_lock, &lock);
    return bytes;
}

static enum sg_domain domain_of(CUmemoryPool handle)
{
    enum sg_domain domain;
    (void)charged_bytes(handle, &domain);
    return domain;
}

/* Enters a pool, and `blocks` blocks that come from it: its slot. POOL_ROOM if its memory cannot be told or there is no
 * slot: then the block counts by itself. */
static uint32_t enter_pool(CUmemoryPool handle, uint32_t device, enum sg_domain domain, uint64_t blocks)
{
    struct sg_lock_state lock;
    uint64_t reserved;
    if (handle == NULL || !get_attribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved))
        return POOL_ROOM;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    const struct pool *known = find_pool(handle);
    uint32_t slot = known != NULL ? (uint32_t)(known - pools) : 0;
    while (known == NULL && slot < POOL_ROOM && pools[slot].is_used)
        slot++;
    if (known == NULL && slot < POOL_ROOM) {
        pools[slot] = (struct pool){.handle = handle, .device = device, .domain = domain, .is_used = true};
        sg_fetch_add(&pool_count, 1u);
    }
    if (slot < POOL_ROOM)
        pools[slot].blocks += blocks;
    sg_lock_release(&sg_vmm_lock, &lock);
    return slot;
}

static void record_block(const struct sg_cuda_call *call, CUmemoryPool handle, CUdeviceptr ptr, uint64_t bytes)
{
    if (!call->is_counted)
        return;
    uint32_t slot = enter_pool(handle, call->device, call->request.domain, 1);
    if (slot == POOL_ROOM) {
        sg_cuda_record(call, &sg_index_cuda, ptr, bytes);
        return;
    }
    uint64_t block =
        sg_block(bytes, call->request.domain, call->device) | SG_BLOCK_POOLED | (uint64_t)slot << SG_BLOCK_SLOT_SHIFT;
    if (sg_table_insert(&sg_index_cuda, ptr, block, NULL) != 0)
        sg_ledger_count_fault();
    sg_ledger_count_allocation(call->request.domain);
    sg_pool_memory_refresh();
}

/* A pool with room enough may still grow, where that room lies in pieces, and it grows by whole segments. What it took
 * beyond what was admitted is judged now that it is known; if it does not fit, the block goes back. */
static bool may_keep_growth(struct sg_cuda_call *call, CUmemoryPool handle, uint64_t admitted)
{
    uint64_t reserved;
    if (!call->is_counted || handle == NULL || !get_attribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved))
        return true;
    enum sg_domain domain;
    uint64_t charged = charged_bytes(handle, &domain);
    uint64_t grown = reserved > charged ? reserved - charged : 0;
    if (grown <= admitted)
        return true;
    if (call->request.granted_bytes != 0)
        sg_admission_settle(&call->request, 0); /* or the next question would wait for this one */
    call->request.growth_bytes = grown;
    call->request.size_bytes = grown - admitted;
    return sg_cuda_ask(call);
}

/* After a block that may not be kept was freed. What the pool does not let go of all the same is counted. */
static void drop_growth(const struct sg_cuda_call *call, CUmemoryPool handle)
{
    enum sg_domain domain;
    uint64_t charged = charged_bytes(handle, &domain);
    (void)SG_DRIVER_CALL(cuMemPoolTrimTo, handle, charged);
    (void)enter_pool(handle, call->device, domain, 0);
    sg_pool_memory_refresh();
}

/* What a capturing stream allocates becomes a node of a graph: nothing is taken before that is launched (hook_graph.c). On
 * the legacy stream beside a capture the driver says so by an error, and by one again to the allocation. */
static bool is_captured(CUstream stream, bool is_ptsz)
{
    SG_DRIVER(ask, cuStreamIsCapturing);
    SG_DRIVER(ask_ptsz, cuStreamIsCapturing_ptsz);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (is_ptsz ? ask_ptsz == NULL || ask_ptsz(stream, &status) != CUDA_SUCCESS
                : ask == NULL || ask(stream, &status) != CUDA_SUCCESS)
        return false;
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* `pool` is evaluated after the driver is known to be there. A block that the driver does not take back is granted. */
#define TAKE_ASYNC(name, give_back, is_sound, dptr, bytes, pool, ...) \
    struct sg_cuda_call call; \
    CUdevice device = 0; \
    SG_DRIVER(get_device, cuCtxGetDevice); \
    if ((dptr) == NULL || (bytes) == 0 || get_device == NULL || get_device(&device) != CUDA_SUCCESS || \
        is_captured(hStream, sg_hook_table[SG_HOOK_##name].is_ptsz)) \
        return SG_DRIVER_CALL(name, __VA_ARGS__); \
    CUmemoryPool from = (pool); \
    uint64_t growth = (is_sound) ? growth_of(from, bytes) : 0; \
    if (!sg_cuda_begin(&call, SG_HOOK_##name, domain_of(from), growth)) \
        return CUDA_ERROR_OUT_OF_MEMORY; \
    CUdeviceptr before = *(dptr); \
    CUresult result = SG_DRIVER_CALL(name, __VA_ARGS__); \
    if (result == CUDA_SUCCESS && !may_keep_growth(&call, from, growth) && \
        SG_DRIVER_CALL(give_back, *(dptr), hStream) == CUDA_SUCCESS) { \
        drop_growth(&call, from); \
        *(dptr) = before; \
        result = CUDA_ERROR_OUT_OF_MEMORY; \
    } \
    if (result == CUDA_SUCCESS) \
        record_block(&call, from, *(dptr), bytes); \
    sg_cuda_end(&call, result == CUDA_SUCCESS ? growth : 0); \
    return result

SG_EXPORT CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    TAKE_ASYNC(cuMemAllocAsync, cuMemFreeAsync, true, dptr, bytesize, current_pool((uint32_t)device), dptr, bytesize,
               hStream);
}

SG_EXPORT CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    TAKE_ASYNC(cuMemAllocAsync_ptsz, cuMemFreeAsync_ptsz, true, dptr, bytesize, current_pool((uint32_t)device), dptr,
               bytesize, hStream);
}

SG_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                                   CUstream hStream)
{
    TAKE_ASYNC(cuMemAllocFromPoolAsync, cuMemFreeAsync, pool != NULL, dptr, bytesize, pool, dptr, bytesize, pool,
               hStream);
}

SG_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                                        CUstream hStream)
{
    TAKE_ASYNC(cuMemAllocFromPoolAsync_ptsz, cuMemFreeAsync_ptsz, pool != NULL, dptr, bytesize, pool, dptr, bytesize,
               pool, hStream);
}

SG_EXPORT CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    uint64_t block = sg_cuda_take_out(&sg_index_cuda, dptr);
    CUresult result = SG_DRIVER_CALL(cuMemFreeAsync, dptr, hStream);
    return sg_cuda_released(&sg_index_cuda, dptr, block, result);
}

SG_EXPORT CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
    uint64_t block = sg_cuda_take_out(&sg_index_cuda, dptr);
    CUresult result = SG_DRIVER_CALL(cuMemFreeAsync_ptsz, dptr, hStream);
    return sg_cuda_released(&sg_index_cuda, dptr, block, result);
}

/* A pool is entered when the program gets to know it, for only here it is told where its memory is. */
static void learn_pool(CUmemoryPool handle, const CUmemLocation *location, CUmemAllocationType type)
{
    bool is_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id >= 0;
    enum sg_domain domain = is_device ? SG_DOMAIN_DEVICE : SG_DOMAIN_PINNED;
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        domain = SG_DOMAIN_MANAGED;
    uint32_t device = is_device ? (uint32_t)location->id : 0;
    (void)enter_pool(handle, device < SG_DEVICE_ROOM ? device : SG_DEVICE_ROOM - 1, domain, 0);
}

SG_EXPORT CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    CUresult result = SG_DRIVER_CALL(cuMemPoolCreate, pool, poolProps);
    if (result == CUDA_SUCCESS && sg_lifecycle_enter())
        learn_pool(*pool, &poolProps->location, poolProps->allocType);
    return result;
}

SG_EXPORT CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                                  CUmemAllocationType type)
{
    CUresult result = SG_DRIVER_CALL(cuMemGetDefaultMemPool, pool_out, location, type);
    if (result == CUDA_SUCCESS && sg_lifecycle_enter())
        learn_pool(*pool_out, location, type);
    return result;
}

SG_EXPORT CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    CUresult result = SG_DRIVER_CALL(cuMemGetMemPool, pool, location, type);
    if (result == CUDA_SUCCESS && sg_lifecycle_enter())
        learn_pool(*pool, location, type);
    return result;
}

/* A lower release threshold gives back at the next synchronisation, which we do not see; what did so far, shows now. */
SG_EXPORT CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    CUresult result = SG_DRIVER_CALL(cuMemPoolSetAttribute, pool, attr, value);
    if (result == CUDA_SUCCESS && sg_lifecycle_enter())
        sg_pool_memory_refresh();
    return result;
}

SG_EXPORT CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    CUresult result = SG_DRIVER_CALL(cuMemPoolTrimTo, pool, minBytesToKeep);
    if (result == CUDA_SUCCESS && sg_lifecycle_enter())
        sg_pool_memory_refresh();
    return result;
}

/* A destroyed pool may not be asked any more, so its slot forgets the handle before the call. */
SG_EXPORT CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct pool *gone = find_pool(pool);
    if (gone != NULL)
        gone->handle = NULL;
    sg_lock_release(&sg_vmm_lock, &lock);
    CUresult result = SG_DRIVER_CALL(cuMemPoolDestroy, pool);
    if (gone == NULL)
        return result;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    if (result != CUDA_SUCCESS)
        gone->handle = pool;
    drop_if_gone(gone);
    sg_lock_release(&sg_vmm_lock, &lock);
    return result;
}
