/*
 * hook_pool.c - stream-ordered memory.
 *
 * What counts is what a pool has reserved, not each block: freed blocks stay in the pool up to its release threshold. A
 * request is judged by what it makes the pool grow; after it the pool is asked, and the difference is charged
 * (pool_memory.c). Where the driver cannot tell, blocks are counted one by one.
 *
 * No context need be current: cuda.h asks for one only with a default stream. The pool is the one that is current to the
 * stream's device, or the one that was named.
 */
#include "compiler.h"
#include "pool_memory.h"
#include "sites.h"

/* ---- where a request goes ------------------------------------------------------------------------------------------ */

static bool is_builtin(CUstream stream)
{
    return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

static CUresult current_device(CUdevice *device)
{
    SG_DRIVER(get_device, cuCtxGetDevice);
    return get_device != NULL ? get_device(device) : CUDA_ERROR_NOT_INITIALIZED;
}

/* For drivers before CUDA 12.8, which do not tell a stream's device. */
static CUresult device_of_context(CUstream stream, CUdevice *device)
{
    SG_DRIVER(get_context, cuStreamGetCtx);
    SG_DRIVER(push, cuCtxPushCurrent_v2);
    SG_DRIVER(pop, cuCtxPopCurrent_v2);
    CUcontext context = NULL;
    if (get_context == NULL || push == NULL || pop == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = get_context(stream, &context);
    if (result != CUDA_SUCCESS || (result = push(context)) != CUDA_SUCCESS)
        return result;
    result = current_device(device);
    (void)pop(&context);
    return result;
}

static CUresult device_of(CUstream stream, CUdevice *device)
{
    SG_DRIVER(get_device, cuStreamGetDevice);
    if (is_builtin(stream))
        return current_device(device);
    if (get_device != NULL && get_device(stream, device) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    return device_of_context(stream, device) == CUDA_SUCCESS ? CUDA_SUCCESS : current_device(device);
}

/* The last answer stands in for one that fails. */
static CUmemoryPool current_pool(uint32_t device)
{
    static CUmemoryPool known[SG_DEVICE_ROOM]; /* (atomic) */
    SG_DRIVER(get, cuDeviceGetMemPool);
    CUmemoryPool handle = NULL;
    CUmemoryPool *last = &known[sg_cuda_device_number(device)];
    if (get == NULL || get(&handle, (CUdevice)device) != CUDA_SUCCESS)
        return sg_load_acquire(last);
    sg_store_release(last, handle);
    return handle;
}

/* The device whose own pool that is, or `otherwise`: a pool whose making we did not see is a device's. Asked once a pool. */
static uint32_t owner_of(CUmemoryPool handle, uint32_t otherwise)
{
    SG_DRIVER(get, cuDeviceGetDefaultMemPool);
    CUmemoryPool own = NULL;
    for (uint32_t device = 0; get != NULL && device < SG_DEVICE_ROOM; device++)
        if (get(&own, (CUdevice)device) != CUDA_SUCCESS)
            break;
        else if (own == handle)
            return device;
    return otherwise;
}

/* The bytes a request of `size` makes the pool grow: nothing if the pool has them free. */
static uint64_t growth_of(CUmemoryPool handle, uint64_t size)
{
    uint64_t reserved, used;
    if (handle == NULL || sg_pool_ask(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) != CUDA_SUCCESS ||
        sg_pool_ask(handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) != CUDA_SUCCESS || used > reserved)
        return size;
    return reserved - used >= size ? 0 : size - (reserved - used);
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

/* ---- taking -------------------------------------------------------------------------------------------------------- */

struct taking {
    struct sg_cuda_call call;
    struct sg_pool_growth pool;
    uint64_t size_bytes;
    CUstream stream;
    const void *caller; /* where the program's call returns to */
    struct sg_pool_view view;
    enum sg_hook hook;
    bool is_ptsz;
    bool is_counted; /* false: the driver refuses it by itself, or it is not for us to look at */
    bool is_judged;  /* false: its stream has no context */
};

/* Finds the pool that the call names, or that is current where its stream is. Of a stream without a context there is none: the
 * driver refuses by itself, unless it is made by another thread meanwhile. */
static bool find_pool(struct taking *taking, const CUmemoryPool *named)
{
    CUdevice current = 0;
    CUresult found = device_of(taking->stream, &current);
    bool has_no_context = found == CUDA_ERROR_INVALID_CONTEXT || found == CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (found == CUDA_ERROR_NOT_INITIALIZED || found == CUDA_ERROR_DEINITIALIZED ||
        (has_no_context && is_builtin(taking->stream)))
        return false;
    uint32_t device = found == CUDA_SUCCESS && current >= 0 ? (uint32_t)current : sg_self.device;
    taking->pool.handle = named != NULL ? *named : current_pool(device);
    taking->view = sg_pool_memory_of(taking->pool.handle);
    if (!taking->view.is_known)
        taking->view.device = named != NULL ? owner_of(*named, device) : device;
    taking->pool.device = sg_cuda_device_number(taking->view.device);
    taking->pool.domain = taking->view.domain;
    return true;
}

/* False: refused. */
static bool begin_taking(struct taking *taking, enum sg_hook hook, const CUdeviceptr *out, const CUmemoryPool *named)
{
    taking->hook = hook;
    taking->is_ptsz = sg_hook_table[hook].is_ptsz;
    if (out == NULL || taking->size_bytes == 0 || (named != NULL && *named == NULL) || !sg_cuda_is_ours() ||
        is_captured(taking->stream, taking->is_ptsz))
        return true;
    taking->is_counted = true;
    taking->is_judged = find_pool(taking, named);
    if (!taking->is_judged)
        return true;
    uint64_t growth = growth_of(taking->pool.handle, taking->size_bytes), wanted = growth;
    uint64_t unwanted = taking->view.unwanted_bytes;
    if (growth == 0 && unwanted != 0) /* what was refused and stayed is no room to be had */
        wanted = taking->size_bytes < unwanted ? taking->size_bytes : unwanted;
    taking->pool.admitted_bytes = growth;
    return sg_cuda_begin_sized(&taking->call, hook, taking->view.domain, taking->pool.device, wanted, growth);
}

/* A pool with room enough may still grow, where that room lies in pieces, and it grows by whole segments. What it took
 * beyond what was admitted is judged now that it is known: it is charged already, so to the job nothing is new. */
static bool may_keep(struct taking *taking)
{
    if (taking->pool.handle == NULL)
        return true;
    sg_pool_book(&taking->pool);
    if (taking->pool.excess_bytes == 0)
        return true;
    struct sg_request *request = &taking->call.request;
    if (request->granted_bytes != 0)
        sg_admission_settle(request, 0); /* or the next question would wait for this one */
    request->growth_bytes = 0;
    request->size_bytes = taking->pool.excess_bytes;
    return sg_cuda_ask(&taking->call);
}

static void trim_growth(const struct taking *taking)
{
    if (taking->is_ptsz)
        (void)SG_DRIVER_CALL(cuStreamSynchronize_ptsz, taking->stream);
    else
        (void)SG_DRIVER_CALL(cuStreamSynchronize, taking->stream);
    (void)SG_DRIVER_CALL(cuMemPoolTrimTo, taking->pool.handle, taking->pool.before_bytes);
}

/* After a block that may not be kept was freed: a free that was not seen to be done may count as outstanding (cuda.h of
 * cuMemPoolTrimTo). What the pool does not let go of all the same is counted, and is no room for the next request. The
 * program asked for nothing that a capture prohibits and that would break it, this thread's or another's (cuda.h of
 * cuThreadExchangeStreamCaptureMode). */
static void drop_growth(const struct taking *taking)
{
    SG_DRIVER(exchange, cuThreadExchangeStreamCaptureMode);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool is_relaxed = exchange != NULL && exchange(&mode) == CUDA_SUCCESS;
    trim_growth(taking);
    if (is_relaxed)
        (void)exchange(&mode);
    sg_pool_book_refused(&taking->pool);
    sg_pool_memory_refresh(); /* to synchronise empties other pools, too */
}

static void record_block(const struct taking *taking, CUdeviceptr ptr)
{
    uint64_t stale, block = sg_pool_add_block(taking->pool.handle, taking->size_bytes);
    if (block == 0) {
        sg_cuda_record(&taking->call, &sg_index_cuda, ptr, taking->size_bytes, taking->caller);
        return;
    }
    uint32_t site = sg_cuda_enter_site(taking->pool.domain, taking->caller, sg_block_size(block));
    block |= (uint64_t)site << SG_BLOCK_SITE_SHIFT;
    if (sg_table_insert(&sg_index_cuda, ptr, block, &stale) != 0) {
        sg_ledger_count_fault();
        sg_sites_leave(SG_SITES_CUDA, site, sg_block_size(block));
    } else if (stale != 0) { /* entered just behind the end of its context */
        sg_cuda_released(&sg_index_cuda, stale);
    }
    sg_ledger_count_allocation(taking->pool.domain);
    sg_context_recheck(&sg_index_cuda, ptr, block, taking->call.ends_before);
}

/* The stream has got a context since. It is judged as what a pool takes beyond what was asked for is. */
static void judge_late(struct taking *taking, const CUmemoryPool *named)
{
    uint32_t layers = sg_cuda_go_inside();
    taking->is_judged = find_pool(taking, named);
    sg_self.layers = layers;
    if (taking->is_judged)
        (void)sg_cuda_begin_sized(&taking->call, taking->hook, taking->view.domain, taking->pool.device, 0, 0);
}

/* A block that the driver does not take back is granted. */
static CUresult end_taking(struct taking *taking, CUresult result, CUdeviceptr *out, CUdeviceptr before,
                           const CUmemoryPool *named, CUresult(CUDAAPI *give_back)(CUdeviceptr, CUstream))
{
    if (SG_UNLIKELY(!taking->is_judged) && taking->is_counted && result == CUDA_SUCCESS)
        judge_late(taking, named);
    if (!taking->is_judged)
        return result;
    if (result == CUDA_SUCCESS && !may_keep(taking) && give_back(*out, taking->stream) == CUDA_SUCCESS) {
        drop_growth(taking);
        *out = before;
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (result == CUDA_SUCCESS) {
        record_block(taking, *out);
    }
    sg_cuda_end(&taking->call, result == CUDA_SUCCESS ? taking->pool.admitted_bytes : 0);
    return result;
}

static CUresult CUDAAPI give_back_legacy(CUdeviceptr block, CUstream stream)
{
    return SG_DRIVER_CALL(cuMemFreeAsync, block, stream);
}

static CUresult CUDAAPI give_back_ptsz(CUdeviceptr block, CUstream stream)
{
    return SG_DRIVER_CALL(cuMemFreeAsync_ptsz, block, stream);
}

#define TAKE_ASYNC(name, give_back, named, dptr, bytes, ...) \
    struct taking taking = {.size_bytes = (bytes), .stream = hStream, .caller = __builtin_return_address(0)}; \
    if (!begin_taking(&taking, SG_HOOK_##name, dptr, named)) \
        return taking.call.answer; \
    CUdeviceptr before = taking.is_counted ? *(dptr) : 0; \
    SG_DRIVER_INSIDE(name, __VA_ARGS__); \
    return end_taking(&taking, result, dptr, before, named, give_back)

SG_EXPORT CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    TAKE_ASYNC(cuMemAllocAsync, give_back_legacy, NULL, dptr, bytesize, dptr, bytesize, hStream);
}

SG_EXPORT CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    TAKE_ASYNC(cuMemAllocAsync_ptsz, give_back_ptsz, NULL, dptr, bytesize, dptr, bytesize, hStream);
}

SG_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                                   CUstream hStream)
{
    TAKE_ASYNC(cuMemAllocFromPoolAsync, give_back_legacy, &pool, dptr, bytesize, dptr, bytesize, pool, hStream);
}

SG_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                                        CUstream hStream)
{
    TAKE_ASYNC(cuMemAllocFromPoolAsync_ptsz, give_back_ptsz, &pool, dptr, bytesize, dptr, bytesize, pool, hStream);
}

SG_EXPORT CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    SG_GIVE_BACK(cuMemFreeAsync, &sg_index_cuda, dptr, dptr, hStream);
}

SG_EXPORT CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
    SG_GIVE_BACK(cuMemFreeAsync_ptsz, &sg_index_cuda, dptr, dptr, hStream);
}

/* ---- pools ---------------------------------------------------------------------------------------------------------- */

/* A pool is entered when the program gets to know it, for only here it is told where its memory is. */
static void learn_pool(CUmemoryPool handle, const CUmemLocation *location, CUmemAllocationType type)
{
    bool is_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id >= 0;
    enum sg_domain domain = is_device ? SG_DOMAIN_DEVICE : SG_DOMAIN_PINNED;
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        domain = SG_DOMAIN_MANAGED;
    uint32_t device = is_device ? (uint32_t)location->id : 0;
    sg_pool_learn(handle, sg_cuda_device_number(device), domain);
}

SG_EXPORT CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    SG_DRIVER_THEN(learn_pool(*pool, &poolProps->location, poolProps->allocType), cuMemPoolCreate, pool, poolProps);
}

