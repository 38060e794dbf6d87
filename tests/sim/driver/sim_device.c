/*
 * sim_device.c - what the devices of the simulated driver say about themselves.
 *
 * Only what programs ask when they decide about memory is answered with care; attributes that
 * mean nothing here are 0.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#include <string.h>

bool sgsim_is_device(CUdevice device)
{
    return device >= 0 && device < sgsim.devices;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal)
{
    SGSIM_ENTER(cuDeviceGet, SGSIM_NEEDS_INIT);
    if (!device)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sgsim_is_device(ordinal))
        return sgsim_leave(CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceGetCount(int *count)
{
    SGSIM_ENTER(cuDeviceGetCount, SGSIM_NEEDS_INIT);
    if (!count)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    *count = sgsim.devices;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceGetName(char *name, int length, CUdevice device)
{
    SGSIM_ENTER(cuDeviceGetName, SGSIM_NEEDS_INIT);
    if (!name || length <= 0)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sgsim_is_device(device))
        return sgsim_leave(CUDA_ERROR_INVALID_DEVICE);
    const char *text = sgsim.is_integrated ? "NVIDIA GB10 (simulated)" : "Simulated discrete GPU";
    size_t room = (size_t)length - 1, size = strlen(text) < room ? strlen(text) : room;
    memcpy(name, text, size);
    name[size] = '\0';
    return sgsim_leave(CUDA_SUCCESS);
}

/* The same of one device in every process. `is_instance`: of an instance of a card (MIG), else of the card. */
static CUresult identify(CUuuid *uuid, CUdevice device, bool is_instance)
{
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgsim_is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, sgsim.is_integrated ? "sgsim-gb10-gpu-" : "sgsim-card-gpu-", 15);
    uuid->bytes[15] = (char)(sgsim.is_mig && !is_instance ? 'a' : 'A' + sgsim.ordinal[device]);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    SGSIM_ENTER(cuDeviceGetUuid, SGSIM_NEEDS_INIT);
    return sgsim_leave(identify(uuid, device, false));
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    SGSIM_ENTER(cuDeviceGetUuid_v2, SGSIM_NEEDS_INIT);
    return sgsim_leave(identify(uuid, device, true));
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char *id, int length, CUdevice device)
{
    SGSIM_ENTER(cuDeviceGetPCIBusId, SGSIM_NEEDS_INIT);
    char text[] = "0000:00:00.0";
    if (!id || length < (int)sizeof text)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sgsim_is_device(device))
        return sgsim_leave(CUDA_ERROR_INVALID_DEVICE);
    text[6] = "0123456789abcdef"[sgsim.ordinal[device]];
    memcpy(id, text, sizeof text);
    return sgsim_leave(CUDA_SUCCESS);
}

static int attribute_value(CUdevice_attribute attribute)
{
    switch ((unsigned int)attribute) {
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
    case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
        return sgsim.is_integrated;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return sgsim.is_integrated ? 12 : 8;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        return sgsim.is_integrated ? 1 : 9;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: /* 1 everywhere: no sign of unified memory */
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED:
        return 1;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return 48;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
        return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
        return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        return 1536;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
        return 512;
    default:
        return 0;
    }
}

CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    SGSIM_ENTER(cuDeviceGetAttribute, SGSIM_NEEDS_INIT);
    if (!value || (int)attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sgsim_is_device(device))
        return sgsim_leave(CUDA_ERROR_INVALID_DEVICE);
    *value = attribute_value(attribute);
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
    SGSIM_ENTER(cuDeviceTotalMem, SGSIM_NEEDS_INIT);
    if (!bytes)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sgsim_is_device(device))
        return sgsim_leave(CUDA_ERROR_INVALID_DEVICE);
    *bytes = sgsim.memory > UINT32_MAX ? UINT32_MAX : (unsigned int)sgsim.memory;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    SGSIM_ENTER(cuDeviceTotalMem_v2, SGSIM_NEEDS_INIT);
    if (!bytes)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!sgsim_is_device(device))
        return sgsim_leave(CUDA_ERROR_INVALID_DEVICE);
    *bytes = sgsim.memory;
    return sgsim_leave(CUDA_SUCCESS);
}
