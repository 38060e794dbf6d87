/*
 * sim_vmm.c - virtual memory management: reservations, handles, mappings.
 *
 * The one rule that matters to a ledger: the memory of a handle goes when all references to it AND
 * all mappings of it are gone. Pages exist from cuMemCreate on; the first mapping moves them
 * into the reservation and its end moves them back, so contents survive a remap. A second
 * mapping at the same time shows fresh zero pages: good enough for bookkeeping, not for data. A handle
 * imported under another number is one of its own with the first as owner, which it keeps as a mapping does.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#include <sys/mman.h>

static bool is_granular(size_t value)
{
    return value != 0 && value % SGSIM_GRANULARITY == 0;
}

/* ---- reservations: addresses, no memory ---- */

/* A range aligned to `alignment`, cut out of a larger one. */
static uintptr_t reserve(size_t size, size_t alignment)
{
    if (size > SIZE_MAX - alignment)
        return 0;
    uintptr_t room = sgsim_map(size + alignment, PROT_NONE, 0);
    if (!room)
        return 0;
    uintptr_t start = sgsim_round_up(room, alignment);
    if (start > room)
        sgsim_unmap(room, start - room);
    sgsim_unmap(start + size, room + alignment - start);
    return start;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wanted,
                                     unsigned long long flags)
{
    SGSIM_ENTER(cuMemAddressReserve, SGSIM_NEEDS_INIT);
    (void)wanted; /* a hint only (cuda.h) */
    bool is_power = (alignment & (alignment - 1)) == 0;
    if (!pointer || !is_granular(size) || !is_power || flags != 0)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sgsim_object *space = sgsim_object_new(SGSIM_RESERVATION);
    if (!space)
        return sgsim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    space->key = reserve(size, alignment < SGSIM_GRANULARITY ? SGSIM_GRANULARITY : alignment);
    space->size = size;
    if (!space->key || !sgsim_index_insert(&sgsim.space_index, space)) {
        sgsim_unmap(space->key, size);
        sgsim_object_recycle(space);
        return sgsim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *pointer = space->key;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
    SGSIM_ENTER(cuMemAddressFree, SGSIM_NEEDS_INIT);
    struct sgsim_object *space = sgsim_index_exact(&sgsim.space_index, (uintptr_t)pointer);
    if (!space || space->size != size || sgsim_index_overlaps(&sgsim.memory_index, space->key, size))
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    sgsim_index_remove(&sgsim.space_index, space);
    sgsim_unmap(space->key, space->size);
    sgsim_object_recycle(space);
    return sgsim_leave(CUDA_SUCCESS);
}

/* ---- handles ---- */

static CUresult check_prop(const CUmemAllocationProp *prop)
{
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->location.type == CU_MEM_LOCATION_TYPE_INVALID ||
        prop->location.type > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
        return CUDA_ERROR_INVALID_VALUE;
    bool is_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    return is_device && !sgsim_is_device(prop->location.id) ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

struct sgsim_object *sgsim_vmm_handle_new(enum sgsim_kind kind, int device, size_t size)
{
    struct sgsim_object *handle = sgsim_handle_new(SGSIM_HANDLE);
    if (!handle)
        return NULL;
    handle->backing = sgsim_map_backing(kind, size, false, &handle->backing_size);
    if (!handle->backing) {
        sgsim_handle_drop(handle);
        return NULL;
    }
    handle->kind = kind;
    handle->device = device;
    handle->size = size;
    handle->references = 1;
    return handle;
}

static CUresult create(struct sgsim_object **out, size_t size, const CUmemAllocationProp *prop)
{
    CUresult error = check_prop(prop);
    if (error != CUDA_SUCCESS || !is_granular(size))
        return error != CUDA_SUCCESS ? error : CUDA_ERROR_INVALID_VALUE;
    bool is_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    enum sgsim_kind kind = is_device ? SGSIM_DEVICE : SGSIM_PINNED;
    int device = is_device ? prop->location.id : 0;
    error = sgsim_charge(kind, device, size);
    if (error != CUDA_SUCCESS)
        return error;
    struct sgsim_object *handle = sgsim_vmm_handle_new(kind, device, size);
    if (!handle) {
        sgsim_release(kind, device, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    handle->charged = size;
    handle->u.prop = *prop;
    *out = handle;
    return CUDA_SUCCESS;
}

/* The only place where a handle's memory goes. */
static void drop_if_unused(struct sgsim_object *handle)
{
    struct sgsim_object *shared = handle->owner;
    if (handle->references || handle->mappings)
        return;
    sgsim_release(handle->kind, handle->device, handle->charged);
    sgsim_unmap(handle->backing, handle->backing_size);
    sgsim_handle_drop(handle);
    if (shared) {
        shared->mappings--;
        drop_if_unused(shared);
    }
}

/* A handle whose last reference was released is no name any more, though a mapping may keep its memory. */
struct sgsim_object *sgsim_vmm_find(CUmemGenericAllocationHandle handle)
{
    struct sgsim_object *object = sgsim_handle_find((const void *)(uintptr_t)handle, SGSIM_HANDLE);
    return object && object->references ? object : NULL;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                             unsigned long long flags)
{
    struct sgsim_object *object;
    SGSIM_ENTER(cuMemCreate, SGSIM_NEEDS_INIT);
    CUresult error = handle && flags == 0 ? create(&object, size, prop) : CUDA_ERROR_INVALID_VALUE;
    if (error == CUDA_SUCCESS)
        *handle = object->key;
    return sgsim_leave(error);
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    SGSIM_ENTER(cuMemRelease, SGSIM_NEEDS_INIT);
    struct sgsim_object *object = sgsim_vmm_find(handle);
    if (!object)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    object->references--;
    drop_if_unused(object);
    return sgsim_leave(CUDA_SUCCESS);
}

/* Gives a name back even to a handle that only a mapping keeps alive. */
CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    SGSIM_ENTER(cuMemRetainAllocationHandle, SGSIM_NEEDS_INIT);
    const struct sgsim_object *mapping = sgsim_index_covering(&sgsim.memory_index, (uintptr_t)address);
    if (!handle || !mapping || mapping->role != SGSIM_MAPPING)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    mapping->owner->references++;
    *handle = mapping->owner->key;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                               CUmemAllocationGranularity_flags option)
{
    SGSIM_ENTER(cuMemGetAllocationGranularity, SGSIM_NEEDS_INIT);
    CUresult error = check_prop(prop);
    if (!granularity || (unsigned int)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        error = CUDA_ERROR_INVALID_VALUE;
    if (error == CUDA_SUCCESS)
        *granularity = SGSIM_GRANULARITY;
    return sgsim_leave(error);
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    SGSIM_ENTER(cuMemGetAllocationPropertiesFromHandle, SGSIM_NEEDS_INIT);
    const struct sgsim_object *object = sgsim_vmm_find(handle);
    if (!prop || !object)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    *prop = object->u.prop;
    return sgsim_leave(CUDA_SUCCESS);
}

/* ---- mappings ---- */

static CUresult map(uintptr_t address, size_t size, struct sgsim_object *handle)
{
    const struct sgsim_object *space = sgsim_index_covering(&sgsim.space_index, address);
    if (!space || size > space->size - (address - space->key) ||
        sgsim_index_overlaps(&sgsim.memory_index, address, size))
        return CUDA_ERROR_INVALID_VALUE;
    struct sgsim_object *mapping = sgsim_object_new(SGSIM_MAPPING);
    if (!mapping)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mapping->key = address;
    mapping->size = size;
    mapping->kind = handle->kind;
    mapping->device = handle->device;
    mapping->owner = handle;
    if (!sgsim_index_insert(&sgsim.memory_index, mapping)) {
        sgsim_object_recycle(mapping);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    /* is_primary: this mapping holds the handle's pages. Until access is granted they cannot be touched. */
    mapping->is_primary = handle->mappings++ == 0 && sgsim_move_pages(handle->backing, address, size);
    sgsim_protect(address, size, PROT_NONE);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags)
{
    SGSIM_ENTER(cuMemMap, SGSIM_NEEDS_INIT);
    struct sgsim_object *object = sgsim_vmm_find(handle);
    bool is_sound = object && offset == 0 && flags == 0 && is_granular(size) && size <= object->size;
    if (!is_sound || pointer % SGSIM_GRANULARITY != 0)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    return sgsim_leave(map((uintptr_t)pointer, size, object));
}

static void unmap(struct sgsim_object *mapping)
{
    struct sgsim_object *handle = mapping->owner;
    bool has_bytes = sgsim.backing != SGSIM_NONE || mapping->kind == SGSIM_PINNED;
    if (mapping->is_primary) { /* one protection for all of it, or the kernel will not move it in one piece */
        sgsim_protect(mapping->key, mapping->size, has_bytes ? PROT_READ | PROT_WRITE : PROT_NONE);
        sgsim_move_pages(mapping->key, handle->backing, mapping->size);
    }
    /* What stays is an empty reservation, without pages of a second mapping. */
    sgsim_discard(mapping->key, mapping->size);
    sgsim_protect(mapping->key, mapping->size, PROT_NONE);
    sgsim_index_remove(&sgsim.memory_index, mapping);
    sgsim_object_recycle(mapping);
    handle->mappings--;
    drop_if_unused(handle);
}

/* True if whole mappings, side by side, fill the range exactly. */
static bool is_tiled(uintptr_t address, size_t size)
{
    uintptr_t end = address + size;
    while (address < end) {
        const struct sgsim_object *mapping = sgsim_index_exact(&sgsim.memory_index, address);
        if (!mapping || mapping->role != SGSIM_MAPPING || mapping->size > end - address)
            return false;
        address += mapping->size;
    }
    return true;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    uintptr_t address = (uintptr_t)pointer, end;
    SGSIM_ENTER(cuMemUnmap, SGSIM_NEEDS_INIT);
    if (!is_granular(size) || __builtin_add_overflow(address, size, &end) || !is_tiled(address, size))
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    while (address < end) {
        struct sgsim_object *mapping = sgsim_index_exact(&sgsim.memory_index, address);
        address += mapping->size;
        unmap(mapping);
    }
    return sgsim_leave(CUDA_SUCCESS);
}

static void set_access(uintptr_t address, size_t size, unsigned int flags)
{
    int protection = flags & CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_NONE;
    if (flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        protection |= PROT_WRITE;
    for (uintptr_t end = address + size; address < end;) {
        struct sgsim_object *mapping = sgsim_index_exact(&sgsim.memory_index, address);
        mapping->is_active = protection != PROT_NONE;
        if (sgsim.backing != SGSIM_NONE || mapping->kind == SGSIM_PINNED)
            sgsim_protect(address, mapping->size, protection);
        address += mapping->size;
    }
}

/* Whole mappings only, where a driver takes any granule. The widest access wins: there is one CPU behind all. */
CUresult CUDAAPI cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    uintptr_t address = (uintptr_t)pointer, end;
    SGSIM_ENTER(cuMemSetAccess, SGSIM_NEEDS_INIT);
    if (!desc || count == 0 || !is_granular(size) || __builtin_add_overflow(address, size, &end) ||
        !is_tiled(address, size))
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    unsigned int flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    for (size_t i = 0; i < count; i++) {
        if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && !sgsim_is_device(desc[i].location.id))
            return sgsim_leave(CUDA_ERROR_INVALID_DEVICE);
        flags |= (unsigned int)desc[i].flags;
    }
    set_access(address, size, flags);
    return sgsim_leave(CUDA_SUCCESS);
}
