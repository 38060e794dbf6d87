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

#include "allocating.h"
#include "cuda_sim.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern cudaError_t CUDARTAPI cudaMallocAsync_ptsz(void **pointer, size_t size, cudaStream_t stream);
extern cudaError_t CUDARTAPI cudaMallocFromPoolAsync_ptsz(void **pointer, size_t size, cudaMemPool_t pool,
                                                          cudaStream_t stream);

#define SENTINEL UINT64_C(0x5a5a5a5a5a5a5a5a)

static const struct cudaChannelFormatDesc byte_format = {8, 0, 0, 0, cudaChannelFormatKindUnsigned};

static struct cudaExtent extent_of(size_t size)
{
    return (struct cudaExtent){ROW, LAYERS, size / ROW / LAYERS};
}

/* ---- how each is called ---- */

#define TAKE(name, ...) \
    static int take_##name(allocating_function f, union allocated *out, size_t size) \
    { \
        (void)f; \
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

static const CUmemAllocationProp on_host = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0}};
TAKE(cuMemCreate_host, ((__typeof__(&cuMemCreate))f)(&out->handle, size, &on_host, 0))

#define GIVE(name, expression) \
    static int give_##name(union allocated *out) \
    { \
        return (int)(expression); \
    }
GIVE(free, cudaFree(out->pointer))
GIVE(pitched, cudaFree(out->pitched.ptr))
GIVE(host, cudaFreeHost(out->pointer))
GIVE(async, cudaFreeAsync(out->pointer, NULL))
GIVE(runtime_array, cudaFreeArray(out->runtime_array))

#define RUNTIME_CALL(name, symbol, give) \
    { \
#name, #symbol, NULL, 0, 0, NULL, take_##name, give_##give \
    }

static const struct allocating_call calls[] = {
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
    {"cuMemCreate_host", "cuMemCreate", "cuMemCreate", 10020, 0, (allocating_function)cuMemCreate,
     take_cuMemCreate_host, allocating_free_cuMemCreate},
#define SGSIM_FUNCTION(...)
#define SGSIM_ALLOCATES ALLOCATING_CALL
#include "functions.def"
#undef SGSIM_FUNCTION
};

/* ---- entry points ---- */

static void fail(const char *what)
{
    fprintf(stderr, "cuda_calls: %s\n", what);
    exit(1);
}

static allocating_function as_function(void *pointer)
{
    allocating_function f;
    memcpy(&f, &pointer, sizeof f);
    return f;
}

static allocating_function reach(const struct allocating_call *call, const char *entry)
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

static const struct allocating_call *find_call(const char *name)
{
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (strcmp(calls[i].name, name) == 0)
            return &calls[i];
    fail("no such call");
    return NULL;
}

/* ---- what is asked ---- */

static void refuse(const struct allocating_call *call, allocating_function f, size_t large, size_t small)
{
    union allocated out;
    for (size_t i = 0; i < 4; i++)
        out.words[i] = SENTINEL;
    const union allocated before = out;
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
    printf("freed %d\n", call->free(&out));
    printf("left %zu\n", sgsim_live_bytes("total"));
}

static void fill(const struct allocating_call *call, allocating_function f, size_t step, size_t most)
{
    union allocated *outs = calloc(most, sizeof *outs);
    size_t count = 0;
    int result = 0;
    while (count < most && (result = call->take(f, &outs[count], step)) == 0)
        count++;
    printf("granted %zu\nresult %d\nheld %zu\n", count, result, sgsim_live_bytes("total"));
    for (size_t i = 0; i < count; i++)
        if (call->free(&outs[i]) != 0)
            fail("free");
    printf("left %zu\nafter %d\n", sgsim_live_bytes("total"), call->take(f, &outs[0], step));
    call->free(&outs[0]);
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
    const struct allocating_call *call = find_call(argv[3]);
    size_t first = strtoull(argv[4], NULL, 0), second = strtoull(argv[5], NULL, 0);
    if (cudaFree(NULL) != cudaSuccess) /* makes the context */
        fail("no device");
    allocating_function f = reach(call, argv[2]);
    if (strcmp(argv[1], "refuse") == 0)
        refuse(call, f, first, second);
    else
        fill(call, f, first, second);
    return 0;
}
