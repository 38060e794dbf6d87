/*
 * hook_context.c - contexts: they announce nothing and cost GiBs.
 *
 * Creating one is a request of the size that the last one took on this machine (512 MiB until one has been measured), settled
 * by measurement: MemAvailable before and after the call, where nobody else had anything in flight. What it took is
 * shown as unaccounted until it goes. On a discrete card the driver says nothing before there is a context, and the machine
 * has nothing to lose: not judged.
 */
#include "cuda_call.h"

#include "compiler.h"
#include "options.h"
#include "room.h"
#include "seats.h"

#define MIB (UINT64_C(1) << 20)
#define FIRST_GUESS (512 * MIB)
#define LEAST_COST (16 * MIB)   /* less than that is noise */
#define OTHERS_MOST (128 * MIB) /* asked for meanwhile, by the driver itself as a rule */

/* What each primary context took; the others' costs are in sg_index_contexts. (atomic) */
static uint64_t primary_cost[SG_DEVICE_ROOM];

struct making {
    struct sg_cuda_call call;
    struct sg_snapshot before;
    uint64_t granted_before;
};

static bool begin(struct making *making, enum sg_hook hook, CUdevice device, bool is_request)
{
    uint64_t guess = 0;
    if (is_request && sg_lifecycle_enter()) {
        sg_admission_join();
        guess = sg_load(&sg_seats_ledger()->context_bytes);
        guess = guess != 0 ? guess : FIRST_GUESS;
    }
    if (!sg_cuda_begin_on(&making->call, hook, device, guess))
        return false;
    if (making->call.request.granted_bytes == 0)
        return true;
    making->granted_before = sg_load(&sg_own->slot.granted_bytes);
    making->before = sg_admission_snapshot(making->call.request.granted_bytes);
    return true;
}

/* What it took, as far as the machine's figures tell; 0 if they do not. */
static uint64_t measure(const struct making *making)
{
    struct sg_snapshot now = sg_admission_snapshot(making->call.request.granted_bytes);
    uint64_t granted = sg_load(&sg_own->slot.granted_bytes);
    if (!now.is_quiet || !making->before.is_quiet || now.available_bytes >= making->before.available_bytes ||
        now.asked_bytes - making->before.asked_bytes > OTHERS_MOST)
        return 0;
    uint64_t cost = making->before.available_bytes - now.available_bytes;
    uint64_t heap = granted > making->granted_before ? granted - making->granted_before : 0;
    cost -= heap < cost ? heap : cost; /* what the driver asked malloc for is in the ledger */
    return cost >= LEAST_COST ? cost : 0;
}

/* The cost is noted by the caller, with what will end it. */
static uint64_t end(struct making *making, CUresult result)
{
    uint64_t cost = 0, granted = making->call.request.granted_bytes;
    if (result == CUDA_SUCCESS && granted != 0 && (cost = measure(making)) != 0) {
        sg_store(&sg_seats_ledger()->context_bytes, cost);
        sg_fetch_add(&sg_own->unaccounted_bytes, cost);
    }
    sg_cuda_end(&making->call, result == CUDA_SUCCESS ? granted : 0);
    return cost;
}

static void note_gone(uint64_t cost)
{
    (void)sg_sub_clamped(&sg_own->unaccounted_bytes, cost);
}

static void note_context(CUcontext context, uint64_t cost)
{
    if (cost != 0 &&
        sg_table_insert(&sg_index_contexts, (uintptr_t)context, sg_block(cost, SG_DOMAIN_DEVICE, 0), NULL) != 0)
        sg_ledger_count_fault();
}

