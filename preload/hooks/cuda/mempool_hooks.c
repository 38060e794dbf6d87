/*
 * mempool_hooks.c - stream-ordered memory.
 *
 * What counts is what a pool has reserved, not each block: freed blocks stay in the pool up to its release
 * threshold. A request is judged by the most that it can make the pool grow, before it does (mempool.h). After
 * it the pool is asked, and the difference is charged. Where the driver cannot tell, blocks are counted one by one.
 *
 * No context need be current: cuda.h asks for one only with a default stream. The pool is the one that is current to
 * the stream's device, or the one that was named.
 */
#include "base/compiler.h"
#include "hooks/cuda/call.h"
#include "hooks/cuda/contexts.h"
#include "base/options.h"
#include "hooks/cuda/mempool.h"
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
    static CUmemoryPool known[SG_DEVICE_CAPACITY]; /* (atomic) */
    SG_DRIVER(get, cuDeviceGetMemPool);
    CUmemoryPool handle = NULL;
    CUmemoryPool *last = &known[sg_cuda_device_number(device)];
    if (get == NULL || get(&handle, (CUdevice)device) != CUDA_SUCCESS)
        return sg_load_acquire(last);
    sg_store_release(last, handle);
    return handle;
}

/* The device whose own pool that is, or `otherwise`: a pool whose making we did not see is a device's. Asked once a
 * pool. */
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

/* The key that tells a stream from all others. The default streams are each context's own, and one of them each
 * thread's. */
static uint64_t key_of(CUstream stream, bool is_ptsz)
{
    if (stream == CU_STREAM_PER_THREAD || (stream == NULL && is_ptsz))
        return (uint64_t)(uintptr_t)&sg_self | 1;
    if (stream == NULL || stream == CU_STREAM_LEGACY)
        return (uint64_t)sg_context_current() << 8 | 3;
    return (uint64_t)(uintptr_t)stream;
}

/* What a capturing stream allocates becomes a node of a graph: nothing is taken before that is launched (graph.c). On
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

/* ---- taking ------------------------------------------------------------------------------------------------------ */

struct taking {
    struct sg_cuda_call call;
    struct sg_mempool_flight pool;
    uint64_t size_bytes;
    CUstream stream;
    const void *caller; /* where the program's call returns to */
    struct sg_mempool_view view;
    enum sg_hook hook;
    bool is_ptsz;
    bool is_judged; /* false: its stream has no context, or it is not for us to look at */
};

/* Finds the pool that the call names, or that is current where its stream is. Of a stream without a context there is
 * none: the driver refuses by itself, unless it is made by another thread meanwhile. */
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
    taking->view = sg_mempool_memory_of(taking->pool.handle);
    if (!taking->view.is_known)
        taking->view.device = named != NULL ? owner_of(*named, device) : device;
    taking->pool.device = sg_cuda_device_number(taking->view.device);
    taking->pool.domain = taking->view.domain;
    return true;
}

/* The program asked for nothing that a capture prohibits and that would break it, this thread's or another's (cuda.h of
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

/* ---- may it?
 * --------------------------------------------------------------------------------------------------------- */

static bool ask(struct taking *taking, uint64_t size_bytes, uint64_t growth_bytes, bool is_tentative)
{
    struct sg_request *request = &taking->call.request;
    request->size_bytes = size_bytes;
    request->growth_bytes = growth_bytes;
    request->asked_bytes = taking->size_bytes;
    request->is_behind = is_tentative || sg_options.mode_observe;
    request->is_rare = growth_bytes == 0; /* what is there, or may come unjudged, is not in a cached snapshot */
    taking->call.is_tentative = is_tentative;
    return sg_cuda_ask(&taking->call);
}

/* By all that it may make the pool grow. */
static bool ask_for_growth(struct taking *taking, bool is_tentative)
{
    if (!ask(taking, taking->pool.growth_bytes, taking->pool.growth_bytes, is_tentative))
        return false;
    sg_mempool_judged(&taking->pool);
    return true;
}

/* Its room was not there after all. */
static void stop_flight(struct taking *taking)
{
    if (taking->call.request.granted_bytes != 0)
        sg_admission_settle(&taking->call.request, 0);
}

