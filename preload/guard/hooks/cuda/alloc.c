/*
 * alloc.c - hooks of the driver's allocations: linear device, managed and pinned memory, and arrays.
 *
 * A pitched allocation is charged by the pitch that the driver chose. An array is charged by its memory requirements if
 * the driver gives them, otherwise by the product of its extents. A free of an unknown pointer is passed on untouched.
 */
#include "hooks/cuda/array_format.h"
#include "base/compiler.h"
#include "hooks/cuda/call.h"
#include "hooks/mmap/madvise.h"

/* The common form: the call returns one pointer in `out` and takes `bytes`. TYPE is the integer type that the pointer
 * is converted to. Not `is_sound`: the driver is documented to answer INVALID_VALUE, so the call is not judged. */
#define ALLOCATE(name, domain, is_sound, TYPE, out, bytes, ...) \
    struct sg_cuda_call call; \
    if ((out) == NULL || (bytes) == 0) \
        return SG_DRIVER_CALL(name, __VA_ARGS__); \
    if (!sg_cuda_begin(&call, SG_HOOK_##name, domain, (is_sound) ? (bytes) : 0)) \
        return call.answer; \
    CUresult result = SG_DRIVER_CALL(name, __VA_ARGS__); \
    if (sg_cuda_took(&call, result)) \
        sg_cuda_record(&call, &sg_tracker_cuda, (TYPE) * (out), bytes, __builtin_return_address(0)); \
    sg_cuda_end(&call, result == CUDA_SUCCESS ? (bytes) : 0); \
    return result

static bool is_attachment(unsigned int flags)
{
    return flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST;
}

#define HOST_FLAGS \
    ((unsigned int)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED))

SG_EXPORT CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize)
{
    ALLOCATE(cuMemAlloc, SG_DOMAIN_DEVICE, true, uint64_t, dptr, bytesize, dptr, bytesize);
}

SG_EXPORT CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    ALLOCATE(cuMemAlloc_v2, SG_DOMAIN_DEVICE, true, uint64_t, dptr, bytesize, dptr, bytesize);
}

SG_EXPORT CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    ALLOCATE(cuMemAllocManaged, SG_DOMAIN_MANAGED, is_attachment(flags), uint64_t, dptr, bytesize, dptr, bytesize,
             flags);
}

SG_EXPORT CUresult CUDAAPI cuMemAllocHost(void **pp, unsigned int bytesize)
{
    ALLOCATE(cuMemAllocHost, SG_DOMAIN_PINNED, true, uintptr_t, pp, bytesize, pp, bytesize);
}

SG_EXPORT CUresult CUDAAPI cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    ALLOCATE(cuMemAllocHost_v2, SG_DOMAIN_PINNED, true, uintptr_t, pp, bytesize, pp, bytesize);
}

SG_EXPORT CUresult CUDAAPI cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    ALLOCATE(cuMemHostAlloc, SG_DOMAIN_PINNED, (Flags & ~HOST_FLAGS) == 0, uintptr_t, pp, bytesize, pp, bytesize,
             Flags);
}

/* The driver usually rounds each row up to 512 bytes. Judged by that, charged by the actual pitch. */
#define USUAL_PITCH 512

