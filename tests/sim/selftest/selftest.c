/*
 * selftest.c - the simulated driver and the stand-in runtime, tested by themselves, without any preload.
 *
 * Each scenario runs in a child of its own, with the environment it asks for, since the driver reads that
 * once. The parent touches no CUDA. At the end it demands that every line of functions.def was called by
 * some scenario. Prints "N checks" and exits 0; the first failed check says where and exits 1.
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL /* every variant under its exported name */
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "allocating.h"
#include "cuda_sim.h"
#include "graphics.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

static int newest_version(void)
{
    static const int versions[] = {
#define SGSIM_FUNCTION(symbol, base, version, stream) version,
#include "functions.def"
#undef SGSIM_FUNCTION
    };
    int newest = 0;
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++)
        newest = versions[i] > newest ? versions[i] : newest;
    return newest;
}

static const char *const functions[] = {
#define SGSIM_FUNCTION(symbol, base, version, stream) #symbol,
#include "functions.def"
#undef SGSIM_FUNCTION
};
#define FUNCTIONS (sizeof functions / sizeof functions[0])

/* In shared memory: the children add to it. */
static struct tally {
    unsigned long checks, calls[FUNCTIONS];
} * tally;

static const char *scenario_name = "";

#define CHECK(condition) \
    do { \
        __atomic_add_fetch(&tally->checks, 1, __ATOMIC_RELAXED); \
        if (!(condition)) { \
            fprintf(stderr, "selftest: %s: line %d: %s\n", scenario_name, __LINE__, #condition); \
            _exit(1); \
        } \
    } while (0)
#define OK(call) CHECK((int)(call) == 0)
#define FAILS(call, error) CHECK((int)(call) == (int)(error))

static CUcontext start(void)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return context;
}

/* ---- before cuInit: errors, versions, cuGetProcAddress ---- */

static void *look_up(const char *base, int version, cuuint64_t flags)
{
    void *found = &found;
    OK(cuGetProcAddress_v2(base, &found, version, flags, NULL));
    return found;
}

#define IS(found, function) ((found) == (void *)(uintptr_t)(function))

