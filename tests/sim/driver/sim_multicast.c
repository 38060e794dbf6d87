/*
 * sim_multicast.c - multicast objects: they have a handle and can be mapped, and take no memory of their own.
 *
 * What is bound keeps the life it had: cuda.h of cuMemRelease names handles and mappings, and no bindings. Where a driver
 * would wait for the rest of the team, or the environment says that a device cannot, the answer is INVALID_VALUE.
 */
#include "sim_core.h"

static bool is_granular(size_t value)
{
    return value % SGSIM_GRANULARITY == 0;
}

/* Its handle is one of those of sim_vmm.c, with flags: devices of the team, and how many have been added. */
static struct sgsim_object *find_team(CUmemGenericAllocationHandle handle)
{
    struct sgsim_object *object = sgsim_vmm_find(handle);
    return object && object->flags ? object : NULL;
}

static bool is_complete(const struct sgsim_object *team)
{
    return team->flags >> 16 == (team->flags & 0xffff);
}

CUresult CUDAAPI cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                           CUmulticastGranularity_flags option)
{
    SGSIM_ENTER(cuMulticastGetGranularity, SGSIM_NEEDS_INIT);
    if (!granularity || !prop || (unsigned int)option > CU_MULTICAST_GRANULARITY_RECOMMENDED)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    *granularity = SGSIM_GRANULARITY;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
    SGSIM_ENTER(cuMulticastCreate, SGSIM_NEEDS_INIT);
    if (!handle || !prop || prop->flags != 0 || prop->size == 0 || !is_granular(prop->size) || prop->numDevices == 0 ||
        prop->numDevices > (unsigned int)sgsim.devices)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sgsim_object *team = sgsim_vmm_handle_new(SGSIM_DEVICE, 0, prop->size);
    if (!team)
        return sgsim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    team->flags = prop->numDevices;
    *handle = team->key;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device)
{
    SGSIM_ENTER(cuMulticastAddDevice, SGSIM_NEEDS_INIT);
    struct sgsim_object *team = find_team(handle);
    if (!sgsim_is_device(device))
        return sgsim_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!team || is_complete(team))
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    team->flags += 1u << 16;
    return sgsim_leave(CUDA_SUCCESS);
}

static CUresult bind(CUmemGenericAllocationHandle handle, size_t offset, size_t memory_bytes, size_t size,
                     unsigned long long flags)
{
    const struct sgsim_object *team = find_team(handle);
    if (!team || !is_complete(team) || flags != 0 || size == 0 || !is_granular(size) || !is_granular(offset) ||
        size > memory_bytes || size > team->size || offset > team->size - size)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                                    CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                                    unsigned long long flags)
{
    SGSIM_ENTER(cuMulticastBindMem, SGSIM_NEEDS_INIT);
    const struct sgsim_object *bound = sgsim_vmm_find(memory);
    if (!bound || bound->flags || !is_granular(memory_offset) || memory_offset > bound->size)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    return sgsim_leave(bind(handle, offset, bound->size - memory_offset, size, flags));
}

CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr address,
                                     size_t size, unsigned long long flags)
{
    SGSIM_ENTER(cuMulticastBindAddr, SGSIM_NEEDS_INIT);
    const struct sgsim_object *mapping = sgsim_index_covering(&sgsim.memory_index, (uintptr_t)address);
    if (!mapping || (mapping->role != SGSIM_MAPPING && mapping->role != SGSIM_POOL_BLOCK))
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    return sgsim_leave(bind(handle, offset, mapping->size - ((uintptr_t)address - mapping->key), size, flags));
}

CUresult CUDAAPI cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t size)
{
    SGSIM_ENTER(cuMulticastUnbind, SGSIM_NEEDS_INIT);
    if (!sgsim_is_device(device))
        return sgsim_leave(CUDA_ERROR_INVALID_DEVICE);
    return sgsim_leave(bind(handle, offset, size, size, 0));
}
