/*
 * context_hooks.c - hooks of CUDA contexts, which take GiBs without announcing their size.
 *
 * The creation of a context is a request of the size that the last contexts took on this machine. Its actual cost is
 * measured around the call (context_estimate.h) and shown as unaccounted bytes until the context ends. Not judged on a
 * discrete card: the driver gives no figures before a context exists, and the machine's memory is not at risk.
 */
#include "hooks/cuda/call.h"

#include "base/compiler.h"
#include "hooks/measure/context_estimate.h"
#include "shared/own_entry.h"
#include "account/driver_pool.h"

/* (atomic) The measured cost of each primary context. The costs of other contexts are in sg_tracker_contexts. */
static uint64_t primary_cost[SG_DEVICE_CAPACITY];

struct creation {
    struct sg_cuda_call call;
    struct sg_context_estimate_figures before;
};

/* Asks admission for a new context and takes the measurement before the call. False: refused. */
static SG_INLINE bool begin(struct creation *creation, enum sg_hook hook, CUdevice device, bool is_request)
{
    uint64_t expected = is_request && sg_cuda_is_ours() ? sg_context_estimate_expected_bytes() : 0;
    if (!sg_cuda_begin_on(&creation->call, hook, device, expected))
        return false;
    if (creation->call.request.granted_bytes != 0)
        creation->before = sg_context_estimate_read(creation->call.request.granted_bytes);
    return true;
}

/* Add to the base of managed memory (managed_pages.c) what a context takes, and take it off: no counter explains it. */
static void raise_base(uint64_t bytes)
{
    uint64_t *base = &sg_entry_registry()->unexplained_base_bytes;
    if (sg_load(base) != 0)
        sg_fetch_add(base, bytes);
}

static void lower_base(uint64_t bytes)
{
    uint64_t *base = &sg_entry_registry()->unexplained_base_bytes;
    uint64_t now = sg_load(base);
    while (now != 0 && !sg_cas_u64(base, &now, now > bytes ? now - bytes : 1))
        ;
}

/* Returns the measured cost of the new context; 0 if unknown. The caller stores it for the end of the context. */
static uint64_t end(struct creation *creation, CUresult result)
{
    uint64_t cost = 0, granted = creation->call.request.granted_bytes;
    if (result == CUDA_SUCCESS && granted != 0) {
        struct sg_context_estimate_figures after = sg_context_estimate_read(granted);
        cost = sg_context_estimate_learn(&creation->before, &after);
        sg_fetch_add(&sg_own->unaccounted_bytes, cost);
        sg_driver_pool_note_taken(cost != 0 ? cost : granted); /* no fall shows what its pool serves */
        raise_base(cost != 0 ? cost : granted);
    }
    sg_cuda_end(&creation->call, result == CUDA_SUCCESS ? granted : 0);
    return cost;
}

/* Subtracts the cost of a context that has ended. */
static void note_gone(uint64_t cost)
{
    (void)sg_sub_clamped(&sg_own->unaccounted_bytes, cost);
    sg_driver_pool_note_given(cost);
    lower_base(cost);
}

/* Stores the cost of a context for its end. */
static void note_context(CUcontext context, uint64_t cost)
{
    if (cost != 0 &&
        sg_block_table_insert(&sg_tracker_contexts, (uintptr_t)context, sg_block(cost, SG_DOMAIN_DEVICE, 0), NULL) != 0)
        sg_ledger_count_fault();
}

/* Hook of a call that creates a context. */
#define CREATE(name, pctx, dev, ...) \
    struct creation creation = {0}; \
    if (!begin(&creation, SG_HOOK_##name, dev, (pctx) != NULL)) \
        return creation.call.answer; \
    CUresult result = SG_DRIVER_CALL(name, __VA_ARGS__); \
    uint64_t cost = end(&creation, result); \
    if (cost != 0 && (pctx) != NULL) \
        note_context(*(pctx), cost); \
    if (result == CUDA_SUCCESS && (pctx) != NULL && creation.call.is_counted) \
        sg_context_enter(*(pctx)); \
    return result

SG_EXPORT CUresult CUDAAPI cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    CREATE(cuCtxCreate, pctx, dev, pctx, flags, dev);
}

SG_EXPORT CUresult CUDAAPI cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    CREATE(cuCtxCreate_v2, pctx, dev, pctx, flags, dev);
}

SG_EXPORT CUresult CUDAAPI cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                                          unsigned int flags, CUdevice dev)
{
    CREATE(cuCtxCreate_v3, pctx, dev, pctx, paramsArray, numParams, flags, dev);
}

SG_EXPORT CUresult CUDAAPI cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                                          CUdevice dev)
{
    CREATE(cuCtxCreate_v4, pctx, dev, pctx, ctxCreateParams, flags, dev);
}