SG_EXPORT CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                                  CUmemAllocationType type)
{
    SG_DRIVER_THEN(learn_pool(*pool_out, location, type), cuMemGetDefaultMemPool, pool_out, location, type);
}

SG_EXPORT CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    SG_DRIVER_THEN(learn_pool(*pool, location, type), cuMemGetMemPool, pool, location, type);
}

/* A lower release threshold gives back at the next synchronisation; what did so far, shows now. */
SG_EXPORT CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    SG_DRIVER_THEN(sg_pool_memory_refresh(), cuMemPoolSetAttribute, pool, attr, value);
}

SG_EXPORT CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    SG_DRIVER_THEN(sg_pool_memory_refresh(), cuMemPoolTrimTo, pool, minBytesToKeep);
}

SG_EXPORT CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    uint32_t number = sg_cuda_is_ours() ? sg_pool_begin_destroy(pool) : 0;
    SG_DRIVER_INSIDE(cuMemPoolDestroy, pool);
    if (number != 0)
        sg_pool_end_destroy(number, pool, result);
    return result;
}

/* ---- synchronisations ---------------------------------------------------------------------------------------------- */

/* They give back what a pool holds above its release threshold. Others of the job must not be refused for it, nor this
 * program be told of it later. Where nothing was allocated from a pool: one load. */
SG_EXPORT CUresult CUDAAPI cuStreamSynchronize(CUstream hStream)
{
    SG_DRIVER_THEN(sg_pool_memory_refresh(), cuStreamSynchronize, hStream);
}

SG_EXPORT CUresult CUDAAPI cuStreamSynchronize_ptsz(CUstream hStream)
{
    SG_DRIVER_THEN(sg_pool_memory_refresh(), cuStreamSynchronize_ptsz, hStream);
}

SG_EXPORT CUresult CUDAAPI cuEventSynchronize(CUevent hEvent)
{
    SG_DRIVER_THEN(sg_pool_memory_refresh(), cuEventSynchronize, hEvent);
}

SG_EXPORT CUresult CUDAAPI cuCtxSynchronize(void)
{
    SG_DRIVER_THEN(sg_pool_memory_refresh(), cuCtxSynchronize);
}

SG_EXPORT CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx)
{
    SG_DRIVER_THEN(sg_pool_memory_refresh(), cuCtxSynchronize_v2, ctx);
}