#define MAKE(name, pctx, dev, ...) \
    struct making making = {0}; \
    if (!begin(&making, SG_HOOK_##name, dev, (pctx) != NULL)) \
        return CUDA_ERROR_OUT_OF_MEMORY; \
    CUresult result = SG_DRIVER_CALL(name, __VA_ARGS__); \
    uint64_t cost = end(&making, result); \
    if (cost != 0 && (pctx) != NULL) \
        note_context(*(pctx), cost); \
    return result

SG_EXPORT CUresult CUDAAPI cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    MAKE(cuCtxCreate, pctx, dev, pctx, flags, dev);
}

SG_EXPORT CUresult CUDAAPI cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    MAKE(cuCtxCreate_v2, pctx, dev, pctx, flags, dev);
}

SG_EXPORT CUresult CUDAAPI cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                                          unsigned int flags, CUdevice dev)
{
    MAKE(cuCtxCreate_v3, pctx, dev, pctx, paramsArray, numParams, flags, dev);
}

SG_EXPORT CUresult CUDAAPI cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                                          CUdevice dev)
{
    MAKE(cuCtxCreate_v4, pctx, dev, pctx, ctxCreateParams, flags, dev);
}

#define DESTROY(name, ctx) \
    uint64_t block = sg_lifecycle_enter() ? sg_table_remove(&sg_index_contexts, (uintptr_t)(ctx)) : 0; \
    CUresult result = SG_DRIVER_CALL(name, ctx); \
    if (block != 0 && result != CUDA_SUCCESS) \
        note_context(ctx, sg_block_size(block)); \
    else if (block != 0) \
        note_gone(sg_block_size(block)); \
    return result

SG_EXPORT CUresult CUDAAPI cuCtxDestroy(CUcontext ctx)
{
    DESTROY(cuCtxDestroy, ctx);
}

SG_EXPORT CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx)
{
    DESTROY(cuCtxDestroy_v2, ctx);
}

/* ---- the primary context: retained and released, there while anybody retains it ---------------------------------- */

static bool is_active(CUdevice device)
{
    SG_DRIVER(get_state, cuDevicePrimaryCtxGetState);
    unsigned int flags = 0;
    int active = 0;
    return get_state != NULL && get_state(device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

static void note_primary(CUdevice device, uint64_t cost)
{
    if (cost != 0)
        sg_fetch_add(&primary_cost[(uint32_t)device % SG_DEVICE_ROOM], cost);
}

/* After something that may have ended it. */
static void check_primary(CUdevice device)
{
    uint64_t *cost = &primary_cost[(uint32_t)device % SG_DEVICE_ROOM];
    if (sg_load(cost) != 0 && !is_active(device))
        note_gone(sg_exchange(cost, 0));
}

SG_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    struct making making = {0};
    if (!begin(&making, SG_HOOK_cuDevicePrimaryCtxRetain, dev, pctx != NULL && !is_active(dev)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = SG_DRIVER_CALL(cuDevicePrimaryCtxRetain, pctx, dev);
    note_primary(dev, end(&making, result));
    return result;
}

/* A green context lives in the primary one. */
SG_EXPORT CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
    struct making making = {0};
    if (!begin(&making, SG_HOOK_cuGreenCtxCreate, dev, phCtx != NULL && !is_active(dev)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = SG_DRIVER_CALL(cuGreenCtxCreate, phCtx, desc, dev, flags);
    note_primary(dev, end(&making, result));
    return result;
}

#define RELEASE(name, dev) \
    CUresult result = SG_DRIVER_CALL(name, dev); \
    if (sg_lifecycle_enter()) \
        check_primary(dev); \
    return result

SG_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev)
{
    RELEASE(cuDevicePrimaryCtxRelease, dev);
}

SG_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    RELEASE(cuDevicePrimaryCtxRelease_v2, dev);
}

SG_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev)
{
    RELEASE(cuDevicePrimaryCtxReset, dev);
}

SG_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    RELEASE(cuDevicePrimaryCtxReset_v2, dev);
}

SG_EXPORT CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    CUresult result = SG_DRIVER_CALL(cuGreenCtxDestroy, hCtx);
    for (CUdevice device = 0; sg_lifecycle_enter() && device < SG_DEVICE_ROOM; device++)
        check_primary(device);
    return result;
}
