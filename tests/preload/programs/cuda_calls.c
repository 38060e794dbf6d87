/*
 * cuda_calls.c - one allocating CUDA call, through one entry point, as tests/sim asks for it.
 *
 *     cuda_calls list                             the calls, one a line: name, driver symbol behind it
 *     cuda_calls refuse ENTRY CALL LARGE SMALL     LARGE bytes, which somebody is to refuse, then SMALL, then its free
 *     cuda_calls fill   ENTRY CALL STEP MOST       STEP bytes again and again until refused, at most MOST times; frees
 *     all
 *
 * ENTRY is how a driver function is reached: linked, dlsym (on a handle of its own), address4 or address5
 * (cuGetProcAddress with four arguments, _v2 with five). Calls of the runtime are always linked.
 * Prints "key value" lines; exits 0 unless the set-up itself fails.
 */
#define __CUDA_API_VERSION_INTERNAL /* declares every variant under its exported name */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda_sim.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROW 4096
#define LAYERS 16
#define SENTINEL UINT64_C(0x5a5a5a5a5a5a5a5a)

typedef void (*function)(void);

extern cudaError_t CUDARTAPI cudaMallocAsync_ptsz(void **pointer, size_t size, cudaStream_t stream);
extern cudaError_t CUDARTAPI cudaMallocFromPoolAsync_ptsz(void **pointer, size_t size, cudaMemPool_t pool,
                                                          cudaStream_t stream);

/* What a call gives: at most a pointer or handle and a pitch, or a cudaPitchedPtr. */
union out {
    uint64_t words[4];
    void *pointer;
    CUdeviceptr device;
    CUdeviceptr_v1 device_v1;
    CUarray array;
    CUmemGenericAllocationHandle handle;
    cudaArray_t runtime_array;
    struct cudaPitchedPtr pitched;
};

struct call {
    const char *name;   /* as on the command line */
    const char *symbol; /* of the driver, behind it */
    const char *base;   /* as cuGetProcAddress knows it; NULL: a call of the runtime */
    int version, flags;
    function linked;
    int (*take)(function f, union out *out, size_t size);
    int (*give)(union out *out);
};

static const struct cudaChannelFormatDesc byte_format = {8, 0, 0, 0, cudaChannelFormatKindUnsigned};

static cudaMemPool_t default_pool(void)
{
    cudaMemPool_t pool = NULL;
    cudaDeviceGetDefaultMemPool(&pool, 0);
    return pool;
}

static struct cudaExtent extent_of(size_t size)
{
    return (struct cudaExtent){ROW, LAYERS, size / ROW / LAYERS};
}

/* ---- how each is called ---- */

#define DRIVER(name) ((__typeof__(&name))f)
#define TAKE(name, ...) \
    static int take_##name(function f, union out *out, size_t size) \
    { \
        (void)f, (void)size; \
        return (int)__VA_ARGS__; \
    }

TAKE(cudaMalloc, cudaMalloc(&out->pointer, size))
TAKE(cudaMallocManaged, cudaMallocManaged(&out->pointer, size, cudaMemAttachGlobal))
TAKE(cudaMallocHost, cudaMallocHost(&out->pointer, size))
TAKE(cudaHostAlloc, cudaHostAlloc(&out->pointer, size, cudaHostAllocPortable))
TAKE(cudaMallocPitch, cudaMallocPitch(&out->pointer, &out->words[1], ROW - 1, size / ROW))
TAKE(cudaMalloc3D, cudaMalloc3D(&out->pitched, extent_of(size)))
TAKE(cudaMallocArray, cudaMallocArray(&out->runtime_array, &byte_format, ROW, size / ROW, 0))
TAKE(cudaMalloc3DArray, cudaMalloc3DArray(&out->runtime_array, &byte_format, extent_of(size), 0))
TAKE(cudaMallocAsync, cudaMallocAsync(&out->pointer, size, NULL))
TAKE(cudaMallocAsync_ptsz, cudaMallocAsync_ptsz(&out->pointer, size, NULL))
TAKE(cudaMallocFromPoolAsync, cudaMallocFromPoolAsync(&out->pointer, size, default_pool(), NULL))
TAKE(cudaMallocFromPoolAsync_ptsz, cudaMallocFromPoolAsync_ptsz(&out->pointer, size, default_pool(), NULL))

