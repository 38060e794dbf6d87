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

/* The driver that maps the pages of a GPU's fault into the CPU's page tables as well. */
static void map_for_cpu(const struct sgsim_object *block, size_t resident)
{
    volatile char *bytes = (volatile char *)block->backing;
    for (size_t at = block->resident; at < resident && at < block->backing_size; at += SGSIM_KIB)
        bytes[at] = bytes[at];
}

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
    if (error == CUDA_SUCCESS && sgsim.is_managed_mapped)
        map_for_cpu(block, resident);
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

/* ---- batches ---- */

/* What was resident from there on is dropped: cuda.h lets a driver do that, and to write to it or to prefetch it undoes it. */
static CUresult discard(uintptr_t address, size_t bytes)
{
    struct sgsim_object *block = sgsim_index_covering(&sgsim.memory_index, address);
    if (!block || block->role != SGSIM_LINEAR || block->kind != SGSIM_MANAGED ||
        bytes > block->size - (address - block->key))
        return CUDA_ERROR_INVALID_VALUE;
    size_t offset = sgsim_round_up(address - block->key, SGSIM_KIB);
    if (bytes != 0 && offset < block->resident && address - block->key + bytes >= block->resident) {
        sgsim_machine_give(block->resident - offset, SGSIM_TOUCHED);
        block->resident = offset;
    }
    return CUDA_SUCCESS;
}

enum { PREFETCHES = 1, DISCARDS = 2 };

static CUresult each_of(const CUdeviceptr *pointers, const size_t *sizes, size_t count, int what)
{
    CUresult error = CUDA_SUCCESS;
    for (size_t i = 0; error == CUDA_SUCCESS && i < count; i++) {
        if (what & DISCARDS)
            error = discard((uintptr_t)pointers[i], sizes[i]);
        if (error == CUDA_SUCCESS && what & PREFETCHES)
            error = touch((uintptr_t)pointers[i], sizes[i]);
    }
    return error;
}

/* Each location stands for the operations from its index to the next one's. */
static bool are_locations(const CUmemLocation *locations, const size_t *indexes, size_t locations_count, size_t count)
{
    if (!locations || !indexes || locations_count == 0 || locations_count > count || indexes[0] != 0)
        return false;
    for (size_t i = 0; i < locations_count; i++)
        if (!is_location(locations[i]) || indexes[i] >= count || (i != 0 && indexes[i] <= indexes[i - 1]))
            return false;
    return true;
}

/* The legacy default stream is refused (cuda.h). */
static CUresult batch(const CUdeviceptr *pointers, const size_t *sizes, size_t count, bool is_sound,
                      unsigned long long flags, CUstream stream, bool is_ptsz, int what)
{
    if (!pointers || !sizes || count == 0 || !is_sound || flags != 0 || stream == CU_STREAM_LEGACY ||
        (!stream && !is_ptsz))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = sgsim_check_stream(stream);
    return error == CUDA_SUCCESS ? each_of(pointers, sizes, count, what) : error;
}

#define PREFETCH_BATCH(name, is_ptsz, what) \
    CUresult CUDAAPI name(CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *locations, \
                          size_t *indexes, size_t locations_count, unsigned long long flags, CUstream stream) \
    { \
        SGSIM_ENTER(name, SGSIM_NEEDS_CONTEXT); \
        return sgsim_leave(batch(pointers, sizes, count, are_locations(locations, indexes, locations_count, count), \
                                 flags, stream, is_ptsz, what)); \
    }

#define DISCARD_BATCH(name, is_ptsz) \
    CUresult CUDAAPI name(CUdeviceptr *pointers, size_t *sizes, size_t count, unsigned long long flags, \
                          CUstream stream) \
    { \
        SGSIM_ENTER(name, SGSIM_NEEDS_CONTEXT); \
        return sgsim_leave(batch(pointers, sizes, count, true, flags, stream, is_ptsz, DISCARDS)); \
    }

PREFETCH_BATCH(cuMemPrefetchBatchAsync, false, PREFETCHES)
PREFETCH_BATCH(cuMemPrefetchBatchAsync_ptsz, true, PREFETCHES)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync, false, DISCARDS | PREFETCHES)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz, true, DISCARDS | PREFETCHES)
DISCARD_BATCH(cuMemDiscardBatchAsync, false)
DISCARD_BATCH(cuMemDiscardBatchAsync_ptsz, true)
