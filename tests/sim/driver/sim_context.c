/*
 * sim_context.c - contexts of the simulated driver, what they cost among it.
 *
 * A context object is never reused, so a handle that outlives it is told CONTEXT_IS_DESTROYED.
 * Destroying a context gives back what was allocated in it; resetting a primary one also empties
 * the pools and the graphs' memory of its device. VMM handles and reservations belong to no context and stay.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#include <string.h>

#define STACK_DEPTH 24

/* The contexts of one thread, the current one last. Not thread-local itself: of this size libc might malloc it. */
struct thread {
    struct sgsim_object *contexts[STACK_DEPTH];
    size_t depth;
};
_Static_assert(sizeof(struct thread) <= sizeof(struct sgsim_object), "a thread record lives in an object's slot");

/* initial-exec: the pointer sits in the thread's static block, no lazy allocation at first use. */
static __thread struct thread *self __attribute__((tls_model("initial-exec")));

struct sgsim_object *sgsim_current(void)
{
    return self && self->depth ? self->contexts[self->depth - 1] : NULL;
}

static CUresult push(struct sgsim_object *context)
{
    if (!self)
        self = (struct thread *)(void *)sgsim_object_new(SGSIM_FREE_SLOT);
    if (!self)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (self->depth == STACK_DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    if (self->depth == 0) /* the slot came with the role of an object in it */
        memset(self, 0, sizeof *self);
    self->contexts[self->depth++] = context;
    return CUDA_SUCCESS;
}

/* What a context costs is taken here, announced by no allocation call. */
static CUresult activate(struct sgsim_object *context)
{
    CUresult error = sgsim_charge(SGSIM_CONTEXT, context->device, sgsim.context_bytes);
    if (error != CUDA_SUCCESS)
        return error;
    if (sgsim.context_bytes)
        context->backing = sgsim_map_backing(SGSIM_CONTEXT, sgsim.context_bytes, false, &context->backing_size);
    static unsigned long long last_id;
    context->u.id = ++last_id;
    context->is_active = true;
    return CUDA_SUCCESS;
}

static void deactivate(struct sgsim_object *context)
{
    if (!context->is_active)
        return;
    sgsim_memory_drop_context(context);
    if (context->is_primary) {
        sgsim_pool_reset_device(context->device);
        sgsim_graph_reset_device(context->device);
    }
    sgsim_unmap(context->backing, context->backing_size);
    context->backing = 0;
    sgsim_release(SGSIM_CONTEXT, context->device, sgsim.context_bytes + context->charged);
    context->charged = 0;
    context->is_active = false;
    context->error = CUDA_SUCCESS;
}

static CUresult create(CUcontext *out, unsigned int flags, CUdevice device)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgsim_is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    struct sgsim_object *context = sgsim_handle_new(SGSIM_CONTEXT_HANDLE);
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->device = device;
    context->flags = flags;
    CUresult error = activate(context);
    if (error == CUDA_SUCCESS && (error = push(context)) != CUDA_SUCCESS)
        deactivate(context);
    if (error != CUDA_SUCCESS) {
        sgsim_handle_drop(context);
        return error;
    }
    *out = (CUcontext)(void *)context;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    SGSIM_ENTER(cuCtxCreate, SGSIM_NEEDS_INIT);
    return sgsim_leave(create(context, flags, device));
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    SGSIM_ENTER(cuCtxCreate_v2, SGSIM_NEEDS_INIT);
    return sgsim_leave(create(context, flags, device));
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *params, int count, unsigned int flags,
                                CUdevice device)
{
    SGSIM_ENTER(cuCtxCreate_v3, SGSIM_NEEDS_INIT);
    (void)params;
    (void)count;
    return sgsim_leave(create(context, flags, device));
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device)
{
    SGSIM_ENTER(cuCtxCreate_v4, SGSIM_NEEDS_INIT);
    (void)params;
    return sgsim_leave(create(context, flags, device));
}

CUresult CUDAAPI cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    SGSIM_ENTER(cuGLCtxCreate, SGSIM_NEEDS_INIT);
    return sgsim_leave(create(context, flags, device));
}

CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    SGSIM_ENTER(cuGLCtxCreate_v2, SGSIM_NEEDS_INIT);
    return sgsim_leave(create(context, flags, device));
}

CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice device, uint32_t vdp_device,
                                  void *get_proc_address)
{
    SGSIM_ENTER(cuVDPAUCtxCreate, SGSIM_NEEDS_INIT);
    (void)vdp_device;
    (void)get_proc_address;
    return sgsim_leave(create(context, flags, device));
}