static void test_look_up(void)
{
    CUdriverProcAddressQueryResult status;
    void *found;
    CHECK(IS(look_up("cuMemAlloc", 2000, 0), cuMemAlloc));
    CHECK(IS(look_up("cuMemAlloc", 3010, 0), cuMemAlloc));
    CHECK(IS(look_up("cuMemAlloc", 3020, 0), cuMemAlloc_v2));
    CHECK(IS(look_up("cuMemAlloc", 13000, 2), cuMemAlloc_v2));
    CHECK(IS(look_up("cuCtxCreate", 11030, 0), cuCtxCreate_v2));
    CHECK(IS(look_up("cuCtxCreate", 13000, 0), cuCtxCreate_v4));
    CHECK(IS(look_up("cuMemAllocAsync", 11020, 0), cuMemAllocAsync));
    CHECK(IS(look_up("cuMemAllocAsync", 11020, 1), cuMemAllocAsync));
    CHECK(IS(look_up("cuMemAllocAsync", 11020, 2), cuMemAllocAsync_ptsz));
    CHECK(IS(look_up("cuMemcpy", 4000, 2), cuMemcpy)); /* the per-thread one is newer than asked */
    CHECK(IS(look_up("cuMemcpy", 7000, 2), cuMemcpy_ptds));
    CHECK(IS(look_up("cuGetProcAddress", 11030, 0), cuGetProcAddress));
    CHECK(IS(look_up("cuGetProcAddress", 12000, 0), cuGetProcAddress_v2));
    CHECK(look_up("", 2000, 0) == NULL);
    CHECK(look_up("cuMemAlloc_v2", 13000, 0) == NULL); /* base names only */
    OK(cuGetProcAddress_v2("cuMemAlloc", &found, 13000, 0, &status));
    CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS);
    OK(cuGetProcAddress_v2("cuNoSuchThing", &found, 13000, 0, &status));
    CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND && !found);
    OK(cuGetProcAddress_v2("cuMemAllocAsync", &found, 11010, 0, &status));
    CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT && !found);
    FAILS(cuGetProcAddress_v2("cuInit", &found, newest_version() + 10, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuGetProcAddress_v2("cuInit", &found, 2000, 3, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuGetProcAddress_v2(NULL, &found, 2000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuGetProcAddress_v2("cuInit", NULL, 2000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuGetProcAddress("cuMemFree", &found, 3020, 0));
    CHECK(IS(found, cuMemFree_v2));
}

static void test_start(void)
{
    const char *text;
    CUdeviceptr pointer = 42;
    int number;
    OK(cuDriverGetVersion(&number));
    CHECK(number == newest_version());
    FAILS(cuDriverGetVersion(NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strcmp(text, "out of memory") == 0);
    FAILS(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
    CHECK(text == NULL);
    FAILS(cuDeviceGetCount(&number), CUDA_ERROR_NOT_INITIALIZED);
    FAILS(cuMemAlloc_v2(&pointer, MIB), CUDA_ERROR_NOT_INITIALIZED);
    FAILS(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    OK(cuInit(0));
    OK(cuInit(0));
    FAILS(cuMemAlloc_v2(&pointer, MIB), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(pointer == 42);
    CHECK(sgsim_calls("cuInit") == 3 && sgsim_calls("cuNoSuchThing") == 0);
    pid_t child = fork();
    if (child == 0)
        _exit(cuDeviceGetCount(&number) == CUDA_ERROR_NOT_INITIALIZED && cuInit(0) == CUDA_ERROR_NOT_INITIALIZED ? 0
                                                                                                                 : 1);
    waitpid(child, &number, 0);
    CHECK(number == 0);
}

static void test_devices(void)
{
    char name[64], stub[5];
    int number;
    unsigned int narrow;
    size_t bytes;
    CUdevice device;
    OK(cuInit(0));
    OK(cuDeviceGetCount(&number));
    CHECK(number == 1);
    OK(cuDeviceGet(&device, 0));
    FAILS(cuDeviceGet(&device, 1), CUDA_ERROR_INVALID_DEVICE);
    OK(cuDeviceGetName(name, sizeof name, 0));
    CHECK(strcmp(name, "NVIDIA GB10 (simulated)") == 0);
    OK(cuDeviceGetName(stub, sizeof stub, 0));
    CHECK(strcmp(stub, "NVID") == 0);
    OK(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0));
    CHECK(number == 1);
    OK(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    CHECK(number == 12);
    OK(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
    CHECK(number == 1);
    FAILS(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_MAX, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_INTEGRATED, 7), CUDA_ERROR_INVALID_DEVICE);
    OK(cuDeviceTotalMem_v2(&bytes, 0));
    CHECK(bytes > 121 * GIB && bytes < 122 * GIB);
    OK(cuDeviceTotalMem(&narrow, 0));
    CHECK(narrow == UINT32_MAX);
}

/* ---- contexts and streams ---- */

static void test_contexts(void)
{
    unsigned long long id, new_id;
    CUcontext primary = start(), own, other, current;
    CUdeviceptr pointer;
    CUdevice device;
    unsigned int flags;
    int active;
    OK(cuCtxGetCurrent(&current));
    CHECK(current == primary);
    OK(cuDevicePrimaryCtxSetFlags_v2(0, 4));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(flags == 4 && active == 1);
    OK(cuCtxCreate_v4(&own, NULL, 0, 0));
    OK(cuMemAlloc_v2(&pointer, 3 * MIB));
    OK(cuCtxPopCurrent_v2(&current));
    CHECK(current == own);
    FAILS(cuCtxDestroy_v2(primary), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxPushCurrent_v2(own));
    CHECK(sgsim_live_bytes("device") == 3 * MIB);
    OK(cuCtxDestroy_v2(own)); /* gives back what was allocated in it */
    CHECK(sgsim_live_bytes("total") == 0);
    FAILS(cuCtxSetCurrent(own), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxGetDevice(&device));
    OK(cuCtxGetDevice_v2(&device, primary));
    CHECK(device == 0);
    OK(cuCtxSynchronize());
    OK(cuCtxSynchronize_v2(primary));
    OK(cuMemAlloc_v2(&pointer, MIB));
    OK(cuCtxGetId(primary, &id));
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK(sgsim_live_bytes("total") == 0);
    FAILS(cuMemAlloc_v2(&pointer, MIB), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    FAILS(cuCtxGetId(primary, &id), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuDevicePrimaryCtxRetain(&current, 0)); /* the same name, alive again */
    CHECK(current == primary);
    OK(cuCtxGetId(NULL, &new_id));
    CHECK(new_id != id);
    OK(cuMemAlloc_v2(&pointer, MIB));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK(sgsim_live_bytes("device") == MIB);
    OK(cuDevicePrimaryCtxRelease(0));
    CHECK(sgsim_live_bytes("device") == 0);
    FAILS(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxSetFlags(0, 0));
    OK(cuCtxCreate(&own, 0, 0));
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuCtxAttach(&current, 0));
    OK(cuCtxDetach(other));
    OK(cuMemAlloc_v2(&pointer, MIB));
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 3 * MIB));
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 2 * MIB));
    OK(cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, MIB));
    FAILS(cuCtxSetLimit(CU_LIMIT_MAX, MIB), CUDA_ERROR_UNSUPPORTED_LIMIT);
    CHECK(sgsim_live_bytes("context") == 2 * MIB);
    sgsim_break(CUDA_ERROR_ILLEGAL_ADDRESS);
    FAILS(cuMemAlloc_v2(&pointer, MIB), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxGetDevice(&device));
    OK(cuCtxDetach(other)); /* its last user */
    CHECK(current == other && sgsim_live_bytes("total") == 0);
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuCtxDestroy(other));
    OK(cuCtxCreate_v3(&other, NULL, 0, 0, 0));
    OK(cuCtxPopCurrent(&current));
    OK(cuCtxPushCurrent(other));
    FAILS(cuCtxCreate_v4(&other, NULL, 0, 9), CUDA_ERROR_INVALID_DEVICE);
    FAILS(cuGLCtxCreate(&other, 0, 9), CUDA_ERROR_INVALID_DEVICE);
    FAILS(cuGLCtxCreate_v2(&other, 0, 9), CUDA_ERROR_INVALID_DEVICE);
    FAILS(cuVDPAUCtxCreate(&other, 0, 9, 1, NULL), CUDA_ERROR_INVALID_DEVICE);
    FAILS(cuVDPAUCtxCreate_v2(&other, 0, 9, 1, NULL), CUDA_ERROR_INVALID_DEVICE);
}

static void test_streams(void)
{
    CUstream stream;
    start();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    FAILS(cuStreamCreate(NULL, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamSynchronize(stream));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize_ptsz(NULL));
    OK(cuStreamDestroy_v2(stream));
    FAILS(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamDestroy(stream));
    FAILS(cuStreamDestroy_v2(stream), CUDA_ERROR_INVALID_HANDLE);
}

/* ---- memory ---- */

static void test_linear(void)
{
    CUdeviceptr one, two, base;
    CUdeviceptr_v1 low, low_base;
    size_t pitch, size, before, after, total;
    unsigned int low_pitch, low_size, low_free, low_total;
    start();
    OK(cuMemGetInfo_v2(&before, &total));
    CHECK(before == total);
    OK(cuMemAlloc_v2(&one, 5 * MIB + 1));
    CHECK(sgsim_live_bytes("device") == 5 * MIB + 1);
    OK(cuMemGetInfo_v2(&after, &total));
    CHECK(before - after == 5 * MIB + 1);
    OK(cuMemGetInfo(&low_free, &low_total));
    CHECK(low_free == UINT32_MAX);
    FAILS(cuMemAlloc_v2(NULL, MIB), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAlloc_v2(&two, 0), CUDA_ERROR_INVALID_VALUE);
    two = 7;
    FAILS(cuMemAlloc_v2(&two, 200 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
    FAILS(cuMemAlloc_v2(&two, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(two == 7);
    OK(cuMemGetAddressRange_v2(&base, &size, one + 100));
    CHECK(base == one && size == 5 * MIB + 1);
    FAILS(cuMemGetAddressRange_v2(&base, &size, 4096), CUDA_ERROR_NOT_FOUND);
    FAILS(cuMemFree_v2(one + 4096), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemFree_v2(0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(one));
    FAILS(cuMemFree_v2(one), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocPitch_v2(&one, &pitch, 1000, 10, 4));
    CHECK(pitch == 1024 && sgsim_live_bytes("device") == 10240);
    FAILS(cuMemAllocPitch_v2(&two, &pitch, 1000, 10, 5), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAllocPitch_v2(&two, &pitch, SIZE_MAX / 2, 10, 4), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree_v2(one));
    OK(cuMemAllocManaged(&one, 2 * MIB, CU_MEM_ATTACH_GLOBAL));
    FAILS(cuMemAllocManaged(&two, MIB, 0), CUDA_ERROR_INVALID_VALUE);
    memset((void *)(uintptr_t)one, 1, 2 * MIB);
    CHECK(sgsim_live_bytes("managed") == 2 * MIB && sgsim_live_bytes("total") == 2 * MIB);
    OK(cuMemFree_v2(one));
    OK(cuMemAlloc(&low, 8 << 20));
    OK(cuMemGetAddressRange(&low_base, &low_size, low + 1));
    CHECK(low_base == low && low_size == 8 << 20);
    OK(cuMemFree(low));
    OK(cuMemAllocPitch(&low, &low_pitch, 100, 3, 8));
    CHECK(low_pitch == 512 && sgsim_live_bytes("device") == 1536);
    OK(cuMemFree_v2(low)); /* one driver, whatever the width of the pointer */
    CHECK(sgsim_live_bytes("total") == 0);
}

static void test_host(void)
{
    static char own[8192];
    void *host = NULL;
    CUdeviceptr mapped;
    start();
    OK(cuMemHostAlloc(&host, 3 * MIB, CU_MEMHOSTALLOC_PORTABLE));
    memset(host, 1, 3 * MIB);
    OK(cuMemHostGetDevicePointer_v2(&mapped, host, 0));
    CHECK(mapped == (uintptr_t)host && sgsim_live_bytes("pinned") == 3 * MIB);
    FAILS(cuMemFree_v2(mapped), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeHost(host));
    FAILS(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemHostAlloc(&host, 0, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemHostAlloc(&host, MIB, 64), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemHostAlloc(&host, 200 * GIB, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAllocHost_v2(&host, MIB));
    OK(cuMemFreeHost(host));
    OK(cuMemAllocHost(&host, 4096));
    OK(cuMemFreeHost(host));
    OK(cuMemHostRegister_v2(own, 4096, 0));
    FAILS(cuMemHostRegister_v2(own + 100, 100, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    OK(cuMemHostRegister(own + 4096, 4096, 0));
    CHECK(sgsim_live_bytes("registered") == 8192 && sgsim_live_bytes("total") == 0);
    OK(cuMemHostUnregister(own));
    OK(cuMemHostUnregister(own + 4096));
    FAILS(cuMemHostUnregister(own), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    CHECK(sgsim_live_bytes("registered") == 0);
}

static void test_arrays(void)
{
    CUarray array = NULL;
    CUmipmappedArray mipmapped;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
    CUDA_ARRAY_DESCRIPTOR flat = {.Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    CUDA_ARRAY3D_DESCRIPTOR deep = {
        .Width = 64, .Height = 64, .Depth = 64, .Format = CU_AD_FORMAT_HALF, .NumChannels = 2};
    CUDA_ARRAY_DESCRIPTOR_v1 flat_v1 = {.Width = 1024, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    CUDA_ARRAY3D_DESCRIPTOR_v1 deep_v1 = {
        .Width = 8, .Height = 8, .Depth = 8, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    start();
    OK(cuArrayCreate_v2(&array, &flat));
    CHECK(sgsim_live_bytes("array") == 16 * MIB && sgsim_live_bytes("device") == 0);
    FAILS(cuArrayGetMemoryRequirements(&needs, array, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuArrayDestroy(array));
    FAILS(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
    OK(cuArray3DCreate_v2(&array, &deep));
    CHECK(sgsim_live_bytes("array") == MIB);
    OK(cuArrayDestroy(array));
    OK(cuArrayCreate(&array, &flat_v1));
    CHECK(sgsim_live_bytes("array") == 1024);
    OK(cuArrayDestroy(array));
    OK(cuArray3DCreate(&array, &deep_v1));
    CHECK(sgsim_live_bytes("array") == 2048);
    OK(cuArrayDestroy(array));
    deep.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
    OK(cuArray3DCreate_v2(&array, &deep));
    OK(cuArrayGetMemoryRequirements(&needs, array, 0));
    CHECK(needs.size == MIB && sgsim_live_bytes("array") == 0);
    OK(cuArrayDestroy(array));
    OK(cuMipmappedArrayCreate(&mipmapped, &deep, 1));
    OK(cuMipmappedArrayGetMemoryRequirements(&needs, mipmapped, 0));
    OK(cuMipmappedArrayDestroy(mipmapped));
    deep.Flags = 0;
    OK(cuMipmappedArrayCreate(&mipmapped, &deep, 3)); /* 64^3, 32^3 and 16^3 elements of 4 bytes */
    CHECK(sgsim_live_bytes("array") == 4 * (64 * 64 * 64 + 32 * 32 * 32 + 16 * 16 * 16));
    OK(cuMipmappedArrayDestroy(mipmapped));
    flat.NumChannels = 3;
    FAILS(cuArrayCreate_v2(&array, &flat), CUDA_ERROR_INVALID_VALUE);
    flat.NumChannels = 4;
    flat.Width = flat.Height = (size_t)1 << 30;
    FAILS(cuArrayCreate_v2(&array, &flat), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(sgsim_live_bytes("array") == 0);
}

static void test_graphs(void)
{
    CUgraph inner, graph;
    CUgraphNode node, nodes[8];
    CUgraphNodeType type;
    CUgraphExec exec;
    size_t count = 8;
    cuuint64_t bytes;
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = 3 * MIB}, queried;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    start();
    OK(cuGraphCreate(&inner, 0));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, inner, NULL, 0, &params));
    OK(cuGraphAddMemFreeNode(&node, inner, NULL, 0, params.dptr));
    OK(cuGraphAddEmptyNode(&node, graph, NULL, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params)); /* this one stays allocated */
    OK(cuGraphMemAllocNodeGetParams(node, &queried));
    CHECK(queried.bytesize == 3 * MIB && queried.dptr == params.dptr);
    OK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, inner));
    OK(cuGraphNodeGetType(node, &type));
    OK(cuGraphChildGraphNodeGetGraph(node, &inner));
    OK(cuGraphGetNodes(graph, nodes, &count));
    CHECK(count == 3 && type == CU_GRAPH_NODE_TYPE_GRAPH && sgsim_live_bytes("device") == 0);
    OK(cuGraphInstantiate(&exec, graph, NULL, NULL, 0));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphExecDestroy(exec));
    CHECK(sgsim_live_bytes("device") == 0);
    OK(cuGraphInstantiateWithParams_ptsz(&exec, graph, &how));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphInstantiateWithParams(&exec, graph, &how));
    OK(cuGraphUpload(exec, NULL));
    OK(cuGraphUpload_ptsz(exec, NULL));
    OK(cuGraphLaunch(exec, NULL));
    CHECK(sgsim_live_bytes("device") == 8 * MIB);
    OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &bytes));
    CHECK(bytes == 4 * MIB);
    OK(cuDeviceGraphMemTrim(0));
    CHECK(sgsim_live_bytes("device") == 4 * MIB);
    OK(cuMemFreeAsync(params.dptr, NULL));
    OK(cuGraphLaunch_ptsz(exec, NULL));
    OK(cuMemFree_v2(params.dptr));
    OK(cuDeviceGraphMemTrim(0));
    OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes));
    CHECK(bytes == 0 && sgsim_live_bytes("device") == 0);
    OK(cuGraphExecDestroy(exec));
    FAILS(cuGraphLaunch(exec, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(inner));

    CUstream stream;
    CUstreamCaptureStatus status;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuStreamIsCapturing(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuMemAllocAsync(&params.dptr, 5 * MIB, stream));
    OK(cuMemFreeAsync(params.dptr, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuStreamIsCapturing_ptsz(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE && sgsim_live_bytes("total") == 0);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, NULL));
    CHECK(sgsim_live_bytes("device") == 6 * MIB);
    OK(cuGraphDestroy(graph));

    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuStreamSynchronize(NULL));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    FAILS(cuStreamSynchronize(NULL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    FAILS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamDestroy_v2(stream));
}

static void test_copies(void)
{
    char in[256], out[256];
    CUdeviceptr one, two;
    unsigned int type;
    size_t size;
    memset(in, 'x', sizeof in);
    start();
    OK(cuMemAlloc_v2(&one, 4096));
    OK(cuMemAlloc_v2(&two, 4096));
    OK(cuMemcpyHtoD_v2(one, in, sizeof in));
    OK(cuMemcpyDtoD_v2(two, one, sizeof in));
    OK(cuMemcpyDtoH_v2(out, two, sizeof in));
    CHECK(memcmp(in, out, sizeof in) == 0);
    OK(cuMemsetD8_v2(one, 'y', sizeof in));
    OK(cuMemcpy((uintptr_t)out, one, sizeof in));
    CHECK(out[0] == 'y' && out[255] == 'y');
    OK(cuMemsetD8_v2_ptds(one, 'z', sizeof in));
    OK(cuMemcpyHtoD_v2_ptds(two, in, sizeof in));
    OK(cuMemcpyDtoD_v2_ptds(two, one, sizeof in));
    OK(cuMemcpyDtoH_v2_ptds(out, two, sizeof in));
    CHECK(out[0] == 'z');
    OK(cuMemcpy_ptds(one, (uintptr_t)in, sizeof in));
    OK(cuMemcpyHtoDAsync_v2(two, in, sizeof in, NULL));
    OK(cuMemcpyDtoHAsync_v2(out, two, sizeof in, NULL));
    CHECK(memcmp(in, out, sizeof in) == 0);
    FAILS(cuMemcpyHtoD_v2(one, in, 4097), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyHtoDAsync_v2(one, in, 4097, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyDtoH_v2(out, (uintptr_t)in, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, one));
    CHECK(type == CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, one + 5));
    CHECK(size == 4096);
    FAILS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)in), CUDA_ERROR_INVALID_VALUE);
}

/* ---- pools ---- */

static cuuint64_t pool_figure(CUmemoryPool pool, CUmemPool_attribute attribute)
{
    cuuint64_t value = 0;
    OK(cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

/* SGSIM_STREAMS=busy SGSIM_POOL_STEP=4M: what was freed in a stream is there for that stream alone, until it is seen
 * to be done. */
static void test_pool_reuse_in_stream_order(void)
{
    CUstream streams[2];
    CUmemoryPool pool;
    CUdeviceptr blocks[4], again;
    cuuint64_t keep = GIB;
    (void)start();
    OK(cuStreamCreate(&streams[0], 0));
    OK(cuStreamCreate(&streams[1], 0));
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    for (int i = 0; i < 4; i++)
        OK(cuMemAllocAsync(&blocks[i], MIB, streams[0]));
    CHECK(pool_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 4 * MIB);
    OK(cuMemFreeAsync(blocks[1], streams[0]));
    OK(cuMemFreeAsync(blocks[2], streams[0]));
    OK(cuMemAllocAsync(&again, MIB, streams[1]));
    CHECK(pool_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 8 * MIB);
    OK(cuMemFreeAsync(again, streams[1]));
    OK(cuStreamSynchronize(streams[1]));
    OK(cuMemPoolTrimTo(pool, 0));
    CHECK(pool_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 4 * MIB);
    OK(cuMemAllocAsync(&again, MIB + MIB / 2, streams[0])); /* over both, and half a MiB of them is left */
    CHECK(again == blocks[1]);
    OK(cuStreamSynchronize(streams[1]));
    OK(cuMemAllocAsync(&blocks[1], MIB / 2, streams[1]));
    CHECK(blocks[1] != again + MIB + MIB / 2);
    OK(cuMemFreeAsync(blocks[1], streams[1]));
    OK(cuCtxSynchronize());
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemAllocAsync(&blocks[1], MIB / 2, streams[1]));
    CHECK(blocks[1] == again + MIB + MIB / 2);
    OK(cuMemFreeAsync(again, streams[0]));
    OK(cuMemFreeAsync(blocks[0], streams[0]));
    OK(cuMemFreeAsync(blocks[1], streams[1]));
    OK(cuMemFreeAsync(blocks[3], streams[0]));
    OK(cuCtxSynchronize());
    OK(cuMemPoolTrimTo(pool, 0));
    CHECK(sgsim_live_bytes("total") == 0);
}

/* SGSIM_DEVICES=2 SGSIM_STREAMS=busy: a stream keeps its device, whatever is current; what was freed on it stays until
 * a synchronisation. */
static void test_stream_pools(void)
{
    CUcontext second, found;
    CUdevice device = 7;
    CUstream stream;
    CUevent event;
    CUdeviceptr block;
    CUmemoryPool pools[2];
    start();
    OK(cuCtxCreate_v2(&second, 0, 1));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
    OK(cuCtxPopCurrent_v2(&found));
    OK(cuCtxSetCurrent(NULL));
    for (int i = 0; i < 2; i++)
        OK(cuDeviceGetMemPool(&pools[i], i));
    FAILS(cuMemAllocAsync(&block, MIB, NULL), CUDA_ERROR_INVALID_CONTEXT);
    FAILS(cuMemAllocFromPoolAsync_ptsz(&block, MIB, pools[0], NULL), CUDA_ERROR_INVALID_CONTEXT);
    FAILS(cuStreamGetDevice(NULL, &device), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuStreamGetDevice(stream, &device));
    OK(cuStreamGetCtx(stream, &found));
    CHECK(device == 1 && found == second);
    OK(cuMemAllocAsync(&block, MIB, stream));
    CHECK(pool_figure(pools[0], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
    CHECK(pool_figure(pools[1], CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == MIB);
    OK(cuMemFreeAsync(block, stream));
    OK(cuMemPoolTrimTo(pools[1], 0));
    CHECK(pool_figure(pools[1], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 32 * MIB);
    OK(cuCtxSetCurrent(second));
    OK(cuEventRecord(event, stream));
    OK(cuEventSynchronize(event));
    CHECK(pool_figure(pools[1], CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
    OK(cuEventDestroy_v2(event));
    FAILS(cuEventSynchronize(event), CUDA_ERROR_INVALID_HANDLE);
}

static void test_default_pool(void)
{
    CUdeviceptr blocks[3];
    CUmemoryPool pool, found;
    cuuint64_t keep = 32 * MIB, zero = 0;
    start();
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuDeviceGetMemPool(&found, 0));
    CHECK(pool == found && sgsim_live_bytes("pool_reserved") == 0);
    OK(cuMemAllocAsync(&blocks[0], MIB, NULL));
    OK(cuMemAllocAsync_ptsz(&blocks[1], 100, NULL)); /* uses 512 */
    CHECK(pool_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 32 * MIB);
    CHECK(pool_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == MIB + 512);
    OK(cuMemAllocAsync(&blocks[2], 40 * MIB + 1, NULL)); /* a segment of its own, 42 MiB */
    CHECK(pool_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 74 * MIB);
    CHECK(sgsim_live_bytes("device") == 74 * MIB && sgsim_live_bytes("pool_reserved") == 74 * MIB);
    OK(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, blocks[1]));
    CHECK(found == pool);
    OK(cuMemFreeAsync(blocks[0], NULL));
    OK(cuMemFree_v2(blocks[2]));
    OK(cuMemFreeAsync_ptsz(blocks[1], NULL));
    FAILS(cuMemFreeAsync(blocks[1], NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK(sgsim_live_bytes("device") == 74 * MIB); /* freed blocks stay in the pool */
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    OK(cuStreamSynchronize(NULL));
    CHECK(sgsim_live_bytes("device") == 32 * MIB);
    OK(cuMemPoolTrimTo(pool, MIB)); /* whole segments: less than MIB must not stay */
    CHECK(sgsim_live_bytes("device") == 32 * MIB);
    OK(cuMemPoolTrimTo(pool, 0));
    CHECK(sgsim_live_bytes("total") == 0);
    CHECK(pool_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 74 * MIB);
    CHECK(pool_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 41 * MIB + 1024);
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    CHECK(pool_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0);
    FAILS(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &zero), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAllocAsync(&blocks[0], 0, NULL), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemAllocAsync(&blocks[0], MIB, (CUstream)&keep), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuMemAllocAsync(&blocks[0], 500 * GIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    FAILS(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
}

static void test_own_pools(void)
{
    CUmemoryPool pool, found;
    CUdeviceptr block;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                            .maxSize = 40 * MIB};
    start();
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST}, device = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemoryPool place, again;
    OK(cuMemGetDefaultMemPool(&place, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
    OK(cuMemGetMemPool(&again, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
    CHECK(place == again);
    OK(cuMemGetDefaultMemPool(&place, &device, CU_MEM_ALLOCATION_TYPE_PINNED));
    OK(cuMemSetMemPool(&device, CU_MEM_ALLOCATION_TYPE_PINNED, place));
    FAILS(cuMemSetMemPool(&host, CU_MEM_ALLOCATION_TYPE_PINNED, place), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuDeviceSetMemPool(0, pool));
    OK(cuDeviceGetMemPool(&found, 0));
    CHECK(found == pool);
    OK(cuMemAllocFromPoolAsync(&block, MIB, pool, NULL));
    FAILS(cuMemAllocFromPoolAsync_ptsz(&block, 32 * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemPoolDestroy(pool)); /* lives on until its last block is freed */
    CHECK(sgsim_live_bytes("pool_reserved") == 32 * MIB);
    FAILS(cuMemAllocFromPoolAsync(&block, MIB, pool, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuDeviceGetMemPool(&found, 0));
    CHECK(found != pool);
    OK(cuMemFreeAsync(block, NULL));
    CHECK(sgsim_live_bytes("pool_reserved") == 0);
    props.location.type = CU_MEM_LOCATION_TYPE_HOST;
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync_ptsz(&block, MIB, pool, NULL));
    memset((void *)(uintptr_t)block, 1, MIB);
    CHECK(sgsim_live_bytes("pinned") == 32 * MIB && sgsim_live_bytes("device") == 0);
    OK(cuMemFreeAsync(block, NULL));
    OK(cuMemPoolDestroy(pool));
    props.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&block, MIB, pool, NULL));
    CHECK(sgsim_live_bytes("managed") == 32 * MIB);
    OK(cuDevicePrimaryCtxReset_v2(0)); /* empties the pools of the device */
    CHECK(sgsim_live_bytes("total") == 0);
}

/* ---- virtual memory management ---- */

static void test_vmm(void)
{
    CUmemGenericAllocationHandle handle, again;
    CUmemAllocationProp prop;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr space;
    size_t step;
    char byte = 0;
    start();
    OK(cuMemGetAllocationGranularity(&step, &on_device, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(step == 2 * MIB);
    OK(cuMemAddressReserve(&space, 32 * MIB, 8 * MIB, 0, 0));
    CHECK(space % (8 * MIB) == 0 && sgsim_live_bytes("total") == 0); /* addresses are no memory */
    FAILS(cuMemAddressReserve(&space, MIB, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemCreate(&handle, MIB, &on_device, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemCreate(&handle, 500 * GIB, &on_device, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemCreate(&handle, 4 * MIB, &on_device, 0));
    CHECK(sgsim_live_bytes("device") == 4 * MIB);
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    CHECK(prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    FAILS(cuMemMap(space + MIB, 4 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(space, 4 * MIB, 0, handle, 0));
    OK(cuMemMap(space + 8 * MIB, 4 * MIB, 0, handle, 0));
    FAILS(cuMemMap(space + 2 * MIB, 4 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemsetD8_v2(space, 'a', 1), CUDA_ERROR_INVALID_VALUE); /* no access yet */
    OK(cuMemSetAccess(space, 4 * MIB, &access, 1));
    OK(cuMemsetD8_v2(space, 'a', 4 * MIB));
    CUmemFabricHandle shared;
    FAILS(cuMemExportToShareableHandle(&shared, handle, CU_MEM_HANDLE_TYPE_WIN32, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemExportToShareableHandle(&shared, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    OK(cuMemImportFromShareableHandle(&again, &shared, CU_MEM_HANDLE_TYPE_FABRIC));
    CHECK(again == handle);
    OK(cuMemRelease(again));
    OK(cuMemRelease(handle));
    FAILS(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    CHECK(sgsim_live_bytes("device") == 4 * MIB); /* two mappings hold it */
    FAILS(cuMemFree_v2(space), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(space + MIB)));
    CHECK(again == handle);
    OK(cuMemUnmap(space, 4 * MIB));
    OK(cuMemUnmap(space + 8 * MIB, 4 * MIB));
    CHECK(sgsim_live_bytes("device") == 4 * MIB);        /* the retained reference holds it */
    OK(cuMemMap(space + 4 * MIB, 4 * MIB, 0, again, 0)); /* the contents come along */
    OK(cuMemSetAccess(space + 4 * MIB, 4 * MIB, &access, 1));
    OK(cuMemcpyDtoH_v2(&byte, space + 5 * MIB, 1));
    CHECK(byte == 'a');
    FAILS(cuMemAddressFree(space, 32 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(again));
    FAILS(cuMemUnmap(space + 4 * MIB, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(space + 4 * MIB, 4 * MIB));
    CHECK(sgsim_live_bytes("total") == 0);
    OK(cuMemAddressFree(space, 32 * MIB));
    FAILS(cuMemAddressFree(space, 32 * MIB), CUDA_ERROR_INVALID_VALUE);
}

/* ---- environment ---- */

/* Every function that functions.def says to allocate: takes at least the bytes, gives them back, and fails without a
 * trace. */
static void test_allocating(void)
{
    static const struct allocating_call calls[] = {
#define SGSIM_FUNCTION(...)
#define SGSIM_ALLOCATES ALLOCATING_CALL
#include "functions.def"
#undef SGSIM_FUNCTION
    };
    start();
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        union allocated out, before;
        size_t live = sgsim_live_bytes("total");
        scenario_name = calls[i].symbol;
        memset(&out, 0x5a, sizeof out);
        before = out;
        sgsim_fail(calls[i].symbol, 1, CUDA_ERROR_OUT_OF_MEMORY);
        FAILS(calls[i].take(calls[i].linked, &out, 8 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        sgsim_fail(calls[i].symbol, 0, 0);
        CHECK(memcmp(&out, &before, sizeof out) == 0 && sgsim_live_bytes("total") == live);
        OK(calls[i].take(calls[i].linked, &out, 8 * MIB));
        CHECK(sgsim_live_bytes("total") >= live + 8 * MIB);
        OK(calls[i].free(&out));
        OK(cuCtxSynchronize());
        CHECK(sgsim_live_bytes("total") == live);
    }
}

static void test_failures(void)
{
    CUdeviceptr pointer = 9;
    start();
    OK(cuMemAlloc_v2(&pointer, 4096)); /* SGSIM_FAIL=cuMemAlloc_v2:2,cuMemFree_v2:1:700,cuMemAllocManaged:* */
    FAILS(cuMemAlloc_v2(&pointer, 4096), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&pointer, 4096));
    FAILS(cuMemFree_v2(pointer), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuMemFree_v2(pointer));
    for (int i = 0; i < 3; i++)
        FAILS(cuMemAllocManaged(&pointer, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
    sgsim_fail("cuMemAllocManaged", 0, 0);
    OK(cuMemAllocManaged(&pointer, 4096, CU_MEM_ATTACH_GLOBAL));
    sgsim_fail("cuMemHostAlloc", 1, 801);
    FAILS(cuMemHostAlloc((void **)&pointer, 4096, 0), CUDA_ERROR_NOT_SUPPORTED);
    sgsim_fail("cuMemGetInfo_v2", -1, 999);
    FAILS(cuMemGetInfo_v2(NULL, NULL), CUDA_ERROR_UNKNOWN);
    FAILS(cuMemGetInfo_v2(NULL, NULL), CUDA_ERROR_UNKNOWN);
    CHECK(sgsim_calls("cuMemAlloc_v2") == 3 && sgsim_calls("cuMemGetInfo_v2") == 2);
}

/* SGSIM_KIND=discrete SGSIM_DEVICES=2 SGSIM_MEMORY=64M SGSIM_CONTEXT=8M */
static void test_discrete(void)
{
    CUcontext other;
    CUdeviceptr pointer;
    void *host;
    int number;
    size_t left, total;
    start();
    OK(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_INTEGRATED, 1));
    CHECK(number == 0);
    OK(cuMemGetInfo_v2(&left, &total));
    CHECK(total == 64 * MIB && left == 56 * MIB && sgsim_live_bytes("context") == 8 * MIB);
    OK(cuMemAlloc_v2(&pointer, 56 * MIB));
    FAILS(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemHostAlloc(&host, 100 * MIB, 0)); /* the machine's, not the device's */
    OK(cuCtxCreate_v4(&other, NULL, 0, 1));
    OK(cuMemAlloc_v2(&pointer, 50 * MIB)); /* each device has its own */
    OK(cuCtxDestroy_v2(other));
    CHECK(sgsim_live_bytes("device") == 56 * MIB);
    FAILS(cuCtxCreate_v2(&other, 0, 0), CUDA_ERROR_OUT_OF_MEMORY); /* a context needs room too */
}

static int is_resident(uintptr_t address)
{
    unsigned char resident = 0;
    OK(mincore((void *)address, 1, &resident));
    return resident & 1;
}

/* User-mode emulators ignore MAP_POPULATE. */
static int populate_works(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return page != MAP_FAILED && is_resident((uintptr_t)page);
}

/* SGSIM_MEMORY=64M SGSIM_BACKING=touch: one pool for device and pinned memory */
static void test_one_pool(void)
{
    CUdeviceptr pointer;
    void *host;
    size_t left, total;
    start();
    OK(cuMemHostAlloc(&host, 40 * MIB, 0));
    OK(cuMemGetInfo_v2(&left, &total));
    CHECK(left == 24 * MIB);
    FAILS(cuMemAlloc_v2(&pointer, 25 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&pointer, 24 * MIB));
    CHECK(is_resident(pointer + 23 * MIB) || !populate_works());
    OK(cuMemAllocManaged(&pointer, 60 * MIB, CU_MEM_ATTACH_GLOBAL)); /* lazy: needs no room */
    CHECK(!is_resident(pointer));
    FAILS(cuMemAllocManaged(&pointer, 5 * MIB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
}

/* SGSIM_BACKING=none */
static void test_no_backing(void)
{
    CUdeviceptr pointer;
    char bytes[16] = "something";
    start();
    OK(cuMemAlloc_v2(&pointer, 100 * GIB));
    OK(cuMemsetD8_v2(pointer, 1, 100 * GIB));
    OK(cuMemcpyHtoD_v2(pointer, bytes, sizeof bytes));
    OK(cuMemcpyDtoH_v2(bytes, pointer, sizeof bytes));
    CHECK(bytes[0] == 0);
    OK(cuMemFree_v2(pointer));
}

static void test_no_device(void) /* SGSIM_DEVICES=0 */
{
    int count = 5;
    FAILS(cuInit(0), CUDA_ERROR_NO_DEVICE);
    FAILS(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    FAILS(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    FAILS(cudaGetLastError(), cudaErrorNoDevice);
}

/* Files of this run, and the settings that name them. */
static char scratch[] = "/tmp/sgsim-selftest-XXXXXX", meminfo_setting[64], ledger_setting[64];
static const char *meminfo_path = meminfo_setting + sizeof "SGSIM_MEMINFO",
                  *ledger_path = ledger_setting + sizeof "SGSIM_LEDGER";

static void read_file(const char *path, char *text, size_t room)
{
    FILE *file = fopen(path, "re");
    CHECK(file);
    size_t length = fread(text, 1, room - 1, file);
    text[length] = '\0';
    fclose(file);
}

/* What the processes of a fake machine said about themselves. */
static void remove_processes(const char *meminfo)
{
    char path[512];
    snprintf(path, sizeof path, "%s.processes", meminfo);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder)
        closedir(folder);
    rmdir(path);
}

static const char meminfo_text[] =
    "MemTotal:       16384 kB\nMemFree:        10240 kB\nMemAvailable:   12288 kB\nBuffers: 0 kB\n";

static void test_meminfo(void)
{
    char text[256];
    CUdeviceptr one, two;
    start();
    OK(cuMemAlloc_v2(&one, 4 * MIB));
    OK(cuMemAllocManaged(&two, MIB, CU_MEM_ATTACH_GLOBAL));
    read_file(meminfo_path, text, sizeof text);
    CHECK(strstr(text, "MemFree:         6144 kB\nMemAvailable:    8192 kB\nBuffers: 0 kB\n"));
    OK(cuMemAllocHost_v2((void **)&two, 7 * MIB)); /* 1 MiB more than MemFree has: owed */
    read_file(meminfo_path, text, sizeof text);
    CHECK(strstr(text, "MemFree:            0 kB\nMemAvailable:    1024 kB\n"));
    OK(cuMemFreeHost((void *)(uintptr_t)two));
    OK(cuMemFree_v2(one));
    read_file(meminfo_path, text, sizeof text);
    CHECK(strcmp(text, meminfo_text) == 0);
}

/* ---- threads ---- */

static void *churn(void *context)
{
    CUdeviceptr pointers[16];
    OK(cuCtxSetCurrent((CUcontext)context));
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < 16; i++)
            OK(i % 2 ? cuMemAlloc_v2(&pointers[i], 4096 * (i + 1))
                     : cuMemAllocAsync(&pointers[i], 1000 * (i + 1), NULL));
        for (size_t i = 0; i < 16; i++)
            OK(cuMemFree_v2(pointers[i]));
    }
    return NULL;
}

static void test_threads(void)
{
    pthread_t threads[8];
    CUcontext context = start();
    for (int i = 0; i < 8; i++)
        OK(pthread_create(&threads[i], NULL, churn, context));
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    OK(cuCtxSynchronize());
    CHECK(sgsim_live_bytes("total") == 0 && sgsim_calls("cuMemFree_v2") == 8 * 50 * 16);
}

/* ---- the runtime ---- */

static void test_runtime_start(void)
{
    struct cudaDeviceProp properties;
    enum cudaDriverEntryPointQueryResult status;
    int number;
    void *found;
    CHECK(sgsim_calls("cuGetProcAddress_v2") == 0); /* nothing at load */
    OK(cudaRuntimeGetVersion(&number));
    CHECK(number == CUDART_VERSION && sgsim_calls("cuGetProcAddress_v2") == 0);
    OK(cudaDriverGetVersion(&number));
    CHECK(number == newest_version() && sgsim_calls("cuGetProcAddress_v2") > 40 && sgsim_calls("cuInit") == 1);
    OK(cudaGetDeviceCount(&number));
    CHECK(number == 1);
    OK(cudaGetDevice(&number));
    CHECK(number == 0);
    FAILS(cudaSetDevice(3), cudaErrorInvalidDevice);
    FAILS(cudaGetLastError(), cudaErrorInvalidDevice);
    OK(cudaSetDevice(0));
    OK(cudaGetDeviceProperties(&properties, 0));
    CHECK(properties.integrated == 1 && properties.major == 12 && properties.totalGlobalMem > 121 * GIB);
    CHECK(strcmp(properties.name, "NVIDIA GB10 (simulated)") == 0);
    OK(cudaDeviceGetAttribute(&number, cudaDevAttrIntegrated, 0));
    CHECK(number == 1);
    OK(cudaGetDriverEntryPointByVersion("cuMemCreate", &found, 10020, 0, &status));
    CHECK(IS(found, cuMemCreate) && status == cudaDriverEntryPointSuccess);
    OK(cudaGetDriverEntryPointByVersion_ptsz("cuMemAllocAsync", &found, 11020, cudaEnableDefault, NULL));
    CHECK(IS(found, cuMemAllocAsync_ptsz));
}

static void test_runtime_errors(void)
{
    void *pointer = &pointer;
    unsigned long before = sgsim_calls("cuMemAlloc_v2");
    FAILS(cudaMalloc(&pointer, 500 * GIB), cudaErrorMemoryAllocation);
    CHECK(pointer == &pointer && sgsim_calls("cuMemAlloc_v2") == before + 1); /* one call to the driver */
    FAILS(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&pointer, MIB)); /* not sticky; success does not clear it */
    FAILS(cudaGetLastError(), cudaErrorMemoryAllocation);
    OK(cudaGetLastError());
    OK(cudaFree(pointer));
    FAILS(cudaFree(pointer), cudaErrorInvalidValue);
    OK(cudaGetLastError() == cudaErrorInvalidValue ? 0 : 1);
    CHECK(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
    CHECK(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
    OK(cudaMalloc(&pointer, 0));
    CHECK(pointer == NULL && sgsim_calls("cuMemAlloc_v2") == before + 2);
}

static void test_runtime_memory(void)
{
    void *pointer;
    size_t pitch, left, total;
    char bytes[64] = "abc", back[64];
    struct cudaPitchedPtr cube;
    cudaArray_t array;
    cudaMipmappedArray_t mipmapped;
    struct cudaChannelFormatDesc texel = {32, 32, 0, 0, cudaChannelFormatKindFloat};
    test_runtime_errors();
    OK(cudaMallocManaged(&pointer, MIB, cudaMemAttachGlobal));
    OK(cudaFree(pointer));
    OK(cudaMallocHost(&pointer, MIB));
    CHECK(sgsim_live_bytes("pinned") == MIB && sgsim_calls("cuMemHostAlloc") == 1);
    OK(cudaFreeHost(pointer));
    OK(cudaHostAlloc(&pointer, MIB, cudaHostAllocMapped));
    OK(cudaFreeHost(pointer));
    OK(cudaMallocPitch(&pointer, &pitch, 100, 10));
    CHECK(pitch == 512);
    OK(cudaFree(pointer));
    OK(cudaMalloc3D(&cube, (struct cudaExtent){100, 10, 4}));
    CHECK(cube.pitch == 512 && cube.ysize == 10 && sgsim_live_bytes("device") == 512 * 40);
    OK(cudaMemset(cube.ptr, 7, 100));
    OK(cudaMemcpy(cube.ptr, bytes, sizeof bytes, cudaMemcpyHostToDevice));
    OK(cudaMemcpy((char *)cube.ptr + 512, cube.ptr, sizeof bytes, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy(back, (char *)cube.ptr + 512, sizeof bytes, cudaMemcpyDeviceToHost));
    CHECK(memcmp(bytes, back, sizeof bytes) == 0);
    OK(cudaMemcpy(cube.ptr, bytes, sizeof bytes, cudaMemcpyDefault));
    OK(cudaMemcpy(back, bytes, sizeof bytes, cudaMemcpyHostToHost));
    OK(cudaFree(cube.ptr));
    OK(cudaMallocArray(&array, &texel, 128, 128, 0));
    CHECK(sgsim_live_bytes("array") == 128 * 128 * 8 && sgsim_calls("cuArray3DCreate_v2") == 1);
    OK(cudaFreeArray(array));
    OK(cudaMalloc3DArray(&array, &texel, (struct cudaExtent){16, 16, 16}, 0));
    OK(cudaFreeArray(array));
    OK(cudaMallocMipmappedArray(&mipmapped, &texel, (struct cudaExtent){64, 64, 0}, 2, 0));
    OK(cudaFreeMipmappedArray(mipmapped));
    OK(cudaHostRegister(bytes, sizeof bytes, cudaHostRegisterDefault));
    OK(cudaHostUnregister(bytes));
    FAILS(cudaHostUnregister(bytes), cudaErrorHostMemoryNotRegistered);
    OK(cudaMemGetInfo(&left, &total));
    CHECK(left == total && sgsim_live_bytes("total") == 0);
}

static void test_runtime_pools(void)
{
    void *pointer;
    cudaStream_t stream;
    cudaMemPool_t pool, found;
    cuuint64_t threshold = 64 * MIB, value = 0;
    struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned,
                                     .location = {.type = cudaMemLocationTypeDevice}};
    OK(cudaStreamCreate(&stream));
    OK(cudaMallocAsync(&pointer, MIB, stream));
    OK(cudaFreeAsync(pointer, stream));
    OK(cudaMallocAsync_ptsz(&pointer, MIB, NULL));
    OK(cudaFreeAsync_ptsz(pointer, NULL));
    CHECK(sgsim_calls("cuMemAllocAsync_ptsz") == 1 && sgsim_calls("cuMemAllocAsync") == 1);
    OK(cudaStreamSynchronize(stream));
    CHECK(sgsim_live_bytes("device") == 0);
    OK(cudaStreamSynchronize_ptsz(NULL));
    OK(cudaStreamDestroy(stream));
    OK(cudaMemPoolCreate(&pool, &props));
    OK(cudaMallocFromPoolAsync(&pointer, MIB, pool, NULL));
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    OK(cudaFreeAsync(pointer, NULL));
    OK(cudaDeviceSynchronize());
    OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &value));
    CHECK(value == 32 * MIB);
    OK(cudaMallocFromPoolAsync_ptsz(&pointer, MIB, pool, NULL));
    OK(cudaFreeAsync(pointer, NULL));
    OK(cudaMemPoolTrimTo(pool, 0));
    CHECK(sgsim_live_bytes("total") == 0);
    OK(cudaDeviceSetMemPool(0, pool));
    OK(cudaDeviceGetMemPool(&found, 0));
    CHECK(found == pool);
    OK(cudaDeviceGetDefaultMemPool(&found, 0));
    OK(cudaMemPoolDestroy(pool));
    OK(cudaMalloc(&pointer, MIB));
    OK(cudaDeviceReset());
    CHECK(sgsim_live_bytes("total") == 0);
    OK(cudaMalloc(&pointer, MIB)); /* a new context, by itself */
    OK(cudaFree(pointer));
}

#include "selftest_machine.h"
#include "selftest_share.h"
#include "selftest_spark.h"

/* ---- the file written at exit ---- */

static void test_ledger(void)
{
    CUdeviceptr pointer;
    make_machine();
    start();
    OK(cuMemAlloc_v2(&pointer, 3 * MIB));
    OK(cuMemFree_v2(pointer));
    OK(cuMemAlloc_v2(&pointer, 2 * MIB));
    OK(cuMemAllocAsync(&pointer, MIB, NULL));
    OK(cuMemFreeAsync(pointer, NULL));
    end_machine();
} /* the file is written after this; the parent reads it */

static void check_ledger(void)
{
    char text[8192];
    read_file(ledger_path, text, sizeof text);
    CHECK(strstr(text, "\"live_bytes\": { \"device\": 35651584,"));
    CHECK(strstr(text, "\"peak_bytes\": { \"device\": 35651584,"));
    CHECK(strstr(text, "\"cuMemAlloc_v2\": 2,"));
    CHECK(strstr(text, "\"least_free_at_call_bytes\": 18874368,"));
    CHECK(strstr(text, "\"least_spare_at_call_bytes\": -14680064,"));
    CHECK(strstr(text, "\"least_available_bytes\": 48234496,"));
    CHECK(strstr(text, "\"leaks\": 1\n}"));
}

/* ---- running them ---- */

static const struct scenario {
    const char *name;
    void (*run)(void);
    const char *environment[5]; /* "NAME=value" */
} scenarios[] = {
    {"look_up", test_look_up, {NULL}},
    {"start", test_start, {NULL}},
    {"devices", test_devices, {NULL}},
    {"contexts", test_contexts, {NULL}},
    {"streams", test_streams, {NULL}},
    {"linear", test_linear, {NULL}},
    {"host", test_host, {NULL}},
    {"arrays", test_arrays, {NULL}},
    {"graphs", test_graphs, {NULL}},
    {"copies", test_copies, {NULL}},
    {"default_pool", test_default_pool, {NULL}},
    {"own_pools", test_own_pools, {NULL}},
    {"pool_reuse_in_stream_order", test_pool_reuse_in_stream_order, {"SGSIM_STREAMS=busy", "SGSIM_POOL_STEP=4M"}},
    {"stream_pools", test_stream_pools, {"SGSIM_DEVICES=2", "SGSIM_STREAMS=busy"}},
    {"vmm", test_vmm, {NULL}},
    {"imports", test_imports, {NULL}},
    {"descriptors", test_descriptors, {NULL}},
    {"multicast", test_multicast, {"SGSIM_DEVICES=2"}},
    {"allocating", test_allocating, {NULL}},
    {"failures", test_failures, {"SGSIM_FAIL=cuMemAlloc_v2:2,cuMemFree_v2:1:700,cuMemAllocManaged:*"}},
    {"discrete", test_discrete, {"SGSIM_KIND=discrete", "SGSIM_DEVICES=2", "SGSIM_MEMORY=64M", "SGSIM_CONTEXT=8M"}},
    {"one_pool", test_one_pool, {"SGSIM_MEMORY=64M", "SGSIM_BACKING=touch"}},
    {"no_backing", test_no_backing, {"SGSIM_BACKING=none"}},
    {"pools_no_backing", test_own_pools, {"SGSIM_BACKING=none"}},
    {"vmm_touched", test_vmm, {"SGSIM_BACKING=touch"}},
    {"no_device", test_no_device, {"SGSIM_DEVICES=0"}},
    {"meminfo", test_meminfo, {meminfo_setting}},
    {"ledger", test_ledger, {ledger_setting}},
    {"threads", test_threads, {NULL}},
    {"runtime_start", test_runtime_start, {NULL}},
    {"runtime_memory", test_runtime_memory, {NULL}},
    {"runtime_pools", test_runtime_pools, {NULL}},
    {"reclaim", test_reclaim, {NULL}},
    {"no_reclaim", test_no_reclaim, {"SGSIM_RECLAIM=no"}},
    {"tenants", test_tenants, {NULL}},
    {"late_free", test_late_free, {"SGSIM_LATE_FREE=100"}},
    {"driver_pool", test_driver_pool, {"SGSIM_POOL=keep"}},
    {"pinned_shared", test_pinned_shared, {"SGSIM_POOL=keep"}},
    {"pinned_beyond_resident", test_pinned_beyond_resident, {"SGSIM_RESIDENT=8M"}},
    {"pinned_driver", test_pinned_driver, {"SGSIM_PINNED=driver", "SGSIM_POOL=keep"}},
    {"failed_kept", test_failed_kept, {"SGSIM_POOL=keep", "SGSIM_FRAGMENTED=24M"}},
    {"failed_forgotten", test_failed_forgotten, {"SGSIM_POOL=keep", "SGSIM_FAILED=none", "SGSIM_FRAGMENTED=24M"}},
    {"pool_listed", test_pool_listed, {NULL}},
    {"pool_not_listed", test_pool_not_listed, {NULL}},
    {"drop_caches", test_drop_caches, {"SGSIM_POOL=keep"}},
    {"pool_shrinks_late", test_pool_shrinks_late, {"SGSIM_POOL=keep", "SGSIM_SHRINK=50:4M"}},
    {"idle_goes_first", test_idle_goes_first, {"SGSIM_POOL=keep", "SGSIM_SHRINK=0:1G"}},
    {"lists", test_lists, {"SGSIM_LISTS=24", "SGSIM_POOL=none"}},
    {"cma", test_cma, {NULL}},
    {"register", test_register, {NULL}},
    {"register_idle", test_register_idle, {"SGSIM_REGISTER=idle"}},
    {"register_missing", test_register_missing, {"SGSIM_REGISTER=missing"}},
    {"chunks", test_chunks, {"SGSIM_CHUNK=2M"}},
    {"context_cost", test_context_cost, {"SGSIM_CONTEXT=8M"}},
    {"touch", test_touch, {NULL}},
    {"batches", test_batches, {NULL}},
    {"hold", test_hold, {"SGSIM_HOLD=cuMemFree_v2:2:60,cuMemAllocHost_v2:1:1"}},
    {"dawdle", test_threads, {"SGSIM_DAWDLE=64"}},
    {"identity", test_identity, {"SGSIM_DEVICES=3", "CUDA_VISIBLE_DEVICES=2,0"}},
};

static void remove_files(void)
{
    char books[96];
    snprintf(books, sizeof books, "%s.machine", meminfo_path);
    unlink(meminfo_path);
    unlink(books);
    remove_processes(meminfo_path);
    unlink(ledger_path);
    rmdir(scratch);
}

/* exit(), not _exit(): the ledger is written by a destructor. */
static void run(const struct scenario *scenario)
{
    int status = 1;
    pid_t child = fork();
    if (child == 0) {
        scenario_name = scenario->name;
        for (const char *const *entry = scenario->environment; *entry; entry++) {
            char *name = strdup(*entry), *equals = strchr(name, '=');
            *equals = '\0';
            setenv(name, equals + 1, 1);
            free(name);
        }
        scenario->run();
        for (size_t i = 0; i < FUNCTIONS; i++)
            tally->calls[i] += sgsim_calls(functions[i]);
        exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "selftest: %s failed (status %d)\n", scenario->name, status);
        remove_files();
        exit(1);
    }
}

static void make_files(void)
{
    snprintf(meminfo_setting, sizeof meminfo_setting, "SGSIM_MEMINFO=%s/meminfo", scratch);
    snprintf(ledger_setting, sizeof ledger_setting, "SGSIM_LEDGER=%s/ledger", scratch);
    FILE *file = fopen(meminfo_path, "we");
    CHECK(file && fputs(meminfo_text, file) >= 0 && fclose(file) == 0);
}

int main(void)
{
    static const char *const settings[] = {"KIND",    "DEVICES", "MEMORY",   "BACKING", "CONTEXT",    "FAIL",
                                           "MEMINFO", "LEDGER",  "HOLD",     "RECLAIM", "LATE_FREE",  "DAWDLE",
                                           "POOL",    "PINNED",  "FAILED",   "SHRINK",  "FRAGMENTED", "RATE",
                                           "LISTS",   "CHUNK",   "PROCESSES"};
    char name[32];
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        snprintf(name, sizeof name, "SGSIM_%s", settings[i]);
        unsetenv(name);
    }
    unsetenv("CUDA_VISIBLE_DEVICES");
    setenv("SGSIM_CHUNK", "0", 1); /* sizes to the byte, but where a scenario says otherwise */
    setenv("SGSIM_LISTS", "0", 1);
    void *shared = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || !mkdtemp(scratch))
        return 1;
    tally = shared;
    make_files();
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++)
        run(&scenarios[i]);
    check_ledger();
    remove_files();
    for (size_t i = 0; i < FUNCTIONS; i++) {
        scenario_name = functions[i];
        CHECK(tally->calls[i] > 0);
    }
    printf("%lu checks\n", tally->checks);
    return 0;
}