#define ALLOCATE_PITCHED(name, dptr, pitch, width, height, element, ...) \
    struct sg_cuda_call call; \
    uint64_t expected = ((uint64_t)(width) + USUAL_PITCH - 1) / USUAL_PITCH * USUAL_PITCH; \
    if ((dptr) == NULL || (pitch) == NULL || __builtin_mul_overflow(expected, (uint64_t)(height), &expected) || \
        expected == 0) \
        return SG_DRIVER_CALL(name, __VA_ARGS__); \
    bool is_sound = (element) == 4 || (element) == 8 || (element) == 16; \
    if (!sg_cuda_begin(&call, SG_HOOK_##name, SG_DOMAIN_DEVICE, is_sound ? expected : 0)) \
        return call.answer; \
    CUresult result = SG_DRIVER_CALL(name, __VA_ARGS__); \
    if (sg_cuda_took(&call, result)) \
        sg_cuda_record(&call, &sg_tracker_cuda, *(dptr), (uint64_t) * (pitch) * (height), \
                       __builtin_return_address(0)); \
    sg_cuda_end(&call, result == CUDA_SUCCESS ? expected : 0); \
    return result

SG_EXPORT CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes,
                                           unsigned int Height, unsigned int ElementSizeBytes)
{
    ALLOCATE_PITCHED(cuMemAllocPitch, dptr, pPitch, WidthInBytes, Height, ElementSizeBytes, dptr, pPitch, WidthInBytes,
                     Height, ElementSizeBytes);
}

SG_EXPORT CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                                              unsigned int ElementSizeBytes)
{
    ALLOCATE_PITCHED(cuMemAllocPitch_v2, dptr, pPitch, WidthInBytes, Height, ElementSizeBytes, dptr, pPitch,
                     WidthInBytes, Height, ElementSizeBytes);
}

SG_EXPORT CUresult CUDAAPI cuMemFree(CUdeviceptr_v1 dptr)
{
    SG_GIVE_BACK(cuMemFree, &sg_tracker_cuda, dptr, dptr);
}

SG_EXPORT CUresult CUDAAPI cuMemFree_v2(CUdeviceptr dptr)
{
    SG_GIVE_BACK(cuMemFree_v2, &sg_tracker_cuda, dptr, dptr);
}

SG_EXPORT CUresult CUDAAPI cuMemFreeHost(void *p)
{
    SG_GIVE_BACK(cuMemFreeHost, &sg_tracker_cuda, (uintptr_t)p, p);
}

/* ---- registered memory: the program's own memory, shown beside what counts --------------------------------------- */

/* The bytes that registration makes resident without a promise, as of a MAP_NORESERVE mapping. Page cache stays
 * reclaimable on a GB10 (docs/assumptions.md), and the rest has been judged. */
static uint64_t absent_bytes(const struct sg_cuda_call *call, uintptr_t begin, uint64_t bytes)
{
    bool may_grow = call->is_counted && bytes != 0 && sg_block_table_find(&sg_tracker_registered, begin) == 0;
    return may_grow ? sg_mmap_pinned_bytes(begin, bytes) : 0;
}

/* Enters registered memory and adds it to registered_bytes, which the tools show beside the live bytes. */
static void record_registration(const struct sg_cuda_call *call, uint64_t address, uint64_t bytes)
{
    if (!call->is_counted || !call->is_placed)
        return;
    uint64_t block = sg_block(bytes, SG_DOMAIN_PINNED, call->device) | (uint64_t)call->context << SG_BLOCK_SLOT_SHIFT;
    uint64_t stale = 0; /* as in sg_cuda_record: its context shared a slot, or had just ended */
    if (sg_block_table_insert(&sg_tracker_registered, address, block, &stale) != 0)
        sg_ledger_count_fault();
    else
        sg_fetch_add(&sg_own->registered_bytes, bytes);
    if (stale != 0)
        sg_cuda_released(&sg_tracker_registered, stale);
    sg_context_recheck(&sg_tracker_registered, address, block, call->ends_before);
}

#define REGISTER(name, p, bytes, flags) \
    struct sg_cuda_call call; \
    sg_cuda_open(&call); \
    if (!sg_cuda_begin_open(&call, SG_HOOK_##name, SG_DOMAIN_MAPPED, absent_bytes(&call, (uintptr_t)(p), bytes))) \
        return call.answer; \
    CUresult result = SG_DRIVER_CALL(name, p, bytes, flags); \
    if (sg_cuda_took(&call, result)) \
        record_registration(&call, (uintptr_t)(p), bytes); \
    if (result == CUDA_SUCCESS && call.request.size_bytes != 0) /* before the bytes leave flight */ \
        sg_ledger_open_sparse(call.request.size_bytes); \
    sg_cuda_end(&call, 0); \
    return result

SG_EXPORT CUresult CUDAAPI cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags)
{
    REGISTER(cuMemHostRegister, p, bytesize, Flags);
}

SG_EXPORT CUresult CUDAAPI cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
    REGISTER(cuMemHostRegister_v2, p, bytesize, Flags);
}

