/*
 * sim_query.c - what the simulated driver says about memory, and the copies and fills that use it.
 *
 * A copy that touches device memory must lie inside one block the driver knows (INVALID_VALUE
 * otherwise, where a GPU would fault); cuMemcpy takes unknown addresses for plain host memory.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#include "sim_machine.h"

#include <string.h>

/* ---- how much, and where ---- */

/* An integrated device has what the machine has: MemFree, not MemAvailable (seen on real ones). */
static size_t free_bytes_now(void)
{
    size_t left = sgsim_free_bytes(sgsim_current()->device);
    size_t machine = sgsim.is_integrated && sgsim_machine_is_fake() ? sgsim_machine_free_bytes() : left;
    return machine < left ? machine : left;
}

CUresult CUDAAPI cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes)
{
    SGSIM_ENTER(cuMemGetInfo, SGSIM_NEEDS_CONTEXT);
    size_t left = free_bytes_now();
    if (!free_bytes || !total_bytes)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    *free_bytes = left > UINT32_MAX ? UINT32_MAX : (unsigned int)left;
    *total_bytes = sgsim.memory > UINT32_MAX ? UINT32_MAX : (unsigned int)sgsim.memory;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    SGSIM_ENTER(cuMemGetInfo_v2, SGSIM_NEEDS_CONTEXT);
    if (!free_bytes || !total_bytes)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    *free_bytes = free_bytes_now();
    *total_bytes = sgsim.memory;
    return sgsim_leave(CUDA_SUCCESS);
}

static CUresult find_range(uintptr_t address, const struct sgsim_object **block)
{
    *block = sgsim_index_covering(&sgsim.memory_index, address);
    return *block ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *size, CUdeviceptr_v1 pointer)
{
    const struct sgsim_object *block;
    SGSIM_ENTER(cuMemGetAddressRange, SGSIM_NEEDS_CONTEXT);
    CUresult error = find_range(pointer, &block);
    if (error == CUDA_SUCCESS && base)
        *base = (CUdeviceptr_v1)block->key;
    if (error == CUDA_SUCCESS && size)
        *size = (unsigned int)block->size;
    return sgsim_leave(error);
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    const struct sgsim_object *block;
    SGSIM_ENTER(cuMemGetAddressRange_v2, SGSIM_NEEDS_CONTEXT);
    CUresult error = find_range((uintptr_t)pointer, &block);
    if (error == CUDA_SUCCESS && base)
        *base = block->key;
    if (error == CUDA_SUCCESS && size)
        *size = block->size;
    return sgsim_leave(error);
}

static bool is_host_visible(const struct sgsim_object *block)
{
    return block->kind == SGSIM_PINNED || block->kind == SGSIM_MANAGED || block->kind == SGSIM_REGISTERED;
}

/* The attributes programs ask for; each has a type of its own, hence the copies. */
static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, const struct sgsim_object *block,
                                  CUdeviceptr pointer)
{
    struct sgsim_object *pool = sgsim_pool_of_block(block);
    switch ((unsigned int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: {
        /* Blocks of pools and mappings belong to no context. */
        struct sgsim_object *owner = block->owner;
        bool has_context = owner && owner->role == SGSIM_CONTEXT_HANDLE;
        *(CUcontext *)data = has_context ? (CUcontext)(void *)owner : NULL;
        return CUDA_SUCCESS;
    }
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *)data =
            block->kind == SGSIM_PINNED || block->kind == SGSIM_REGISTERED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!is_host_visible(block))
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = (uintptr_t)block;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned int *)data = block->kind == SGSIM_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = block->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = block->key;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = block->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned int *)data = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = (CUmemoryPool)(void *)pool;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult CUDAAPI cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    SGSIM_ENTER(cuPointerGetAttribute, SGSIM_NEEDS_CONTEXT);
    const struct sgsim_object *block = sgsim_index_covering(&sgsim.memory_index, (uintptr_t)pointer);
    if (!data || !block)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    return sgsim_leave(pointer_attribute(data, attribute, block, pointer));
}

/* ---- copies and fills ---- */

enum side { SIDE_HOST, SIDE_DEVICE, SIDE_ANY };

