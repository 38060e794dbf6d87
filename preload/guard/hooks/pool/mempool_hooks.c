/*
 * mempool_hooks.c - hooks of stream-ordered allocation.
 *
 * The ledger counts the bytes that a pool has reserved, not each block, because freed blocks stay in the pool up to its
 * release threshold. A request is judged by the largest growth that it can cause, before the driver is called
 * (mempool.h). After the call the pool is queried, and the difference is charged. If the driver does not support the
 * query, each block is charged by itself.
 *
 * No context need be current: cuda.h requires one only with a default stream. The request's pool is the pool that the
 * call names, otherwise the current pool of the stream's device.
 */
#include "base/compiler.h"
#include "hooks/cuda/call.h"
#include "hooks/cuda/contexts.h"
#include "base/options.h"
#include "hooks/pool/mempool.h"
#include "account/callsites.h"

/* ---- where a request goes ---------------------------------------------------------------------------------------- */

static bool is_builtin(CUstream stream)
{
    return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

static CUresult current_device(CUdevice *device)
{
    SG_DRIVER(get_device, cuCtxGetDevice);
    return get_device != NULL ? get_device(device) : CUDA_ERROR_NOT_INITIALIZED;
}

/* For drivers before CUDA 12.8, which lack cuStreamGetDevice. */
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

/* The device of a stream. The current device if the driver cannot tell. */
static CUresult device_of(CUstream stream, CUdevice *device)
{
    SG_DRIVER(get_device, cuStreamGetDevice);
    if (is_builtin(stream))
        return current_device(device);
    if (get_device != NULL && get_device(stream, device) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    return device_of_context(stream, device) == CUDA_SUCCESS ? CUDA_SUCCESS : current_device(device);
}

/* If the query fails, the last known answer is used. */
static CUmemoryPool current_pool(uint32_t device)
{
    static CUmemoryPool known[SG_DEVICE_CAPACITY]; /* (atomic) */
    SG_DRIVER(get, cuDeviceGetMemPool);
    CUmemoryPool handle = NULL;
    CUmemoryPool *last = &known[sg_cuda_device_number(device)];
    if (get == NULL || get(&handle, (CUdevice)device) != CUDA_SUCCESS)
        return sg_load_acquire(last);
    sg_store_release(last, handle);
    return handle;
}

/* The device whose default pool this is, or `otherwise`. A pool whose creation no hook saw is a device's default pool.
 * Queried once per pool. */
static uint32_t owner_of(CUmemoryPool handle, uint32_t otherwise)
{
    SG_DRIVER(get, cuDeviceGetDefaultMemPool);
    CUmemoryPool own = NULL;
    for (uint32_t device = 0; get != NULL && device < SG_DEVICE_CAPACITY; device++)
        if (get(&own, (CUdevice)device) != CUDA_SUCCESS)
            break;
        else if (own == handle)
            return device;
    return otherwise;
}

/* The key that tells a stream from all others. Each context has its own legacy default stream, and each thread its own
 * per-thread default stream. */
static uint64_t key_of(CUstream stream, bool is_ptsz)
{
    if (stream == CU_STREAM_PER_THREAD || (stream == NULL && is_ptsz))
        return (uint64_t)(uintptr_t)&sg_self | 1;
    if (stream == NULL || stream == CU_STREAM_LEGACY)
        return (uint64_t)sg_context_current() << 8 | 3;
    return (uint64_t)(uintptr_t)stream;
}

/* An allocation in a capturing stream becomes a node of a graph and takes no memory before the launch (graph.c). On the
 * legacy stream during another stream's capture, the driver answers this query and the allocation with an error. */
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

/* ---- one allocation ---------------------------------------------------------------------------------------------- */

struct alloc {
    struct sg_cuda_call call;
    struct sg_mempool_flight pool;
    uint64_t size_bytes;
    CUstream stream;
    const void *caller; /* return address of the program's call */
    struct sg_mempool_view view;
    enum sg_hook hook;
    bool is_ptsz;
    bool is_judged; /* false: the stream has no context, or the call is not counted */
};

/* Finds the pool that the call names, otherwise the current pool of the stream's device. False for a stream without a
 * context: the driver then refuses by itself, unless another thread creates the context meanwhile (judge_late). */
static bool find_pool(struct alloc *alloc, const CUmemoryPool *named)
{
    CUdevice current = 0;
    CUresult found = device_of(alloc->stream, &current);
    bool has_no_context = found == CUDA_ERROR_INVALID_CONTEXT || found == CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (found == CUDA_ERROR_NOT_INITIALIZED || found == CUDA_ERROR_DEINITIALIZED ||
        (has_no_context && is_builtin(alloc->stream)))
        return false;
    uint32_t device = found == CUDA_SUCCESS && current >= 0 ? (uint32_t)current : sg_self.device;
    alloc->pool.handle = named != NULL ? *named : current_pool(device);
    alloc->view = sg_mempool_memory_of(alloc->pool.handle);
    if (!alloc->view.is_known)
        alloc->view.device = named != NULL ? owner_of(*named, device) : device;
    alloc->pool.device = sg_cuda_device_number(alloc->view.device);
    alloc->pool.domain = alloc->view.domain;
    return true;
}

/* Trims in relaxed capture mode. A trim in another mode could be prohibited by a stream capture of this or another
 * thread and break that capture, though the program has called nothing prohibited (cuda.h of
 * cuThreadExchangeStreamCaptureMode). No call here waits for work of the device. */
static void trim(CUmemoryPool pool, uint64_t keep_bytes)
{
    SG_DRIVER(exchange, cuThreadExchangeStreamCaptureMode);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool is_relaxed = exchange != NULL && exchange(&mode) == CUDA_SUCCESS;
    uint32_t layers = sg_cuda_go_inside();
    (void)SG_DRIVER_CALL(cuMemPoolTrimTo, pool, keep_bytes);
    sg_self.layers = layers;
    if (is_relaxed)
        (void)exchange(&mode);
}

/* ---- the decision ------------------------------------------------------------------------------------------------ */

/* Asks admission for `size_bytes` of the machine and `growth_bytes` of the job's limit. */
static bool ask(struct alloc *alloc, uint64_t size_bytes, uint64_t growth_bytes, bool is_tentative)
{
    struct sg_request *request = &alloc->call.request;
    request->size_bytes = size_bytes;
    request->growth_bytes = growth_bytes;
    request->wording.asked_bytes = alloc->size_bytes;
    request->attempt.is_behind = is_tentative || sg_options.mode_observe;
    /* A cached snapshot lacks unwanted and unjudged growth. */
    request->kind = growth_bytes == 0 ? SG_REQUEST_RARE : SG_REQUEST_USUAL;
    alloc->call.is_tentative = is_tentative;
    return sg_cuda_ask(&alloc->call);
}

/* Asks admission for the largest growth that the request can cause. */
static bool ask_for_growth(struct alloc *alloc, bool is_tentative)
{
    if (!ask(alloc, alloc->pool.growth_bytes, alloc->pool.growth_bytes, is_tentative))
        return false;
    sg_mempool_judged(&alloc->pool);
    return true;
}

/* Takes the request out of flight before admission is asked again: no free piece fits after all. */
static void settle_flight(struct alloc *alloc)
{
    if (alloc->call.request.granted_bytes != 0)
        sg_admission_settle(&alloc->call.request, 0);
}

/* Judges a request that does not fit so far, alone in its pool. Refused growth that stayed in the pool (unwanted bytes)
 * is no headroom: using those bytes must be admitted. */
static bool judge_alone(struct alloc *alloc)
{
    struct sg_request *request = &alloc->call.request;
    uint64_t unwanted = sg_mempool_memory_of(alloc->pool.handle).unwanted_bytes;
    if (!sg_cuda_scan(&alloc->call))
        return false;
    bool fits = sg_mempool_begin_turn(&alloc->pool, request);
    if (fits && unwanted == 0)
        return true;
    settle_flight(alloc);
    bool is_granted = fits ? ask(alloc, alloc->size_bytes < unwanted ? alloc->size_bytes : unwanted, 0, false)
                           : sg_mempool_may_pass(&alloc->pool) && ask(alloc, 1, 0, true);
    if (is_granted)
        sg_admission_fly(request, alloc->pool.growth_bytes);
    if (is_granted || fits)
        return is_granted;
    if (sg_mempool_begin_trim(&alloc->pool)) {
        trim(alloc->pool.handle, 0);
        sg_mempool_memory_refresh();
    }
    sg_mempool_end_turn();
    return ask_for_growth(alloc, false);
}

/* Decides whether the allocation may go to the driver. True: granted. */
static bool judge(struct alloc *alloc)
{
    if (sg_mempool_begin(&alloc->pool, &alloc->call.request))
        return true;
    settle_flight(alloc);
    if (ask_for_growth(alloc, !sg_options.mode_observe))
        return true;
    return alloc->call.is_tentative && alloc->call.request.attempt.is_short && judge_alone(alloc);
}

/* Describes the request once its pool is known. */
static void prepare(struct alloc *alloc)
{
    sg_cuda_prepare(&alloc->call, alloc->hook, alloc->view.domain, alloc->pool.device);
    alloc->pool.size_bytes = alloc->size_bytes;
    alloc->pool.key = key_of(alloc->stream, alloc->is_ptsz);
    if (alloc->view.domain == SG_DOMAIN_DEVICE && sg_cuda_has_own_pool(alloc->pool.device))
        alloc->call.request.card.identity = sg_cuda_device_identity(alloc->pool.device);
}

/* False: refused. */
static SG_INLINE bool begin_allocation(struct alloc *alloc, enum sg_hook hook, const CUdeviceptr *out,
                                       const CUmemoryPool *named)
{
    alloc->hook = hook;
    alloc->is_ptsz = sg_hook_table[hook].is_ptsz;
    if (out == NULL || alloc->size_bytes == 0 || (named != NULL && *named == NULL))
        return true;
    sg_cuda_open(&alloc->call);
    if (alloc->call.is_counted && (!sg_cuda_has_begun() || is_captured(alloc->stream, alloc->is_ptsz))) {
        sg_cuda_close(&alloc->call);
        alloc->call.is_counted = false;
    }
    alloc->is_judged = alloc->call.is_counted && find_pool(alloc, named);
    if (!alloc->is_judged)
        return true;
    prepare(alloc);
    bool is_granted = judge(alloc);
    if (is_granted)
        sg_cuda_go_on();
    else
        sg_cuda_close(&alloc->call);
    return is_granted;
}

/* False if the pool has grown by more than was judged, and the excess does not fit. Excess arises if the driver's steps
 * are larger than known, or if the driver did not use the free piece. The excess is already charged, so it adds nothing
 * to the job's limit: growth 0. */
static bool may_keep(struct alloc *alloc, CUdeviceptr block)
{
    if (alloc->pool.handle == NULL)
        return true;
    sg_mempool_book(&alloc->pool, block);
    if (alloc->pool.excess_bytes == 0)
        return true;
    settle_flight(alloc); /* or the request below would wait for this one */
    return ask(alloc, alloc->pool.excess_bytes, 0, false);
}

/* Trims the pool after a block that may not be kept was freed. The pool may keep the block's memory, because a free
 * counts as outstanding until it is seen to be done (cuda.h of cuMemPoolTrimTo). Such memory stays charged and is no
 * headroom for the next request. The trim counts as a synchronisation: concurrent growth may hide the shrink. */
static void drop_growth(const struct alloc *alloc, CUdeviceptr block)
{
    (void)sg_mempool_begin_sync(SG_SYNC_NOTHING);
    trim(alloc->pool.handle, alloc->pool.before_bytes);
    sg_mempool_book_refused(&alloc->pool, block);
}

/* Enters the new block. A block of an opaque or unknown pool is charged by itself. */
static void record_block(const struct alloc *alloc, CUdeviceptr ptr)
{
    uint64_t stale, block = sg_mempool_add_block(&alloc->pool, ptr);
    if (block == 0) {
        sg_cuda_record(&alloc->call, &sg_tracker_cuda, ptr, alloc->size_bytes, alloc->caller);
        return;
    }
    uint32_t site = sg_cuda_enter_site(alloc->pool.domain, alloc->caller, sg_block_size(block));
    block |= (uint64_t)site << SG_BLOCK_SITE_SHIFT;
    if (sg_block_table_insert(&sg_tracker_cuda, ptr, block, &stale) != 0) {
        sg_ledger_count_fault();
        sg_callsites_leave(SG_CALLSITES_CUDA, site, sg_block_size(block));
    } else if (stale != 0) { /* of a block that was entered just after the end of its context */
        sg_cuda_released(&sg_tracker_cuda, stale);
    }
    sg_ledger_count_allocation(alloc->pool.domain);
    sg_context_recheck(&sg_tracker_cuda, ptr, block, alloc->call.ends_before);
}

/* Another thread has created the stream's context during the call. The block is judged afterwards, as excess growth. */
static void judge_late(struct alloc *alloc, const CUmemoryPool *named)
{
    uint32_t layers = sg_cuda_go_inside();
    alloc->is_judged = find_pool(alloc, named);
    sg_self.layers = layers;
    if (!alloc->is_judged)
        return;
    prepare(alloc);
    (void)sg_mempool_begin(&alloc->pool, &alloc->call.request);
    sg_cuda_go_on();
}

/* Frees the new block again if its growth may not be kept. If that free fails, the block is granted. */
static CUresult end_allocation(struct alloc *alloc, CUresult result, CUdeviceptr *out, CUdeviceptr before,
                               const CUmemoryPool *named, CUresult(CUDAAPI *free_block)(CUdeviceptr, CUstream))
{
    if (!alloc->call.is_counted)
        return result;
    if (SG_UNLIKELY(!alloc->is_judged) && result == CUDA_SUCCESS)
        judge_late(alloc, named);
    if (!alloc->is_judged) {
        sg_cuda_close(&alloc->call);
        return result;
    }
    if (result == CUDA_SUCCESS && !may_keep(alloc, *out) && free_block(*out, alloc->stream) == CUDA_SUCCESS) {
        drop_growth(alloc, *out);
        *out = before;
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (result == CUDA_SUCCESS) {
        record_block(alloc, *out);
    }
    sg_cuda_end(&alloc->call, result == CUDA_SUCCESS ? alloc->pool.taken_bytes + alloc->pool.excess_bytes : 0);
    return result;
}

static CUresult CUDAAPI free_block_legacy(CUdeviceptr block, CUstream stream)
{
    return SG_DRIVER_CALL(cuMemFreeAsync, block, stream);
}

static CUresult CUDAAPI free_block_ptsz(CUdeviceptr block, CUstream stream)
{
    return SG_DRIVER_CALL(cuMemFreeAsync_ptsz, block, stream);
}

#define ALLOC_ASYNC(name, free_block, named, dptr, bytes, ...) \
    struct alloc alloc = {.size_bytes = (bytes), .stream = hStream, .caller = __builtin_return_address(0)}; \
    if (!begin_allocation(&alloc, SG_HOOK_##name, dptr, named)) \
        return alloc.call.answer; \
    CUdeviceptr before = alloc.call.is_counted ? *(dptr) : 0; \
    SG_DRIVER_INSIDE(name, __VA_ARGS__); \
    return end_allocation(&alloc, result, dptr, before, named, free_block)

SG_EXPORT CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    ALLOC_ASYNC(cuMemAllocAsync, free_block_legacy, NULL, dptr, bytesize, dptr, bytesize, hStream);
}

SG_EXPORT CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    ALLOC_ASYNC(cuMemAllocAsync_ptsz, free_block_ptsz, NULL, dptr, bytesize, dptr, bytesize, hStream);
}

SG_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                                   CUstream hStream)
{
    ALLOC_ASYNC(cuMemAllocFromPoolAsync, free_block_legacy, &pool, dptr, bytesize, dptr, bytesize, pool, hStream);
}

SG_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                                        CUstream hStream)
{
    ALLOC_ASYNC(cuMemAllocFromPoolAsync_ptsz, free_block_ptsz, &pool, dptr, bytesize, dptr, bytesize, pool, hStream);
}

#define FREE_ASYNC(name, dptr, stream) \
    uint64_t ends_before = sg_load_acquire(&sg_context_ends); \
    uint64_t block = sg_cuda_is_ours() ? sg_cuda_take_out(&sg_tracker_cuda, dptr) : 0; \
    if ((block & SG_BLOCK_POOLED) != 0) \
        sg_mempool_begin_free(block, dptr, key_of(stream, sg_hook_table[SG_HOOK_##name].is_ptsz)); \
    SG_DRIVER_INSIDE(name, dptr, stream); \
    return sg_cuda_given_back(&sg_tracker_cuda, dptr, block, ends_before, result)

SG_EXPORT CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    FREE_ASYNC(cuMemFreeAsync, dptr, hStream);
}

SG_EXPORT CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
    FREE_ASYNC(cuMemFreeAsync_ptsz, dptr, hStream);
}

/* ---- calls that shrink pools ------------------------------------------------------------------------------------- */

/* Ends a synchronisation. Queries the current device only if the whole context was synchronised. */
static void end_sync(const struct sg_mempool_sync *sync, bool is_done)
{
    CUdevice device = 0;
    if (sg_self.open.is_syncing && sync->key == SG_SYNC_CONTEXT)
        (void)current_device(&device);
    sg_mempool_end_sync(sync, sg_cuda_device_number((uint32_t)device), is_done);
}

/* Hook of a call that makes pools give back memory above their release threshold. The charges are refreshed at once, so
 * that other processes of the job are not refused for memory already given back, and this program sees correct live
 * bytes. Costs two loads if no pool was ever used. */
#define SYNCHRONISE(key, name, ...) \
    if (!sg_cuda_is_ours()) \
        return SG_DRIVER_CALL(name, __VA_ARGS__); \
    uint32_t outside = sg_cuda_go_inside(); \
    struct sg_mempool_sync sync = sg_mempool_begin_sync(key); \
    CUresult result = SG_DRIVER_CALL(name, __VA_ARGS__); \
    end_sync(&sync, result == CUDA_SUCCESS); \
    sg_self.layers = outside; \
    return result

/* ---- pools ------------------------------------------------------------------------------------------------------- */

/* Enters a pool when the program receives its handle: only these calls name the location of the pool's memory. */
static void learn_pool(CUmemoryPool handle, const CUmemLocation *location, CUmemAllocationType type)
{
    bool is_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id >= 0;
    enum sg_domain domain = is_device ? SG_DOMAIN_DEVICE : SG_DOMAIN_PINNED;
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        domain = SG_DOMAIN_MANAGED;
    uint32_t device = is_device ? (uint32_t)location->id : 0;
    sg_mempool_learn(handle, sg_cuda_device_number(device), domain);
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

/* A lower release threshold takes effect at the next synchronisation. Earlier shrinks of the pool are charged now. */
SG_EXPORT CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    SYNCHRONISE(SG_SYNC_NOTHING, cuMemPoolSetAttribute, pool, attr, value);
}

SG_EXPORT CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    SYNCHRONISE(SG_SYNC_NOTHING, cuMemPoolTrimTo, pool, minBytesToKeep);
}

SG_EXPORT CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    uint32_t number = sg_cuda_is_ours() ? sg_mempool_begin_destroy(pool) : 0;
    SG_DRIVER_INSIDE(cuMemPoolDestroy, pool);
    if (number != 0)
        sg_mempool_end_destroy(number, pool, result);
    return result;
}

/* ---- synchronisations -------------------------------------------------------------------------------------------- */

SG_EXPORT CUresult CUDAAPI cuStreamSynchronize(CUstream hStream)
{
    SYNCHRONISE(key_of(hStream, false), cuStreamSynchronize, hStream);
}

SG_EXPORT CUresult CUDAAPI cuStreamSynchronize_ptsz(CUstream hStream)
{
    SYNCHRONISE(key_of(hStream, true), cuStreamSynchronize_ptsz, hStream);
}

/* The stream that recorded the event is not known. */
SG_EXPORT CUresult CUDAAPI cuEventSynchronize(CUevent hEvent)
{
    SYNCHRONISE(SG_SYNC_NOTHING, cuEventSynchronize, hEvent);
}

SG_EXPORT CUresult CUDAAPI cuCtxSynchronize(void)
{
    SYNCHRONISE(SG_SYNC_CONTEXT, cuCtxSynchronize);
}

/* The device of that context is not known. */
SG_EXPORT CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx)
{
    SYNCHRONISE(SG_SYNC_NOTHING, cuCtxSynchronize_v2, ctx);
}
