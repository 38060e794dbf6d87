/*
 * sim_array.c - arrays and mipmapped arrays of the simulated driver.
 *
 * The ledger books width x height x depth x bits of an element, summed over the levels of
 * a mipmapped array; nothing for an array with deferred mapping or a sparse one, which has no
 * memory of its own. A real driver pads; what it really takes cannot be asked, here as there.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#include <string.h>

#define ARRAY_ALIGNMENT (64 * SGSIM_KIB)

/* Of one element of all channels together. */
static size_t element_bits(CUarray_format format, unsigned int channels)
{
    switch ((unsigned int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 8 * (size_t)channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 16 * (size_t)channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 32 * (size_t)channels;
    case CU_AD_FORMAT_UNORM_INT16X1:
        return 16;
    case CU_AD_FORMAT_SNORM_INT16X4:
        return 64;
    case CU_AD_FORMAT_BC1_UNORM: /* 8 bytes for 4 x 4 elements, of extents that are multiples of 4 here */
        return 4;
    case CU_AD_FORMAT_BC7_UNORM:
        return 8;
    case CU_AD_FORMAT_NV12: /* 8 bits of light each, and 16 of colour for four */
        return 12;
    default:
        return 0; /* the other formats are not simulated */
    }
}

static size_t at_least_one(size_t extent)
{
    return extent ? extent : 1;
}

/* False when the description makes no sense. Extents halve from level to level, but not the layers of a layered array;
 * levels end where no extent is left to halve (cuda.h: clamped). */
static bool array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels, size_t *bytes)
{
    size_t element = element_bits(shape->Format, shape->NumChannels);
    if (shape->Width == 0 || element == 0 ||
        (shape->NumChannels != 1 && shape->NumChannels != 2 && shape->NumChannels != 4))
        return false;
    bool is_layered = (shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    size_t extents = shape->Width | shape->Height | (is_layered ? 0 : shape->Depth);
    *bytes = 0;
    for (unsigned int level = 0; level < levels && extents >> level != 0; level++) {
        size_t size = element, depth = is_layered ? shape->Depth : shape->Depth >> level;
        if (__builtin_mul_overflow(size, at_least_one(shape->Width >> level), &size) ||
            __builtin_mul_overflow(size, at_least_one(shape->Height >> level), &size) ||
            __builtin_mul_overflow(size, at_least_one(depth), &size) || __builtin_add_overflow(*bytes, size, bytes))
            *bytes = SIZE_MAX;
    }
    *bytes /= 8;
    return true;
}

static CUresult create_array(enum sgsim_role role, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels,
                             void **handle)
{
    size_t bytes;
    if (levels == 0 || levels > 32 || !array_bytes(shape, levels, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    struct sgsim_object *context = sgsim_current(), *array = sgsim_handle_new(role);
    if (!array)
        return CUDA_ERROR_OUT_OF_MEMORY;
    array->kind = SGSIM_ARRAY;
    array->owner = context;
    array->device = context->device;
    array->size = bytes;
    array->flags = shape->Flags;
    bool has_memory = !(shape->Flags & (CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_SPARSE));
    CUresult error = has_memory ? sgsim_charge(SGSIM_ARRAY, array->device, bytes) : CUDA_SUCCESS;
    if (error == CUDA_SUCCESS && has_memory) {
        array->charged = bytes;
        array->backing = sgsim_map_backing(SGSIM_ARRAY, bytes, false, &array->backing_size);
        if (!array->backing) {
            sgsim_release(SGSIM_ARRAY, array->device, bytes);
            error = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (error != CUDA_SUCCESS) {
        sgsim_handle_drop(array);
        return error;
    }
    *handle = array;
    return CUDA_SUCCESS;
}

static void drop_array(struct sgsim_object *array)
{
    sgsim_release(SGSIM_ARRAY, array->device, array->charged);
    sgsim_unmap(array->backing, array->backing_size);
    sgsim_handle_drop(array);
}

static CUresult destroy_array(const void *handle, enum sgsim_role role)
{
    struct sgsim_object *array = sgsim_handle_find(handle, role);
    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    drop_array(array);
    return CUDA_SUCCESS;
}

static CUresult create_plain(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    void *handle;
    CUresult error = create_array(SGSIM_PLAIN_ARRAY, shape, 1, &handle);
    if (error == CUDA_SUCCESS)
        *array = (CUarray)handle;
    return error;
}

/* The four descriptors differ in the width of their fields and in what they leave out. */
#define FLAT_SHAPE(d) \
    { \
        .Width = (d)->Width, .Height = (d)->Height, .Format = (d)->Format, .NumChannels = (d)->NumChannels \
    }
#define DEEP_SHAPE(d) \
    { \
        .Width = (d)->Width, .Height = (d)->Height, .Depth = (d)->Depth, .Format = (d)->Format, \
        .NumChannels = (d)->NumChannels, .Flags = (d)->Flags \
    }

CUresult CUDAAPI cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor)
{
    SGSIM_ENTER(cuArrayCreate, SGSIM_NEEDS_CONTEXT);
    if (!array || !descriptor)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    const CUDA_ARRAY3D_DESCRIPTOR shape = FLAT_SHAPE(descriptor);
    return sgsim_leave(create_plain(array, &shape));
}

CUresult CUDAAPI cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    SGSIM_ENTER(cuArrayCreate_v2, SGSIM_NEEDS_CONTEXT);
    if (!array || !descriptor)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    const CUDA_ARRAY3D_DESCRIPTOR shape = FLAT_SHAPE(descriptor);
    return sgsim_leave(create_plain(array, &shape));
}

CUresult CUDAAPI cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor)
{
    SGSIM_ENTER(cuArray3DCreate, SGSIM_NEEDS_CONTEXT);
    if (!array || !descriptor)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    const CUDA_ARRAY3D_DESCRIPTOR shape = DEEP_SHAPE(descriptor);
    return sgsim_leave(create_plain(array, &shape));
}

CUresult CUDAAPI cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    SGSIM_ENTER(cuArray3DCreate_v2, SGSIM_NEEDS_CONTEXT);
    if (!array || !descriptor)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    return sgsim_leave(create_plain(array, descriptor));
}

CUresult CUDAAPI cuArrayDestroy(CUarray array)
{
    SGSIM_ENTER(cuArrayDestroy, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(destroy_array(array, SGSIM_PLAIN_ARRAY));
}

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                        unsigned int levels)
{
    void *handle;
    SGSIM_ENTER(cuMipmappedArrayCreate, SGSIM_NEEDS_CONTEXT);
    if (!array || !descriptor)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    CUresult error = create_array(SGSIM_MIPMAPPED_ARRAY, descriptor, levels, &handle);
    if (error == CUDA_SUCCESS)
        *array = (CUmipmappedArray)handle;
    return sgsim_leave(error);
}

CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    SGSIM_ENTER(cuMipmappedArrayDestroy, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(destroy_array(array, SGSIM_MIPMAPPED_ARRAY));
}

/* As cuda.h says: INVALID_VALUE unless the array was made with deferred mapping. */
static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, const void *handle, enum sgsim_role role,
                             CUdevice device)
{
    const struct sgsim_object *array = sgsim_handle_find(handle, role);
    if (!sgsim_is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!out || !array || !(array->flags & CUDA_ARRAY3D_DEFERRED_MAPPING))
        return CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, sizeof *out);
    out->alignment = ARRAY_ALIGNMENT;
    out->size = sgsim_round_up(array->size, ARRAY_ALIGNMENT);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array, CUdevice device)
{
    SGSIM_ENTER(cuArrayGetMemoryRequirements, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(requirements(out, array, SGSIM_PLAIN_ARRAY, device));
}

CUresult CUDAAPI cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray array,
                                                       CUdevice device)
{
    SGSIM_ENTER(cuMipmappedArrayGetMemoryRequirements, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(requirements(out, array, SGSIM_MIPMAPPED_ARRAY, device));
}

void sgsim_array_drop_context(const struct sgsim_object *context)
{
    for (size_t i = sgsim.handle_index.count; i-- > 0;) {
        struct sgsim_object *array = sgsim.handle_index.entries[i];
        if (array->owner == context && (array->role == SGSIM_PLAIN_ARRAY || array->role == SGSIM_MIPMAPPED_ARRAY))
            drop_array(array);
    }
}