TAKE(cuMemAlloc, DRIVER(cuMemAlloc)(&out->device_v1, (unsigned int)size))
TAKE(cuMemAlloc_v2, DRIVER(cuMemAlloc_v2)(&out->device, size))
TAKE(cuMemAllocPitch,
     DRIVER(cuMemAllocPitch)(&out->device_v1, (unsigned int *)&out->words[1], ROW - 1, (unsigned int)(size / ROW), 4))
TAKE(cuMemAllocPitch_v2, DRIVER(cuMemAllocPitch_v2)(&out->device, &out->words[1], ROW - 1, size / ROW, 4))
TAKE(cuMemAllocManaged, DRIVER(cuMemAllocManaged)(&out->device, size, CU_MEM_ATTACH_GLOBAL))
TAKE(cuMemAllocHost, DRIVER(cuMemAllocHost)(&out->pointer, (unsigned int)size))
TAKE(cuMemAllocHost_v2, DRIVER(cuMemAllocHost_v2)(&out->pointer, size))
TAKE(cuMemHostAlloc, DRIVER(cuMemHostAlloc)(&out->pointer, size, CU_MEMHOSTALLOC_PORTABLE))
TAKE(cuMemAllocAsync, DRIVER(cuMemAllocAsync)(&out->device, size, NULL))
TAKE(cuMemAllocAsync_ptsz, DRIVER(cuMemAllocAsync_ptsz)(&out->device, size, NULL))
TAKE(cuMemAllocFromPoolAsync, DRIVER(cuMemAllocFromPoolAsync)(&out->device, size, default_pool(), NULL))
TAKE(cuMemAllocFromPoolAsync_ptsz, DRIVER(cuMemAllocFromPoolAsync_ptsz)(&out->device, size, default_pool(), NULL))

static const CUmemAllocationProp on_device = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
TAKE(cuMemCreate, DRIVER(cuMemCreate)(&out->handle, size, &on_device, 0))
static const CUmemAllocationProp on_host = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0}};
TAKE(cuMemCreate_host, DRIVER(cuMemCreate)(&out->handle, size, &on_host, 0))

#define FLAT(type) \
    (&(const type){.Width = ROW, .Height = size / ROW, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1})
#define DEEP(type) \
    (&(const type){.Width = ROW, \
                   .Height = LAYERS, \
                   .Depth = size / ROW / LAYERS, \
                   .Format = CU_AD_FORMAT_UNSIGNED_INT8, \
                   .NumChannels = 1})
TAKE(cuArrayCreate, DRIVER(cuArrayCreate)(&out->array, FLAT(CUDA_ARRAY_DESCRIPTOR_v1)))
TAKE(cuArrayCreate_v2, DRIVER(cuArrayCreate_v2)(&out->array, FLAT(CUDA_ARRAY_DESCRIPTOR)))
TAKE(cuArray3DCreate, DRIVER(cuArray3DCreate)(&out->array, DEEP(CUDA_ARRAY3D_DESCRIPTOR_v1)))
TAKE(cuArray3DCreate_v2, DRIVER(cuArray3DCreate_v2)(&out->array, DEEP(CUDA_ARRAY3D_DESCRIPTOR)))

#define GIVE(name, expression) \
    static int give_##name(union out *out) \
    { \
        return (int)(expression); \
    }
