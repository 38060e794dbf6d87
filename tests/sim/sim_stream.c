/*
 * sim_stream.c - streams of the simulated driver: all work is done before a call returns.
 */
#define _GNU_SOURCE
#include "sim_core.h"

CUresult sgsim_check_stream(CUstream stream)
{
    bool is_builtin = !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    return is_builtin || sgsim_handle_find(stream, SGSIM_STREAM) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuStreamCreate(CUstream *stream, unsigned int flags)
{
    SGSIM_ENTER(cuStreamCreate, SGSIM_NEEDS_CONTEXT);
    if (!stream || flags > CU_STREAM_NON_BLOCKING)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sgsim_object *object = sgsim_handle_new(SGSIM_STREAM);
    if (!object)
        return sgsim_leave(CUDA_ERROR_OUT_OF_MEMORY);
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

static CUresult synchronize(CUstream stream)
{
    CUresult error = sgsim_check_stream(stream);
    if (error == CUDA_SUCCESS)
        sgsim_pool_synchronize();
    return error;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream stream)
{
    SGSIM_ENTER(cuStreamSynchronize, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(synchronize(stream));
}

CUresult CUDAAPI cuStreamSynchronize_ptsz(CUstream stream)
{
    SGSIM_ENTER(cuStreamSynchronize_ptsz, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(synchronize(stream));
}