/* Whether `size` bytes there may be used, and whether there are bytes behind them at all. */
static CUresult check_side(uintptr_t address, size_t size, enum side side, bool *has_bytes)
{
    const struct sgsim_object *block = side == SIDE_HOST ? NULL : sgsim_index_covering(&sgsim.memory_index, address);
    *has_bytes = true;
    if (!block)
        return address && side != SIDE_DEVICE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (size > block->size - (address - block->key) || (block->role == SGSIM_MAPPING && !block->is_active))
        return CUDA_ERROR_INVALID_VALUE;
    *has_bytes = sgsim.backing != SGSIM_NONE || is_host_visible(block);
    return CUDA_SUCCESS;
}

static CUresult copy(uintptr_t to, enum side to_side, uintptr_t from, enum side from_side, size_t size)
{
    bool can_write, can_read;
    if (size == 0)
        return CUDA_SUCCESS;
    CUresult error = check_side(to, size, to_side, &can_write);
    if (error == CUDA_SUCCESS)
        error = check_side(from, size, from_side, &can_read);
    if (error != CUDA_SUCCESS)
        return error;
    if (can_write && can_read)
        memmove((void *)to, (const void *)from, size);
    else if (can_write)
        memset((void *)to, 0, size);
    return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr to, unsigned char value, size_t count)
{
    bool can_write;
    if (count == 0)
        return CUDA_SUCCESS;
    CUresult error = check_side((uintptr_t)to, count, SIDE_DEVICE, &can_write);
    if (error == CUDA_SUCCESS && can_write)
        memset((void *)(uintptr_t)to, value, count);
    return error;
}

CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    SGSIM_ENTER(cuMemcpy, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(copy((uintptr_t)to, SIDE_ANY, (uintptr_t)from, SIDE_ANY, size));
}

CUresult CUDAAPI cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    SGSIM_ENTER(cuMemcpy_ptds, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(copy((uintptr_t)to, SIDE_ANY, (uintptr_t)from, SIDE_ANY, size));
}

CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    SGSIM_ENTER(cuMemcpyHtoD_v2, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(copy((uintptr_t)to, SIDE_DEVICE, (uintptr_t)from, SIDE_HOST, size));
}

CUresult CUDAAPI cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t size)
{
    SGSIM_ENTER(cuMemcpyHtoD_v2_ptds, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(copy((uintptr_t)to, SIDE_DEVICE, (uintptr_t)from, SIDE_HOST, size));
}

CUresult CUDAAPI cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    SGSIM_ENTER(cuMemcpyDtoH_v2, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(copy((uintptr_t)to, SIDE_HOST, (uintptr_t)from, SIDE_DEVICE, size));
}

CUresult CUDAAPI cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t size)
{
    SGSIM_ENTER(cuMemcpyDtoH_v2_ptds, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(copy((uintptr_t)to, SIDE_HOST, (uintptr_t)from, SIDE_DEVICE, size));
}

/* In order with what was asked of the stream before: here that is done. */
CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    SGSIM_ENTER(cuMemcpyHtoDAsync_v2, SGSIM_NEEDS_CONTEXT);
    (void)stream;
    return sgsim_leave(copy((uintptr_t)to, SIDE_DEVICE, (uintptr_t)from, SIDE_HOST, size));
}

CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    SGSIM_ENTER(cuMemcpyDtoHAsync_v2, SGSIM_NEEDS_CONTEXT);
    (void)stream;
    return sgsim_leave(copy((uintptr_t)to, SIDE_HOST, (uintptr_t)from, SIDE_DEVICE, size));
}

CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    SGSIM_ENTER(cuMemcpyDtoD_v2, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(copy((uintptr_t)to, SIDE_DEVICE, (uintptr_t)from, SIDE_DEVICE, size));
}

CUresult CUDAAPI cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    SGSIM_ENTER(cuMemcpyDtoD_v2_ptds, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(copy((uintptr_t)to, SIDE_DEVICE, (uintptr_t)from, SIDE_DEVICE, size));
}

CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
    SGSIM_ENTER(cuMemsetD8_v2, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(fill(to, value, count));
}

CUresult CUDAAPI cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count)
{
    SGSIM_ENTER(cuMemsetD8_v2_ptds, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(fill(to, value, count));
}