GIVE(free, cudaFree(out->pointer))
GIVE(pitched, cudaFree(out->pitched.ptr))
GIVE(host, cudaFreeHost(out->pointer))
GIVE(async, cudaFreeAsync(out->pointer, NULL))
GIVE(runtime_array, cudaFreeArray(out->runtime_array))
GIVE(device, cuMemFree_v2(out->device))
GIVE(device_v1, cuMemFree(out->device_v1))
GIVE(driver_host, cuMemFreeHost(out->pointer))
GIVE(driver_async, cuMemFreeAsync(out->device, NULL))
GIVE(driver_async_ptsz, cuMemFreeAsync_ptsz(out->device, NULL))
GIVE(release, cuMemRelease(out->handle))
GIVE(array, cuArrayDestroy(out->array))

#define RUNTIME_CALL(name, symbol, give) \
    { \
#name, #symbol, NULL, 0, 0, NULL, take_##name, give_##give \
    }
#define DRIVER_CALL(name, base, version, flags, give) \
    { \
#name, #name, #base, version, flags, (function)name, take_##name, give_##give \
    }

static const struct call calls[] = {
    RUNTIME_CALL(cudaMalloc, cuMemAlloc_v2, free),
    RUNTIME_CALL(cudaMallocManaged, cuMemAllocManaged, free),
    RUNTIME_CALL(cudaMallocHost, cuMemHostAlloc, host),
    RUNTIME_CALL(cudaHostAlloc, cuMemHostAlloc, host),
    RUNTIME_CALL(cudaMallocPitch, cuMemAllocPitch_v2, free),
    RUNTIME_CALL(cudaMalloc3D, cuMemAllocPitch_v2, pitched),
    RUNTIME_CALL(cudaMallocArray, cuArray3DCreate_v2, runtime_array),
    RUNTIME_CALL(cudaMalloc3DArray, cuArray3DCreate_v2, runtime_array),
    RUNTIME_CALL(cudaMallocAsync, cuMemAllocAsync, async),
    RUNTIME_CALL(cudaMallocAsync_ptsz, cuMemAllocAsync_ptsz, async),
    RUNTIME_CALL(cudaMallocFromPoolAsync, cuMemAllocFromPoolAsync, async),
    RUNTIME_CALL(cudaMallocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync_ptsz, async),
    DRIVER_CALL(cuMemAlloc, cuMemAlloc, 2000, 0, device_v1),
    DRIVER_CALL(cuMemAlloc_v2, cuMemAlloc, 3020, 0, device),
    DRIVER_CALL(cuMemAllocPitch, cuMemAllocPitch, 2000, 0, device_v1),
    DRIVER_CALL(cuMemAllocPitch_v2, cuMemAllocPitch, 3020, 0, device),
    DRIVER_CALL(cuMemAllocManaged, cuMemAllocManaged, 6000, 0, device),
    DRIVER_CALL(cuMemAllocHost, cuMemAllocHost, 2000, 0, driver_host),
    DRIVER_CALL(cuMemAllocHost_v2, cuMemAllocHost, 3020, 0, driver_host),
    DRIVER_CALL(cuMemHostAlloc, cuMemHostAlloc, 2020, 0, driver_host),
    DRIVER_CALL(cuMemAllocAsync, cuMemAllocAsync, 11020, 0, driver_async),
    DRIVER_CALL(cuMemAllocAsync_ptsz, cuMemAllocAsync, 11020, 2, driver_async_ptsz),
    DRIVER_CALL(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, 0, driver_async),
    DRIVER_CALL(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, 11020, 2, driver_async_ptsz),
    DRIVER_CALL(cuMemCreate, cuMemCreate, 10020, 0, release),
    {"cuMemCreate_host", "cuMemCreate", "cuMemCreate", 10020, 0, (function)cuMemCreate, take_cuMemCreate_host,
     give_release},
    DRIVER_CALL(cuArrayCreate, cuArrayCreate, 2000, 0, array),
    DRIVER_CALL(cuArrayCreate_v2, cuArrayCreate, 3020, 0, array),
    DRIVER_CALL(cuArray3DCreate, cuArray3DCreate, 2000, 0, array),
    DRIVER_CALL(cuArray3DCreate_v2, cuArray3DCreate, 3020, 0, array),
};

