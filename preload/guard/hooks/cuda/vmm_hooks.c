/*
 * vmm_hooks.c - hooks of virtual memory management. Memory counts while it is mapped or referenced (vmm.h).
 */
#include "hooks/cuda/vmm.h"

#include "base/compiler.h"
#include "hooks/cuda/call.h"

/* False if the driver will reject these arguments; the call is then not judged, and the driver gives its own error. */
static bool is_sound(const CUmemAllocationProp *prop, size_t size, unsigned long long flags)
{
    SG_DRIVER(get, cuMemGetAllocationGranularity);
    size_t granularity = 1;
    if (flags != 0 || (get != NULL && get(&granularity, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS))
        return false;
    return granularity == 0 || size % granularity == 0;
}

SG_EXPORT CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                                       const CUmemAllocationProp *prop, unsigned long long flags)
{
    struct sg_cuda_call call;
    if (handle == NULL || size == 0 || prop == NULL || !sg_cuda_has_begun())
        return SG_DRIVER_CALL(cuMemCreate, handle, size, prop, flags);
    bool is_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    uint64_t growth = is_sound(prop, size, flags) ? size : 0;
    if (is_device ? !sg_cuda_begin_at(&call, SG_HOOK_cuMemCreate, prop->location.id, growth)
                  : !sg_cuda_begin(&call, SG_HOOK_cuMemCreate, SG_DOMAIN_PINNED, growth))
        return call.answer;
    CUresult result = SG_DRIVER_CALL(cuMemCreate, handle, size, prop, flags);
    sg_cuda_measure(&call, result);
    if (result == CUDA_SUCCESS && call.is_counted)
        sg_vmm_enter(call.request.domain, call.device, *handle, size, __builtin_return_address(0));
    sg_cuda_end(&call, result == CUDA_SUCCESS ? size : 0);
    return result;
}

/* Hook of a call that adds a reference. `held`: expression that holds the memory; `end`: statement after the call. */
#define REFER(held, end, name, ...) \
    if (!sg_cuda_is_ours() || !sg_cuda_has_begun()) \
        return SG_DRIVER_CALL(name, __VA_ARGS__); \
    struct sg_vmm_memory *memory = held; \
    SG_DRIVER_INSIDE(name, __VA_ARGS__); \
    end; \
    return result

SG_EXPORT CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    REFER(sg_vmm_hold_address((uintptr_t)addr), sg_vmm_end_refer(memory, result == CUDA_SUCCESS ? *handle : 0, result),
          cuMemRetainAllocationHandle, handle, addr);
}

/* An import takes no new memory: the exporting process counts it. If this process is the exporter and the driver
 * answers the number of a handle that is known, the import adds a reference (vmm.h). */
SG_EXPORT CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                                          CUmemAllocationHandleType shHandleType)
{
    REFER(NULL, sg_vmm_end_refer(memory, result == CUDA_SUCCESS ? *handle : 0, result), cuMemImportFromShareableHandle,
          handle, osHandle, shHandleType);
}

SG_EXPORT CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                                    unsigned long long flags)
{
    REFER(sg_vmm_hold_handle(handle), sg_vmm_end_map(memory, ptr, size, result), cuMemMap, ptr, size, offset, handle,
          flags);
}

SG_EXPORT CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    if (!sg_cuda_is_ours())
        return SG_DRIVER_CALL(cuMemRelease, handle);
    struct sg_vmm_handle *released = sg_vmm_begin_release(handle);
    SG_DRIVER_INSIDE(cuMemRelease, handle);
    sg_vmm_end_release(released, result);
    return result;
}

/* One unmap may cover several mappings, each as a whole. No lock is held across the call, because the driver may wait
 * for the device in it (cuda.h). The mappings leave the table before the call, because another thread may map the same
 * addresses again before it returns. */
SG_EXPORT CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    if (!sg_cuda_is_ours() || size > UINT64_MAX - ptr)
        return SG_DRIVER_CALL(cuMemUnmap, ptr, size);
    struct sg_vmm_mapping *mappings = sg_vmm_begin_unmap(ptr, ptr + size);
    SG_DRIVER_INSIDE(cuMemUnmap, ptr, size);
    sg_vmm_end_unmap(mappings, result);
    return result;
}