/* It does not fit so far. Growth that was refused and stayed in the pool is no headroom. */
static bool judge_alone(struct taking *taking)
{
    struct sg_request *request = &taking->call.request;
    uint64_t unwanted = sg_mempool_memory_of(taking->pool.handle).unwanted_bytes;
    if (!sg_cuda_look_closely(&taking->call))
        return false;
    bool is_there = sg_mempool_begin_turn(&taking->pool, request);
    if (is_there && unwanted == 0)
        return true;
    stop_flight(taking);
    bool is_granted = is_there ? ask(taking, taking->size_bytes < unwanted ? taking->size_bytes : unwanted, 0, false)
                               : sg_mempool_may_pass(&taking->pool) && ask(taking, 1, 0, true);
    if (is_granted)
        sg_admission_fly(request, taking->pool.growth_bytes);
    if (is_granted || is_there)
        return is_granted;
    if (sg_mempool_begin_trim(&taking->pool)) {
        trim(taking->pool.handle, 0);
        sg_mempool_memory_refresh();
    }
    sg_mempool_end_turn();
    return ask_for_growth(taking, false);
}

static bool judge(struct taking *taking)
{
    if (sg_mempool_begin(&taking->pool, &taking->call.request))
        return true;
    stop_flight(taking);
    taking->call.has_headroom = taking->pool.has_headroom;
    if (ask_for_growth(taking, !sg_options.mode_observe))
        return true;
    return taking->call.is_tentative && taking->call.request.is_short && judge_alone(taking);
}

/* False: refused. */
static SG_INLINE bool begin_taking(struct taking *taking, enum sg_hook hook, const CUdeviceptr *out,
                                   const CUmemoryPool *named)
{
    taking->hook = hook;
    taking->is_ptsz = sg_hook_table[hook].is_ptsz;
    if (out == NULL || taking->size_bytes == 0 || (named != NULL && *named == NULL))
        return true;
    sg_cuda_open(&taking->call);
    if (taking->call.is_counted && (!sg_cuda_has_begun() || is_captured(taking->stream, taking->is_ptsz))) {
        sg_cuda_close(&taking->call);
        taking->call.is_counted = false;
    }
    taking->is_judged = taking->call.is_counted && find_pool(taking, named);
    if (!taking->is_judged)
        return true;
    sg_cuda_prepare(&taking->call, hook, taking->view.domain, taking->pool.device);
    taking->pool.size_bytes = taking->size_bytes;
    taking->pool.key = key_of(taking->stream, taking->is_ptsz);
    taking->call.request.has_device_pool =
        taking->view.domain == SG_DOMAIN_DEVICE && sg_cuda_has_own_pool(taking->pool.device);
    taking->call.request.device_identity = sg_cuda_device_identity(taking->pool.device);
    bool is_granted = judge(taking);
    if (is_granted)
        sg_cuda_go_on();
    else
        sg_cuda_close(&taking->call);
    return is_granted;
}

/* Growth that nobody has judged: the driver's steps are larger than was known, or it did not take the room that was
 * there. It is charged already, so to the job nothing is new. */
static bool may_keep(struct taking *taking)
{
    if (taking->pool.handle == NULL)
        return true;
    sg_mempool_book(&taking->pool);
    if (taking->pool.excess_bytes == 0)
        return true;
    stop_flight(taking); /* or the next question would wait for this one */
    taking->call.has_headroom = true;
    return ask(taking, taking->pool.excess_bytes, 0, false);
}

/* After a block that may not be kept was freed: what the pool cannot let go of, because a free counts as outstanding
 * until it is seen to be done (cuda.h of cuMemPoolTrimTo), is counted, and is no room for the next request. What other
 * threads make the pool grow meanwhile may hide what it gives back, as with a synchronisation. */
static void drop_growth(const struct taking *taking, CUdeviceptr block)
{
    (void)sg_mempool_begin_sync(SG_SYNC_NOTHING);
    trim(taking->pool.handle, taking->pool.before_bytes);
    sg_mempool_book_refused(&taking->pool, block);
}