SG_EXPORT CUresult CUDAAPI cuMemHostUnregister(void *p)
{
    SG_GIVE_BACK(cuMemHostUnregister, &sg_tracker_registered, (uintptr_t)p, p);
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

/* The product of the extents in bytes. Unused extents are 0 and count as 1. 0: the product overflows. */
static uint64_t array_bytes(uint64_t width, uint64_t height, uint64_t depth, unsigned channels, CUarray_format format)
{
    uint64_t bits = sg_array_element_bits(format, channels), block = sg_array_is_compressed(format) ? 4 : 1;
    height = (height != 0 ? height : 1) + block - 1;
    width += block - 1;
    if (__builtin_mul_overflow(bits, width / block * block, &bits) ||
        __builtin_mul_overflow(bits, height / block * block, &bits) ||
        __builtin_mul_overflow(bits, depth != 0 ? depth : 1, &bits))
        return 0;
    return bits / 8 + (bits % 8 != 0);
}

/* The bytes that the driver says an array takes. It answers only for arrays with deferred mapping; otherwise
 * `computed`. */
static uint64_t required_bytes(CUarray array, uint32_t device, uint64_t computed)
{
    SG_DRIVER(get_requirements, cuArrayGetMemoryRequirements);
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements = {0};
    if (get_requirements == NULL || get_requirements(&requirements, array, (CUdevice)device) != CUDA_SUCCESS ||
        requirements.size == 0)
        return computed;
    return requirements.size;
}

/* False if the driver rejects this number of channels. */
static bool has_channels(unsigned channels, CUarray_format format)
{
    return !sg_array_is_plain(format) || channels == 1 || channels == 2 || channels == 4;
}

/* Hook of an array's creation. `is_empty`: the array gets no memory of its own. */
#define ALLOCATE_ARRAY(name, handle, descriptor, height, depth, is_empty) \
    struct sg_cuda_call call; \
    uint64_t bytes = \
        (handle) == NULL || (descriptor) == NULL || !sg_cuda_has_begun() \
            ? 0 \
            : array_bytes((descriptor)->Width, height, depth, (descriptor)->NumChannels, (descriptor)->Format); \
    if (bytes == 0 || (is_empty)) \
        return SG_DRIVER_CALL(name, handle, descriptor); \
    bool is_sound = has_channels((descriptor)->NumChannels, (descriptor)->Format); \
    if (!sg_cuda_begin(&call, SG_HOOK_##name, SG_DOMAIN_DEVICE, is_sound ? bytes : 0)) \
        return call.answer; \
    CUresult result = SG_DRIVER_CALL(name, handle, descriptor); \
    if (sg_cuda_took(&call, result)) \
        sg_cuda_record(&call, &sg_tracker_arrays, (uintptr_t) * (handle), \
                       required_bytes(*(handle), call.device, bytes), __builtin_return_address(0)); \
    sg_cuda_end(&call, result == CUDA_SUCCESS ? bytes : 0); \
    return result

/* Sparse and deferred arrays have no memory of their own; the program maps memory into them. */
#define IS_EMPTY(descriptor) (((descriptor)->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0)

SG_EXPORT CUresult CUDAAPI cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray)
{
    ALLOCATE_ARRAY(cuArrayCreate, pHandle, pAllocateArray, pAllocateArray->Height, 0, false);
}

SG_EXPORT CUresult CUDAAPI cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
    ALLOCATE_ARRAY(cuArrayCreate_v2, pHandle, pAllocateArray, pAllocateArray->Height, 0, false);
}

SG_EXPORT CUresult CUDAAPI cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray)
{
    ALLOCATE_ARRAY(cuArray3DCreate, pHandle, pAllocateArray, pAllocateArray->Height, pAllocateArray->Depth,
                   IS_EMPTY(pAllocateArray));
}

