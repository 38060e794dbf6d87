/*
 * sim_managed.c - managed memory that becomes resident: it is lazy, so the machine gives its pages only when they are
 * touched, by a processor (sgsim_touch) or by a prefetch.
 *
 * A block is resident from its start up to the last byte that was touched; that is coarser than pages and never too
 * little.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#include "cuda_sim.h"
#include "sim_faults.h"
#include "sim_machine.h"

static CUresult touch(uintptr_t address, size_t bytes)
{
    struct sgsim_object *block = sgsim_index_covering(&sgsim.memory_index, address);
    if (!block || block->role != SGSIM_LINEAR || block->kind != SGSIM_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    size_t offset = address - block->key;
    if (bytes > block->size - offset)
        return CUDA_ERROR_INVALID_VALUE;
    if (offset + bytes <= block->resident)
        return CUDA_SUCCESS;
    /* In whole pages of the machine, so that what is given back is what was taken. */
    size_t resident = sgsim_round_up(offset + bytes, SGSIM_KIB);
    CUresult error = sgsim_machine_take(resident - block->resident, SGSIM_TOUCHED);
    if (error == CUDA_SUCCESS)
        block->resident = resident;
    return error;
}

int sgsim_touch(unsigned long long pointer, size_t bytes)
{
    sgsim_quiet_enter();
    CUresult error = touch((uintptr_t)pointer, bytes);
    sgsim_quiet_leave();
    return (int)error;
}

static CUresult prefetch(CUdeviceptr pointer, size_t bytes, bool is_place, CUstream stream)
{
    CUresult error = sgsim_check_stream(stream);
    if (error == CUDA_SUCCESS && (!is_place || bytes == 0))
        error = CUDA_ERROR_INVALID_VALUE;
    return error == CUDA_SUCCESS ? touch((uintptr_t)pointer, bytes) : error;
}

static bool is_device_or_host(CUdevice device)
{
    return device == CU_DEVICE_CPU || sgsim_is_device(device);
}

static bool is_location(CUmemLocation location)
{
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? sgsim_is_device(location.id)
                                                        : location.type != CU_MEM_LOCATION_TYPE_INVALID;
}

CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream)
{
    SGSIM_ENTER(cuMemPrefetchAsync, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(prefetch(pointer, bytes, is_device_or_host(device), stream));
}

CUresult CUDAAPI cuMemPrefetchAsync_ptsz(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream)
{
    SGSIM_ENTER(cuMemPrefetchAsync_ptsz, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(prefetch(pointer, bytes, is_device_or_host(device), stream));
}

CUresult CUDAAPI cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned int flags,
                                       CUstream stream)
{
    SGSIM_ENTER(cuMemPrefetchAsync_v2, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(prefetch(pointer, bytes, flags == 0 && is_location(location), stream));
}

CUresult CUDAAPI cuMemPrefetchAsync_v2_ptsz(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
                                            unsigned int flags, CUstream stream)
{
    SGSIM_ENTER(cuMemPrefetchAsync_v2_ptsz, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(prefetch(pointer, bytes, flags == 0 && is_location(location), stream));
}