/* ---- entry points ---- */

static void fail(const char *what)
{
    fprintf(stderr, "cuda_calls: %s\n", what);
    exit(1);
}

static function as_function(void *pointer)
{
    function f;
    memcpy(&f, &pointer, sizeof f);
    return f;
}

static function reach(const struct call *call, const char *entry)
{
    void *pointer = NULL;
    CUdriverProcAddressQueryResult status;
    if (call->base == NULL || strcmp(entry, "linked") == 0)
        return call->linked;
    if (strcmp(entry, "dlsym") == 0) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        pointer = library ? dlsym(library, call->symbol) : NULL;
    } else if (strcmp(entry, "address4") == 0) {
        if (cuGetProcAddress(call->base, &pointer, call->version, (cuuint64_t)call->flags) != CUDA_SUCCESS)
            fail("cuGetProcAddress");
    } else if (cuGetProcAddress_v2(call->base, &pointer, call->version, (cuuint64_t)call->flags, &status) !=
                   CUDA_SUCCESS ||
               status != CU_GET_PROC_ADDRESS_SUCCESS) {
        fail("cuGetProcAddress_v2");
    }
    if (pointer == NULL)
        fail("no such function");
    return as_function(pointer);
}

static const struct call *find_call(const char *name)
{
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (strcmp(calls[i].name, name) == 0)
            return &calls[i];
    fail("no such call");
    return NULL;
}

/* ---- what is asked ---- */

static void refuse(const struct call *call, function f, size_t large, size_t small)
{
    union out out;
    for (size_t i = 0; i < 4; i++)
        out.words[i] = SENTINEL;
    const union out before = out;
    unsigned long reached = sgsim_calls(call->symbol);
    printf("large %d\n", call->take(f, &out, large));
    printf("reached %lu\n", sgsim_calls(call->symbol) - reached);
    printf("untouched %d\n", memcmp(&out, &before, sizeof out) == 0);
    printf("peek %d\n", cudaPeekAtLastError());
    printf("get %d\n", cudaGetLastError());
    printf("get_again %d\n", cudaGetLastError());
    printf("small %d\n", call->take(f, &out, small));
    printf("last_after_small %d\n", cudaPeekAtLastError());
    printf("held %zu\n", sgsim_live_bytes("total"));
    printf("freed %d\n", call->give(&out));
    printf("left %zu\n", sgsim_live_bytes("total"));
}

static void fill(const struct call *call, function f, size_t step, size_t most)
{
    union out *outs = calloc(most, sizeof *outs);
    size_t count = 0;
    int result = 0;
    while (count < most && (result = call->take(f, &outs[count], step)) == 0)
        count++;
    printf("granted %zu\nresult %d\nheld %zu\n", count, result, sgsim_live_bytes("total"));
    for (size_t i = 0; i < count; i++)
        if (call->give(&outs[i]) != 0)
            fail("free");
    printf("left %zu\nafter %d\n", sgsim_live_bytes("total"), call->take(f, &outs[0], step));
    call->give(&outs[0]);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
            printf("%s %s\n", calls[i].name, calls[i].symbol);
        return 0;
    }
    if (argc != 6)
        fail("see the head of the source for usage");
    const struct call *call = find_call(argv[3]);
    size_t first = strtoull(argv[4], NULL, 0), second = strtoull(argv[5], NULL, 0);
    if (cudaFree(NULL) != cudaSuccess) /* makes the context */
        fail("no device");
    function f = reach(call, argv[2]);
    if (strcmp(argv[1], "refuse") == 0)
        refuse(call, f, first, second);
    else
        fill(call, f, first, second);
    return 0;
}