static void record_block(const struct taking *taking, CUdeviceptr ptr)
{
    uint64_t stale, block = sg_mempool_add_block(&taking->pool, ptr);
    if (block == 0) {
        sg_cuda_record(&taking->call, &sg_tracker_cuda, ptr, taking->size_bytes, taking->caller);
        return;
    }
    uint32_t site = sg_cuda_enter_site(taking->pool.domain, taking->caller, sg_block_size(block));
    block |= (uint64_t)site << SG_BLOCK_SITE_SHIFT;
    if (sg_block_table_insert(&sg_tracker_cuda, ptr, block, &stale) != 0) {
        sg_ledger_count_fault();
        sg_callsites_leave(SG_CALLSITES_CUDA, site, sg_block_size(block));
    } else if (stale != 0) { /* entered just behind the end of its context */
        sg_cuda_released(&sg_tracker_cuda, stale);
    }
    sg_ledger_count_allocation(taking->pool.domain);
    sg_context_recheck(&sg_tracker_cuda, ptr, block, taking->call.ends_before);
}

/* The stream has got a context since. It is judged as what a pool takes beyond what was asked for is. */
static void judge_late(struct taking *taking, const CUmemoryPool *named)
{
    uint32_t layers = sg_cuda_go_inside();
    taking->is_judged = find_pool(taking, named);
    sg_self.layers = layers;
    if (!taking->is_judged)
        return;
    sg_cuda_prepare(&taking->call, taking->hook, taking->view.domain, taking->pool.device);
    taking->pool.size_bytes = taking->size_bytes;
    (void)sg_mempool_begin(&taking->pool, &taking->call.request);
    sg_cuda_go_on();
}

/* A block that the driver does not take back is granted. */
static CUresult end_taking(struct taking *taking, CUresult result, CUdeviceptr *out, CUdeviceptr before,
                           const CUmemoryPool *named, CUresult(CUDAAPI *give_back)(CUdeviceptr, CUstream))
{
    if (!taking->call.is_counted)
        return result;
    if (SG_UNLIKELY(!taking->is_judged) && result == CUDA_SUCCESS)
        judge_late(taking, named);
    if (!taking->is_judged) {
        sg_cuda_close(&taking->call);
        return result;
    }
    if (result == CUDA_SUCCESS && !may_keep(taking) && give_back(*out, taking->stream) == CUDA_SUCCESS) {
        drop_growth(taking, *out);
        *out = before;
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (result == CUDA_SUCCESS) {
        record_block(taking, *out);
    }
    sg_cuda_end(&taking->call, result == CUDA_SUCCESS ? taking->pool.taken_bytes + taking->pool.excess_bytes : 0);
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
    CUdeviceptr before = taking.call.is_counted ? *(dptr) : 0; \
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

#define FREE_ASYNC(name, dptr, stream) \
    uint64_t ends_before = sg_load_acquire(&sg_context_ends); \
    uint64_t block = sg_cuda_is_ours() ? sg_cuda_take_out(&sg_tracker_cuda, dptr) : 0; \
    if ((block & SG_BLOCK_POOLED) != 0) \
        sg_mempool_free_in(block, dptr, key_of(stream, sg_hook_table[SG_HOOK_##name].is_ptsz)); \
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

/* ---- what gives back
 * ------------------------------------------------------------------------------------------------- */

static void end_sync(const struct sg_mempool_sync *sync, bool is_done)
{
    CUdevice device = 0;
    if (sg_self.open.is_syncing && sync->key == SG_SYNC_CONTEXT)
        (void)current_device(&device);
    sg_mempool_end_sync(sync, sg_cuda_device_number((uint32_t)device), is_done);
}

/* Synchronisations and their like give back what a pool holds above its release threshold. Others of the job must
 * not be refused for it, nor this program be told of it later. Where nothing was allocated from a pool: two loads. */
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

/* A pool is entered when the program gets to know it, for only here it is told where its memory is. */
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

/* A lower release threshold gives back at the next synchronisation; what did so far, shows now. */
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

/* Which stream's work was before the event is not known. */
SG_EXPORT CUresult CUDAAPI cuEventSynchronize(CUevent hEvent)
{
    SYNCHRONISE(SG_SYNC_NOTHING, cuEventSynchronize, hEvent);
}

SG_EXPORT CUresult CUDAAPI cuCtxSynchronize(void)
{
    SYNCHRONISE(SG_SYNC_CONTEXT, cuCtxSynchronize);
}

/* Which device's that context is, is not known. */
SG_EXPORT CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx)
{
    SYNCHRONISE(SG_SYNC_NOTHING, cuCtxSynchronize_v2, ctx);
}
