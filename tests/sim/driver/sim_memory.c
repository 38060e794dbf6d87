/*
 * sim_memory.c - linear, pitched, managed, pinned and registered memory of the simulated driver.
 *
 * The ledger books what was asked for, rounded to nothing: the size, or pitch x height, where the
 * pitch is the width rounded up to 512. Registered memory is the program's own and booked apart.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#define PITCH_BYTES ((size_t)512)

/* ---- linear memory ---- */

static CUresult allocate(enum sgsim_role role, enum sgsim_kind kind, size_t size, bool is_low, uintptr_t *address)
{
    struct sgsim_object *block;
    if (size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = sgsim_block_new(role, kind, size, is_low, &block);
    if (error == CUDA_SUCCESS)
        *address = block->key;
    return error;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int size)
{
    uintptr_t address;
    SGSIM_ENTER(cuMemAlloc, SGSIM_NEEDS_CONTEXT);
    CUresult error = pointer ? allocate(SGSIM_LINEAR, SGSIM_DEVICE, size, true, &address) : CUDA_ERROR_INVALID_VALUE;
    if (error == CUDA_SUCCESS)
        *pointer = (CUdeviceptr_v1)address;
    return sgsim_leave(error);
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    uintptr_t address;
    SGSIM_ENTER(cuMemAlloc_v2, SGSIM_NEEDS_CONTEXT);
    CUresult error = pointer ? allocate(SGSIM_LINEAR, SGSIM_DEVICE, size, false, &address) : CUDA_ERROR_INVALID_VALUE;
    if (error == CUDA_SUCCESS)
        *pointer = address;
    return sgsim_leave(error);
}

static CUresult allocate_pitched(size_t width, size_t height, unsigned int element, bool is_low, uintptr_t *address,
                                 size_t *pitch)
{
    size_t row = sgsim_round_up(width, PITCH_BYTES), size;
    if (width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_mul_overflow(row, height, &size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = allocate(SGSIM_LINEAR, SGSIM_DEVICE, size, is_low, address);
    if (error == CUDA_SUCCESS)
        *pitch = row;
    return error;
}

CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height,
                                 unsigned int element)
{
    uintptr_t address;
    size_t row;
    SGSIM_ENTER(cuMemAllocPitch, SGSIM_NEEDS_CONTEXT);
    if (!pointer || !pitch)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    CUresult error = allocate_pitched(width, height, element, true, &address, &row);
    if (error == CUDA_SUCCESS) {
        *pointer = (CUdeviceptr_v1)address;
        *pitch = (unsigned int)row;
    }
    return sgsim_leave(error);
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                    unsigned int element)
{
    uintptr_t address;
    SGSIM_ENTER(cuMemAllocPitch_v2, SGSIM_NEEDS_CONTEXT);
    if (!pointer || !pitch)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    CUresult error = allocate_pitched(width, height, element, false, &address, pitch);
    if (error == CUDA_SUCCESS)
        *pointer = address;
    return sgsim_leave(error);
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags)
{
    uintptr_t address;
    SGSIM_ENTER(cuMemAllocManaged, SGSIM_NEEDS_CONTEXT);
    if (!pointer || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    CUresult error = allocate(SGSIM_LINEAR, SGSIM_MANAGED, size, false, &address);
    if (error == CUDA_SUCCESS)
        *pointer = address;
    return sgsim_leave(error);
}

/* Linear memory and blocks of pools and graphs; a mapping, pinned memory and a pointer into the middle are no such thing. */
static CUresult free_linear(uintptr_t address)
{
    struct sgsim_object *block = sgsim_index_exact(&sgsim.memory_index, address);
    bool is_import = block && block->role == SGSIM_IMPORT && !block->references; /* of a pool */
    if (!block || (block->role != SGSIM_LINEAR && block->role != SGSIM_POOL_BLOCK && block->role != SGSIM_GRAPH_BLOCK &&
                   !is_import))
        return CUDA_ERROR_INVALID_VALUE;
    if (block->role == SGSIM_POOL_BLOCK)
        sgsim_pool_free_block(block);
    else if (block->role == SGSIM_GRAPH_BLOCK)
        sgsim_graph_free_block(block);
    else
        sgsim_block_drop(block);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr_v1 pointer)
{
    SGSIM_ENTER(cuMemFree, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(free_linear(pointer));
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr pointer)
{
    SGSIM_ENTER(cuMemFree_v2, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(free_linear((uintptr_t)pointer));
}

/* ---- host memory ---- */

static CUresult allocate_host(void **pointer, size_t size)
{
    uintptr_t address;
    if (!pointer)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = allocate(SGSIM_HOST, SGSIM_PINNED, size, false, &address);
    if (error == CUDA_SUCCESS)
        *pointer = (void *)address;
    return error;
}

CUresult CUDAAPI cuMemAllocHost(void **pointer, unsigned int size)
{
    SGSIM_ENTER(cuMemAllocHost, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(allocate_host(pointer, size));
}

CUresult CUDAAPI cuMemAllocHost_v2(void **pointer, size_t size)
{
    SGSIM_ENTER(cuMemAllocHost_v2, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(allocate_host(pointer, size));
}

CUresult CUDAAPI cuMemHostAlloc(void **pointer, size_t size, unsigned int flags)
{
    const unsigned int known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    SGSIM_ENTER(cuMemHostAlloc, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(flags & ~known ? CUDA_ERROR_INVALID_VALUE : allocate_host(pointer, size));
}

CUresult CUDAAPI cuMemFreeHost(void *pointer)
{
    SGSIM_ENTER(cuMemFreeHost, SGSIM_NEEDS_CONTEXT);
    struct sgsim_object *block = sgsim_index_exact(&sgsim.memory_index, (uintptr_t)pointer);
    if (!block || block->role != SGSIM_HOST)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    sgsim_block_drop(block);
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr *device_pointer, void *pointer, unsigned int flags)
{
    SGSIM_ENTER(cuMemHostGetDevicePointer_v2, SGSIM_NEEDS_CONTEXT);
    const struct sgsim_object *block = sgsim_index_covering(&sgsim.memory_index, (uintptr_t)pointer);
    if (!device_pointer || flags || !block || (block->role != SGSIM_HOST && block->role != SGSIM_REGISTRATION))
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    *device_pointer = (uintptr_t)pointer;
    return sgsim_leave(CUDA_SUCCESS);
}

/* Pins what the program owns: booked apart, outside the total. */
static CUresult register_host(void *pointer, size_t size, unsigned int flags)
{
    const unsigned int known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                               CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    if (!pointer || size == 0 || size > UINTPTR_MAX - (uintptr_t)pointer || (flags & ~known))
        return CUDA_ERROR_INVALID_VALUE;
    if (sgsim.is_register_missing)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (sgsim_index_overlaps(&sgsim.memory_index, (uintptr_t)pointer, size))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct sgsim_object *registration = sgsim_object_new(SGSIM_REGISTRATION);
    if (!registration)
        return CUDA_ERROR_OUT_OF_MEMORY;
    registration->key = (uintptr_t)pointer;
    registration->kind = SGSIM_REGISTERED;
    registration->owner = sgsim_current();
    registration->device = registration->owner->device;
    registration->size = registration->charged = size;
    if (!sgsim_index_insert(&sgsim.memory_index, registration)) {
        sgsim_object_recycle(registration);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return sgsim_charge(SGSIM_REGISTERED, registration->device, size);
}

CUresult CUDAAPI cuMemHostRegister(void *pointer, size_t size, unsigned int flags)
{
    SGSIM_ENTER(cuMemHostRegister, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(register_host(pointer, size, flags));
}

CUresult CUDAAPI cuMemHostRegister_v2(void *pointer, size_t size, unsigned int flags)
{
    SGSIM_ENTER(cuMemHostRegister_v2, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(register_host(pointer, size, flags));
}

CUresult CUDAAPI cuMemHostUnregister(void *pointer)
{
    SGSIM_ENTER(cuMemHostUnregister, SGSIM_NEEDS_CONTEXT);
    struct sgsim_object *block = sgsim_index_exact(&sgsim.memory_index, (uintptr_t)pointer);
    if (!pointer)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    if (!block || block->role != SGSIM_REGISTRATION)
        return sgsim_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    sgsim_block_drop(block);
    return sgsim_leave(CUDA_SUCCESS);
}

/* What a context's end gives back: everything allocated in it, and its registrations. */
void sgsim_memory_drop_context(const struct sgsim_object *context)
{
    for (size_t i = sgsim.memory_index.count; i-- > 0;) {
        struct sgsim_object *block = sgsim.memory_index.entries[i];
        if (block->owner == context)
            sgsim_block_drop(block);
    }
    sgsim_array_drop_context(context);
}
