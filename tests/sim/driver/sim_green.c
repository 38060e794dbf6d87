/*
 * sim_green.c - green contexts, as far as memory goes: "this API retains the primary context for the lifetime of the
 * green context" (cuda.h), so the first of them costs what the primary context costs. They cannot be made current.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#include <string.h>

CUresult CUDAAPI cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
    SGSIM_ENTER(cuDeviceGetDevResource, SGSIM_NEEDS_INIT);
    if (!resource || type != CU_DEV_RESOURCE_TYPE_SM)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sgsim_is_device(device))
        return sgsim_leave(CUDA_ERROR_INVALID_DEVICE);
    memset(resource, 0, sizeof *resource);
    resource->type = type;
    resource->sm.smCount = 48;
    return sgsim_leave(CUDA_SUCCESS);
}

/* All descriptors are one: what is in them makes no difference here. */
static char description;

CUresult CUDAAPI cuDevResourceGenerateDesc(CUdevResourceDesc *desc, CUdevResource *resources, unsigned int count)
{
    SGSIM_ENTER(cuDevResourceGenerateDesc, SGSIM_NEEDS_INIT);
    if (!desc || !resources || count == 0)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    *desc = (CUdevResourceDesc)(void *)&description;
    return sgsim_leave(CUDA_SUCCESS);
}

static CUresult create(CUgreenCtx *out, CUdevResourceDesc desc, CUdevice device, unsigned int flags)
{
    CUcontext primary;
    if (!out || (void *)desc != &description || flags != CU_GREEN_CTX_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    struct sgsim_object *green = sgsim_handle_new(SGSIM_GREEN_CONTEXT);
    CUresult error = green ? sgsim_primary_retain(&primary, device) : CUDA_ERROR_OUT_OF_MEMORY;
    if (error != CUDA_SUCCESS) {
        if (green)
            sgsim_handle_drop(green);
        return error;
    }
    green->device = device;
    *out = (CUgreenCtx)(void *)green;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc desc, CUdevice device, unsigned int flags)
{
    SGSIM_ENTER(cuGreenCtxCreate, SGSIM_NEEDS_INIT);
    return sgsim_leave(create(context, desc, device, flags));
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx context)
{
    SGSIM_ENTER(cuGreenCtxDestroy, SGSIM_NEEDS_INIT);
    struct sgsim_object *green = sgsim_handle_find(context, SGSIM_GREEN_CONTEXT);
    if (!green)
        return sgsim_leave(CUDA_ERROR_INVALID_CONTEXT);
    CUresult error = sgsim_primary_release(green->device);
    sgsim_handle_drop(green);
    return sgsim_leave(error);
}
