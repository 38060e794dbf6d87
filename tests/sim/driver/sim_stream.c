/*
 * sim_stream.c - streams and events of the simulated driver: all work is done before a call returns. What has been freed
 * asynchronously is seen to be done by a synchronisation (sim_pool.c). A stream's context is its `next`.
 */
#define _GNU_SOURCE
#include "sim_core.h"

/* The key that tells streams apart: of the default ones there is one for each context, and of those for each thread. */
uintptr_t sgsim_stream_key(CUstream stream, bool is_ptsz)
{
    static __thread char own __attribute__((tls_model("initial-exec")));
    if (stream == CU_STREAM_PER_THREAD || (!stream && is_ptsz))
        return (uintptr_t)&own;
    if (!stream || stream == CU_STREAM_LEGACY)
        return (uintptr_t)sgsim_current();
    return (uintptr_t)stream;
}

/* The builtin streams are those of the current context; any other has its own, whatever is current. */
CUresult sgsim_stream_context(CUstream stream, struct sgsim_object **context)
{
    bool is_builtin = !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    struct sgsim_object *object = is_builtin ? NULL : sgsim_handle_find(stream, SGSIM_STREAM);
    if (!is_builtin && !object)
        return CUDA_ERROR_INVALID_HANDLE;
    *context = object ? object->next : sgsim_current();
    if (!*context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return (*context)->is_active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult sgsim_check_stream(CUstream stream)
{
    struct sgsim_object *context;
    return sgsim_stream_context(stream, &context);
}

CUresult CUDAAPI cuStreamCreate(CUstream *stream, unsigned int flags)
{
    SGSIM_ENTER(cuStreamCreate, SGSIM_NEEDS_CONTEXT);
    if (!stream || flags > CU_STREAM_NON_BLOCKING)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sgsim_object *object = sgsim_handle_new(SGSIM_STREAM);
    if (!object)
        return sgsim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    object->next = sgsim_current();
    *stream = (CUstream)(void *)object;
    return sgsim_leave(CUDA_SUCCESS);
}

static CUresult destroy_stream(CUstream stream)
{
    struct sgsim_object *object = sgsim_handle_find(stream, SGSIM_STREAM);
    if (!object)
        return CUDA_ERROR_INVALID_HANDLE;
    sgsim_handle_drop(object);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamDestroy(CUstream stream)
{
    SGSIM_ENTER(cuStreamDestroy, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(destroy_stream(stream));
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream)
{
    SGSIM_ENTER(cuStreamDestroy_v2, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(destroy_stream(stream));
}

static CUresult synchronize(CUstream stream, bool is_ptsz)
{
    CUresult error = sgsim_check_stream(stream);
    if (error == CUDA_SUCCESS)
        error = sgsim_capture_check();
    if (error == CUDA_SUCCESS)
        sgsim_pool_synchronize(sgsim_stream_key(stream, is_ptsz));
    return error;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream stream)
{
    SGSIM_ENTER(cuStreamSynchronize, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(synchronize(stream, false));
}

CUresult CUDAAPI cuStreamSynchronize_ptsz(CUstream stream)
{
    SGSIM_ENTER(cuStreamSynchronize_ptsz, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(synchronize(stream, true));
}

/* ---- which context, which device ---- */

static CUresult answer_context(CUstream stream, CUcontext *out)
{
    struct sgsim_object *context;
    CUresult error = out ? sgsim_stream_context(stream, &context) : CUDA_ERROR_INVALID_VALUE;
    if (error == CUDA_SUCCESS)
        *out = (CUcontext)(void *)context;
    return error;
}

static CUresult answer_device(CUstream stream, CUdevice *out)
{
    struct sgsim_object *context;
    CUresult error = out ? sgsim_stream_context(stream, &context) : CUDA_ERROR_INVALID_VALUE;
    if (error == CUDA_SUCCESS)
        *out = context->device;
    return error;
}

CUresult CUDAAPI cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    SGSIM_ENTER(cuStreamGetCtx, SGSIM_NEEDS_INIT);
    return sgsim_leave(answer_context(stream, context));
}

CUresult CUDAAPI cuStreamGetDevice(CUstream stream, CUdevice *device)
{
    SGSIM_ENTER(cuStreamGetDevice, SGSIM_NEEDS_INIT);
    return sgsim_leave(answer_device(stream, device));
}

/* ---- events ---- */

CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned int flags)
{
    (void)flags;
    SGSIM_ENTER(cuEventCreate, SGSIM_NEEDS_CONTEXT);
    struct sgsim_object *object = event ? sgsim_handle_new(SGSIM_EVENT) : NULL;
    if (!object)
        return sgsim_leave(event ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE);
    *event = (CUevent)(void *)object;
    return sgsim_leave(CUDA_SUCCESS);
}

static CUresult check_event(CUevent event)
{
    return sgsim_handle_find(event, SGSIM_EVENT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream)
{
    SGSIM_ENTER(cuEventRecord, SGSIM_NEEDS_CONTEXT);
    CUresult error = check_event(event);
    return sgsim_leave(error == CUDA_SUCCESS ? sgsim_check_stream(stream) : error);
}

CUresult CUDAAPI cuEventSynchronize(CUevent event)
{
    SGSIM_ENTER(cuEventSynchronize, SGSIM_NEEDS_CONTEXT);
    CUresult error = check_event(event);
    if (error == CUDA_SUCCESS)
        error = sgsim_capture_check();
    if (error == CUDA_SUCCESS)
        sgsim_pool_synchronize(0);
    return sgsim_leave(error);
}

CUresult CUDAAPI cuEventDestroy_v2(CUevent event)
{
    SGSIM_ENTER(cuEventDestroy_v2, SGSIM_NEEDS_CONTEXT);
    CUresult error = check_event(event);
    if (error == CUDA_SUCCESS)
        sgsim_handle_drop(sgsim_handle_find(event, SGSIM_EVENT));
    return sgsim_leave(error);
}