/* Declared here, because cudaGL.h and cudaVDPAU.h need the headers of OpenGL and VDPAU. A VdpDevice has 32 bits. */
extern CUresult CUDAAPI cuGLCtxCreate(CUcontext *pCtx, unsigned int Flags, CUdevice device);
extern CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *pCtx, unsigned int Flags, CUdevice device);
extern CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext *pCtx, unsigned int flags, CUdevice device, uint32_t vdpDevice,
                                         void *vdpGetProcAddress);
extern CUresult CUDAAPI cuVDPAUCtxCreate_v2(CUcontext *pCtx, unsigned int flags, CUdevice device, uint32_t vdpDevice,
                                            void *vdpGetProcAddress);

SG_EXPORT CUresult CUDAAPI cuGLCtxCreate(CUcontext *pCtx, unsigned int Flags, CUdevice device)
{
    CREATE(cuGLCtxCreate, pCtx, device, pCtx, Flags, device);
}

SG_EXPORT CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *pCtx, unsigned int Flags, CUdevice device)
{
    CREATE(cuGLCtxCreate_v2, pCtx, device, pCtx, Flags, device);
}

SG_EXPORT CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext *pCtx, unsigned int flags, CUdevice device, uint32_t vdpDevice,
                                            void *vdpGetProcAddress)
{
    CREATE(cuVDPAUCtxCreate, pCtx, device, pCtx, flags, device, vdpDevice, vdpGetProcAddress);
}

SG_EXPORT CUresult CUDAAPI cuVDPAUCtxCreate_v2(CUcontext *pCtx, unsigned int flags, CUdevice device, uint32_t vdpDevice,
                                               void *vdpGetProcAddress)
{
    CREATE(cuVDPAUCtxCreate_v2, pCtx, device, pCtx, flags, device, vdpDevice, vdpGetProcAddress);
}

/* Hook of a call that destroys a context and releases its blocks and its cost. */
#define DESTROY(name, ctx) \
    if (!sg_cuda_is_ours()) \
        return SG_DRIVER_CALL(name, ctx); \
    uint64_t cost = sg_block_table_remove(&sg_tracker_contexts, (uintptr_t)(ctx)); \
    struct sg_context_end ending = sg_context_end_of(ctx); \
    sg_context_begin_end(&ending); \
    SG_DRIVER_INSIDE(name, ctx); \
    sg_context_finish_end(&ending, result); \
    if (result == CUDA_SUCCESS) \
        note_gone(sg_block_size(cost)); \
    else \
        note_context(ctx, sg_block_size(cost)); \
    return result

SG_EXPORT CUresult CUDAAPI cuCtxDestroy(CUcontext ctx)
{
    DESTROY(cuCtxDestroy, ctx);
}

SG_EXPORT CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx)
{
    DESTROY(cuCtxDestroy_v2, ctx);
}

/* Deprecated: a use count of contexts. The last detach destroys the context. */
SG_EXPORT CUresult CUDAAPI cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
    SG_DRIVER_THEN(sg_context_attach(*pctx), cuCtxAttach, pctx, flags);
}

/* The cuCtxDetach that destroys the context. */
static CUresult detach_last(CUcontext ctx)
{
    DESTROY(cuCtxDetach, ctx);
}

static CUresult detach_other(CUcontext ctx)
{
    SG_DRIVER_INSIDE(cuCtxDetach, ctx);
    return result;
}

SG_EXPORT CUresult CUDAAPI cuCtxDetach(CUcontext ctx)
{
    if (!sg_cuda_is_ours())
        return SG_DRIVER_CALL(cuCtxDetach, ctx);
    CUresult result = sg_context_detach(ctx) ? detach_last(ctx) : detach_other(ctx);
    if (result != CUDA_SUCCESS)
        sg_context_attach(ctx);
    return result;
}

/* ---- the primary context: exists while it is retained ------------------------------------------------------------ */

/* Adds the cost of a primary context for its end. */
static void note_primary(CUdevice device, uint64_t cost)
{
    if (cost != 0)
        sg_fetch_add(&primary_cost[sg_cuda_device_number(device)], cost);
}

/* Subtracts the cost of a primary context if it has ended. */
static void check_primary_cost(CUdevice device)
{
    uint64_t *cost = &primary_cost[sg_cuda_device_number(device)];
    if (sg_load(cost) != 0 && sg_context_primary_state(device) == SG_PRIMARY_INACTIVE)
        note_gone(sg_exchange(cost, 0));
}

/* After a call that may have ended the primary context. Only afterwards is it known whether a release was the last. */
static void check_primary(CUdevice device)
{
    check_primary_cost(device);
    sg_context_check_primary(device);
}

/* Before a call that may create the primary context: true if the creation must be judged. */
static bool needs_creation(CUdevice device)
{
    if (sg_context_primary_state(device) == SG_PRIMARY_ACTIVE)
        return false;
    if (sg_cuda_is_ours())
        sg_context_check_primary(device);
    return true;
}