CUresult CUDAAPI cuVDPAUCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device, uint32_t vdp_device,
                                     void *get_proc_address)
{
    SGSIM_ENTER(cuVDPAUCtxCreate_v2, SGSIM_NEEDS_INIT);
    (void)vdp_device;
    (void)get_proc_address;
    return sgsim_leave(create(context, flags, device));
}

/* The object stays: other threads may still have it current, and must be told CONTEXT_IS_DESTROYED, not crash. */
static CUresult destroy(CUcontext handle)
{
    struct sgsim_object *context = sgsim_handle_find(handle, SGSIM_CONTEXT_HANDLE);
    if (!context || context->is_primary || !context->is_active)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context == sgsim_current())
        self->depth--;
    deactivate(context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxDestroy(CUcontext context)
{
    SGSIM_ENTER(cuCtxDestroy, SGSIM_NEEDS_INIT);
    return sgsim_leave(destroy(context));
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext context)
{
    SGSIM_ENTER(cuCtxDestroy_v2, SGSIM_NEEDS_INIT);
    return sgsim_leave(destroy(context));
}

/* Usage counts of contexts that are not primary: 0 is one user. */
CUresult CUDAAPI cuCtxAttach(CUcontext *out, unsigned int flags)
{
    SGSIM_ENTER(cuCtxAttach, SGSIM_NEEDS_CONTEXT);
    struct sgsim_object *context = sgsim_current();
    if (!out || flags != 0 || context->is_primary)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    context->references++;
    *out = (CUcontext)(void *)context;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxDetach(CUcontext handle)
{
    SGSIM_ENTER(cuCtxDetach, SGSIM_NEEDS_CONTEXT);
    struct sgsim_object *context = sgsim_handle_find(handle, SGSIM_CONTEXT_HANDLE);
    if (!context || context->is_primary || context != sgsim_current())
        return sgsim_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (context->references == 0)
        return sgsim_leave(destroy(handle));
    context->references--;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *context)
{
    SGSIM_ENTER(cuCtxGetCurrent, SGSIM_NEEDS_INIT);
    if (!context)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    *context = (CUcontext)(void *)sgsim_current();
    return sgsim_leave(CUDA_SUCCESS);
}

static CUresult push_handle(CUcontext handle)
{
    struct sgsim_object *context = sgsim_handle_find(handle, SGSIM_CONTEXT_HANDLE);
    return context && context->is_active ? push(context) : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult pop(CUcontext *popped)
{
    struct sgsim_object *context = sgsim_current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    self->depth--;
    if (popped)
        *popped = (CUcontext)(void *)context;
    return CUDA_SUCCESS;
}

/* Replaces the top of the thread's stack; NULL takes it off. */
static CUresult set_current(CUcontext handle)
{
    struct sgsim_object *context = sgsim_handle_find(handle, SGSIM_CONTEXT_HANDLE);
    if (handle && (!context || !context->is_active))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (sgsim_current())
        self->depth--;
    return handle ? push(context) : CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context)
{
    SGSIM_ENTER(cuCtxSetCurrent, SGSIM_NEEDS_INIT);
    return sgsim_leave(set_current(context));
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext context)
{
    SGSIM_ENTER(cuCtxPushCurrent, SGSIM_NEEDS_INIT);
    return sgsim_leave(push_handle(context));
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext context)
{
    SGSIM_ENTER(cuCtxPushCurrent_v2, SGSIM_NEEDS_INIT);
    return sgsim_leave(push_handle(context));
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext *context)
{
    SGSIM_ENTER(cuCtxPopCurrent, SGSIM_NEEDS_INIT);
    return sgsim_leave(pop(context));
}

CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext *context)
{
    SGSIM_ENTER(cuCtxPopCurrent_v2, SGSIM_NEEDS_INIT);
    return sgsim_leave(pop(context));
}

/* NULL asks for the current context. */
static CUresult device_of(CUcontext handle, CUdevice *device)
{
    const struct sgsim_object *context = handle ? sgsim_handle_find(handle, SGSIM_CONTEXT_HANDLE) : sgsim_current();
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = context->device;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice *device)
{
    SGSIM_ENTER(cuCtxGetDevice, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(device_of(NULL, device));
}

CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    SGSIM_ENTER(cuCtxGetDevice_v2, SGSIM_NEEDS_INIT);
    return sgsim_leave(device_of(context, device));
}

CUresult CUDAAPI cuCtxGetId(CUcontext handle, unsigned long long *id)
{
    SGSIM_ENTER(cuCtxGetId, SGSIM_NEEDS_INIT);
    const struct sgsim_object *context = handle ? sgsim_handle_find(handle, SGSIM_CONTEXT_HANDLE) : sgsim_current();
    if (!id || !context)
        return sgsim_leave(id ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE);
    if (!context->is_active)
        return sgsim_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    *id = context->u.id;
    return sgsim_leave(CUDA_SUCCESS);
}

/* The heap of kernels is the context's own memory, here from the call on; other limits take nothing. */
static CUresult set_limit(struct sgsim_object *context, CUlimit limit, size_t value)
{
    if ((unsigned int)limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (limit != CU_LIMIT_MALLOC_HEAP_SIZE)
        return CUDA_SUCCESS;
    if (value < context->charged)
        sgsim_release(SGSIM_CONTEXT, context->device, context->charged - value);
    else if (sgsim_charge(SGSIM_CONTEXT, context->device, value - context->charged) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->charged = value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value)
{
    SGSIM_ENTER(cuCtxSetLimit, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(set_limit(sgsim_current(), limit, value));
}

CUresult CUDAAPI cuCtxSynchronize(void)
{
    SGSIM_ENTER(cuCtxSynchronize, SGSIM_NEEDS_CONTEXT);
    sgsim_pool_synchronize(0);
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext context)
{
    CUdevice device;
    SGSIM_ENTER(cuCtxSynchronize_v2, SGSIM_NEEDS_INIT);
    CUresult error = device_of(context, &device);
    if (error == CUDA_SUCCESS)
        sgsim_pool_synchronize(0);
    return sgsim_leave(error);
}

/* ---- primary contexts ---- */

/* Its object, made when first asked for; costs nothing before it is activated. */
static struct sgsim_object *primary_of(CUdevice device)
{
    struct sgsim_object *context = sgsim.primary[device];
    if (!context && (context = sgsim_handle_new(SGSIM_CONTEXT_HANDLE))) {
        context->device = device;
        context->is_primary = true;
        sgsim.primary[device] = context;
    }
    return context;
}

CUresult sgsim_primary_retain(CUcontext *out, CUdevice device)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgsim_is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    struct sgsim_object *context = primary_of(device);
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!context->is_active) {
        CUresult error = activate(context);
        if (error != CUDA_SUCCESS)
            return error;
    }
    context->references++;
    *out = (CUcontext)(void *)context;
    return CUDA_SUCCESS;
}

CUresult sgsim_primary_release(CUdevice device)
{
    if (!sgsim_is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    struct sgsim_object *context = sgsim.primary[device];
    if (!context || context->references == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--context->references == 0)
        deactivate(context);
    return CUDA_SUCCESS;
}

/* "Resetting the primary context does not release it" (cuda.h): references stay. */
static CUresult reset_primary(CUdevice device)
{
    if (!sgsim_is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (sgsim.primary[device])
        deactivate(sgsim.primary[device]);
    return CUDA_SUCCESS;
}

static CUresult set_primary_flags(CUdevice device, unsigned int flags)
{
    if (!sgsim_is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    struct sgsim_object *context = primary_of(device);
    if (!context)
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    SGSIM_ENTER(cuDevicePrimaryCtxRetain, SGSIM_NEEDS_INIT);
    return sgsim_leave(sgsim_primary_retain(context, device));
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device)
{
    SGSIM_ENTER(cuDevicePrimaryCtxRelease, SGSIM_NEEDS_INIT);
    return sgsim_leave(sgsim_primary_release(device));
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    SGSIM_ENTER(cuDevicePrimaryCtxRelease_v2, SGSIM_NEEDS_INIT);
    return sgsim_leave(sgsim_primary_release(device));
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device)
{
    SGSIM_ENTER(cuDevicePrimaryCtxReset, SGSIM_NEEDS_INIT);
    return sgsim_leave(reset_primary(device));
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    SGSIM_ENTER(cuDevicePrimaryCtxReset_v2, SGSIM_NEEDS_INIT);
    return sgsim_leave(reset_primary(device));
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags)
{
    SGSIM_ENTER(cuDevicePrimaryCtxSetFlags, SGSIM_NEEDS_INIT);
    return sgsim_leave(set_primary_flags(device, flags));
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    SGSIM_ENTER(cuDevicePrimaryCtxSetFlags_v2, SGSIM_NEEDS_INIT);
    return sgsim_leave(set_primary_flags(device, flags));
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    SGSIM_ENTER(cuDevicePrimaryCtxGetState, SGSIM_NEEDS_INIT);
    if (!flags || !active)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sgsim_is_device(device))
        return sgsim_leave(CUDA_ERROR_INVALID_DEVICE);
    const struct sgsim_object *context = sgsim.primary[device];
    *flags = context ? context->flags : 0;
    *active = context && context->is_active;
    return sgsim_leave(CUDA_SUCCESS);
}