SG_EXPORT CUresult CUDAAPI cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    ALLOCATE_ARRAY(cuArray3DCreate_v2, pHandle, pAllocateArray, pAllocateArray->Height, pAllocateArray->Depth,
                   IS_EMPTY(pAllocateArray));
}

SG_EXPORT CUresult CUDAAPI cuArrayDestroy(CUarray hArray)
{
    SG_GIVE_BACK(cuArrayDestroy, &sg_tracker_arrays, (uintptr_t)hArray, hArray);
}

/* ---- mipmapped arrays -------------------------------------------------------------------------------------------- */

/* An extent at a mipmap level: halved per level, at least 1. Unused extents stay 0. */
static uint64_t at_level(uint64_t extent, unsigned level)
{
    return extent >> level != 0 || extent == 0 ? extent >> level : 1;
}

/* The sum of all possible levels up to `levels`. Each level of a layered array has the same number of layers. */
static uint64_t mipmapped_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    bool is_layered = (shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    /* Only the highest bit of `longest` matters. */
    uint64_t longest = shape->Width | shape->Height | (is_layered ? 0 : shape->Depth);
    uint64_t sum = 0;
    for (unsigned level = 0; level == 0 || (level < levels && longest >> level != 0); level++) {
        uint64_t depth = is_layered ? shape->Depth : at_level(shape->Depth, level);
        uint64_t bytes = array_bytes(at_level(shape->Width, level), at_level(shape->Height, level), depth,
                                     shape->NumChannels, shape->Format);
        if (bytes == 0 || __builtin_add_overflow(sum, bytes, &sum))
            return 0;
    }
    return sum;
}

/* As required_bytes, for mipmapped arrays. */
static uint64_t required_mipmapped_bytes(CUmipmappedArray array, uint32_t device, uint64_t computed)
{
    SG_DRIVER(get_requirements, cuMipmappedArrayGetMemoryRequirements);
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements = {0};
    if (get_requirements == NULL || get_requirements(&requirements, array, (CUdevice)device) != CUDA_SUCCESS ||
        requirements.size == 0)
        return computed;
    return requirements.size;
}

SG_EXPORT CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
                                                  const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                                  unsigned int numMipmapLevels)
{
    struct sg_cuda_call call;
    const CUDA_ARRAY3D_DESCRIPTOR *shape = pMipmappedArrayDesc;
    uint64_t bytes =
        pHandle == NULL || shape == NULL || !sg_cuda_has_begun() ? 0 : mipmapped_bytes(shape, numMipmapLevels);
    if (bytes == 0 || IS_EMPTY(shape))
        return SG_DRIVER_CALL(cuMipmappedArrayCreate, pHandle, shape, numMipmapLevels);
    bool is_sound = numMipmapLevels != 0 && has_channels(shape->NumChannels, shape->Format);
    if (!sg_cuda_begin(&call, SG_HOOK_cuMipmappedArrayCreate, SG_DOMAIN_DEVICE, is_sound ? bytes : 0))
        return call.answer;
    CUresult result = SG_DRIVER_CALL(cuMipmappedArrayCreate, pHandle, shape, numMipmapLevels);
    if (sg_cuda_took(&call, result))
        sg_cuda_record(&call, &sg_tracker_arrays, (uintptr_t)*pHandle,
                       required_mipmapped_bytes(*pHandle, call.device, bytes), __builtin_return_address(0));
    sg_cuda_end(&call, result == CUDA_SUCCESS ? bytes : 0);
    return result;
}

SG_EXPORT CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
    SG_GIVE_BACK(cuMipmappedArrayDestroy, &sg_tracker_arrays, (uintptr_t)hMipmappedArray, hMipmappedArray);
}