SG_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    struct creation creation = {0};
    if (!begin(&creation, SG_HOOK_cuDevicePrimaryCtxRetain, dev, pctx != NULL && needs_creation(dev)))
        return creation.call.answer;
    CUresult result = SG_DRIVER_CALL(cuDevicePrimaryCtxRetain, pctx, dev);
    if (result == CUDA_SUCCESS && creation.call.is_counted && pctx != NULL)
        sg_context_primary_retained(dev, *pctx);
    note_primary(dev, end(&creation, result));
    return result;
}

/* A green context lies in the primary context. */
SG_EXPORT CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
    struct creation creation = {0};
    if (!begin(&creation, SG_HOOK_cuGreenCtxCreate, dev, phCtx != NULL && needs_creation(dev)))
        return creation.call.answer;
    CUresult result = SG_DRIVER_CALL(cuGreenCtxCreate, phCtx, desc, dev, flags);
    if (result == CUDA_SUCCESS && creation.call.is_counted)
        sg_context_primary_retained(dev, NULL);
    note_primary(dev, end(&creation, result));
    return result;
}

/* Hook of a reset, which ends the primary context no matter how often it is retained. */
#define RESET(name, dev) \
    if (!sg_cuda_is_ours()) \
        return SG_DRIVER_CALL(name, dev); \
    if (sg_context_primary_state(dev) == SG_PRIMARY_INACTIVE) { /* ended before, during other threads' calls */ \
        check_primary(dev); \
        return SG_DRIVER_CALL(name, dev); \
    } \
    struct sg_context_end ending = sg_context_end_of_primary(dev); \
    sg_context_begin_end(&ending); \
    SG_DRIVER_INSIDE(name, dev); \
    sg_context_finish_end(&ending, result); /* checks the primary context */ \
    check_primary_cost(dev); \
    return result

SG_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev)
{
    SG_DRIVER_THEN(check_primary(dev), cuDevicePrimaryCtxRelease, dev);
}

SG_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    SG_DRIVER_THEN(check_primary(dev), cuDevicePrimaryCtxRelease_v2, dev);
}

SG_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev)
{
    RESET(cuDevicePrimaryCtxReset, dev);
}

SG_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    RESET(cuDevicePrimaryCtxReset_v2, dev);
}

/* ---- memory that a context takes later --------------------------------------------------------------------------- */

/* All other limits are hints to caches. */
static bool takes_memory(CUlimit limit)
{
    return limit == CU_LIMIT_STACK_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE ||
           limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH || limit == CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT;
}

/* Adds a change of the current context's cost. The changed cost ends with the context. */
static void note_change(const struct sg_cuda_call *call, uint64_t more, uint64_t less)
{
    SG_DRIVER(get_current, cuCtxGetCurrent);
    CUcontext current = NULL;
    uint64_t *primary = &primary_cost[call->device];
    if (call->context == SG_CONTEXT_PRIMARY) {
        less -= sg_sub_clamped(primary, less);
        sg_fetch_add(primary, more);
    } else if (get_current != NULL && get_current(&current) == CUDA_SUCCESS) {
        uint64_t cost = sg_block_size(sg_block_table_remove(&sg_tracker_contexts, (uintptr_t)current));
        less = less < cost ? less : cost;
        note_context(current, cost + more - less);
    }
    sg_fetch_add(&sg_own->unaccounted_bytes, more);
    note_gone(less);
}

/* The driver decides how much a kernel stack, queue or heap takes. Measured only if the memory is the machine's. */
SG_EXPORT CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value)
{
    struct sg_cuda_call call;
    struct sg_context_estimate_figures before = {0};
    (void)sg_cuda_begin(&call, SG_HOOK_cuCtxSetLimit, SG_DOMAIN_DEVICE, 0);
    bool is_measured = call.is_counted && takes_memory(limit) && sg_cuda_knows_device(call.device) &&
                       !sg_cuda_has_own_pool(call.device);
    if (is_measured)
        before = sg_context_estimate_read(0);
    CUresult result = SG_DRIVER_CALL(cuCtxSetLimit, limit, value);
    if (is_measured && result == CUDA_SUCCESS) {
        struct sg_context_estimate_figures after = sg_context_estimate_read(0);
        note_change(&call, sg_context_estimate_measure(&before, &after), sg_context_estimate_measure(&after, &before));
    }
    sg_cuda_end(&call, 0);
    return result;
}

/* cuGreenCtxDestroy does not say on which device the green context was, so all devices are checked. */
static void check_primaries(void)
{
    for (CUdevice device = 0; device < SG_DEVICE_CAPACITY; device++)
        if (sg_load(&primary_cost[device]) != 0 || sg_load_acquire(&sg_own->device[device].is_known) != 0)
            check_primary(device);
}

SG_EXPORT CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    SG_DRIVER_THEN(check_primaries(), cuGreenCtxDestroy, hCtx);
}
