/*
 * allocating.h - a call of each driver function that functions.def says to allocate, for programs that test them all alike.
 *
 * Needs cuda.h with __CUDA_API_VERSION_INTERNAL. Who includes it lists the calls by
 *
 *     #define SGSIM_FUNCTION(...)
 *     #define SGSIM_ALLOCATES ALLOCATING_CALL
 *     #include "functions.def"
 */
#ifndef SG_SIM_ALLOCATING_H
#define SG_SIM_ALLOCATING_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*allocating_function)(void);

/* What an allocating call writes: at most a pointer or handle and a pitch, or a cudaPitchedPtr. */
union allocated {
    uint64_t words[4];
    void *pointer;
    CUdeviceptr device;
    struct {
        CUdeviceptr_v1 device_v1;
        uint32_t unused[1];
        uint32_t pitch_v1;
    };
    struct {
        uint64_t unused_too[1];
        size_t pitch;
    };
    CUarray array;
    CUmemGenericAllocationHandle handle;
    cudaArray_t runtime_array;
    struct cudaPitchedPtr pitched;
};

struct allocating_call {
    const char *name;   /* for people: the symbol, or the runtime's function */
    const char *symbol; /* of the driver, behind it */
    const char *base;   /* as cuGetProcAddress knows it; NULL: a call of the runtime */
    int version, flags; /* for cuGetProcAddress */
    allocating_function linked;
    /* Takes `size` bytes, a multiple of ROW * LAYERS, through a function of that type. Returns its error. */
    int (*take)(allocating_function f, union allocated *out, size_t size);
    int (*free)(union allocated *out);
};

/* Of arrays: bytes in a row, and how many lie above each other. */
#define ROW 4096
#define LAYERS 16
#define FLAT(type) \
    (&(const type){ \
        .Width = ROW, .Height = (unsigned)(size / ROW), .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1})
#define DEEP(type) \
    (&(const type){.Width = ROW, \
                   .Height = LAYERS, \
                   .Depth = (unsigned)(size / ROW / LAYERS), \
                   .Format = CU_AD_FORMAT_UNSIGNED_INT8, \
                   .NumChannels = 1})

static const CUmemAllocationProp on_device = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};

static inline CUmemoryPool default_pool(void)
{
    CUmemoryPool pool = NULL;
    (void)cuDeviceGetDefaultMemPool(&pool, 0);
    return pool;
}

#define SGSIM_FUNCTION(...)
#define SGSIM_ALLOCATES(symbol, base, version, stream, domain, arguments, free) \
    static int allocating_take_##symbol(allocating_function f, union allocated *out, size_t size) \
    { \
        return (int)((__typeof__(&symbol))f)arguments; \
    } \
    static int allocating_free_##symbol(union allocated *out) \
    { \
        return (int)(free); \
    }
#include "functions.def"
#undef SGSIM_FUNCTION

enum { ALLOCATING_legacy = 0, ALLOCATING_ptsz = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM };

#define ALLOCATING_CALL(symbol, base, version, stream, domain, arguments, free) \
    {#symbol, \
     #symbol, \
     #base, \
     version, \
     ALLOCATING_##stream, \
     (allocating_function)symbol, \
     allocating_take_##symbol, \
     allocating_free_##symbol},

#endif
