/*
 * cuda_stress.c - random CUDA calls of all kinds from several threads, with failures the driver is told to make.
 *
 *     cuda_stress SEED THREADS CALLS PHASES
 *
 * Each phase every thread makes CALLS calls; then all rest, and the simulator's own books are printed:
 *     device N / pinned N / managed N / registered N / taken N / given N / pools N / blocked N, then "quiet", and one
 *     line of stdin is awaited.
 * At the end everything is freed and the books are printed once more. Where there is a second device, threads allocate
 * in its primary context, from its pool and in graphs that are on both, while others reset it, let go of it and make it
 * anew.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "cuda_random.h"
#include "cuda_sim.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define GRANULE ((size_t)2 << 20)
#define HELD 48
#define SHARED 64
#define PAGES 4096 /* of the program's own memory, to be registered */
#define CONTEXTS_AT_ONCE 24
#define POOLS 3

enum kind {
    LINEAR,
    LOW,
    PITCHED,
    MANAGED,
    HOST,
    ARRAY,
    MIPMAPPED,
    ASYNC,
    FROM_POOL,
    HANDLE,
    MAPPED,
    REGISTERED,
    GRAPH,
    CONTEXT,
    SHARED_HANDLE, /* exported, imported again, and released once */
    CHURN,         /* a block of a new pool that is destroyed before it (size: 0) or after it (size: the pool) */
    TEAM,          /* a multicast object with memory bound to it; key: the memory's handle, size: the object's */
    OPENED,        /* of another process, as all that follow: an IPC handle */
    IMPORTED,      /* a VMM handle */
    BORROWED,      /* a block of a pool */
    KINDS
};

/* What another process hands out. */
static struct offer {
    CUipcMemHandle ipc;
    CUmemFabricHandle handle, pool;
    CUmemPoolPtrExportData block;
} offer;

/* An executable graph, its graph, and what it allocates and does not free itself (or 0). */
struct graph {
    CUgraphExec exec;
    CUgraph graph;
    CUdeviceptr unfreed;
};

struct item {
    enum kind kind;
    unsigned long long key; /* of MAPPED the address; size is then of the whole reservation */
    uint64_t size;          /* of CONTEXT the number of allocations in it */
};

struct worker {
    pthread_t thread;
    uint64_t random;
    struct item held[HELD];
    unsigned count;
    unsigned long taken, given;
};

static CUcontext context;
static CUstream stream;
static CUmemoryPool own_pools[POOLS], borrowed_pool;
static int devices;
static unsigned long taken_elsewhere; /* on the second device */
static char *pages;
static int is_registered[PAGES];
static int context_count;
static pthread_barrier_t begin, end;
static unsigned long calls_per_phase;
static unsigned phases;

/* Items on their way from one thread to another: frees across threads. */
static struct item passed[SHARED];
static pthread_mutex_t passing = PTHREAD_MUTEX_INITIALIZER;

static uint64_t next(struct worker *worker)
{
    return next_random(&worker->random);
}

static const CUmemAllocationProp *place(uint64_t bits)
{
    static const CUmemAllocationProp places[2] = {
        {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_HOST}},
    };
    return &places[bits & 1];
}

/* One handle mapped one to three times side by side, and released while it is mapped. */
static CUresult take_mapped(struct worker *worker, struct item *item)
{
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr at;
    unsigned times = 1 + (unsigned)(next(worker) % 3);
    CUresult result = cuMemCreate(&handle, GRANULE, place(next(worker)), 0);
    if (result != CUDA_SUCCESS)
        return result;
    worker->taken++;
    must(cuMemAddressReserve(&at, times * GRANULE, 0, 0, 0), "reserve");
    for (unsigned i = 0; i < times; i++)
        while (cuMemMap(at + i * GRANULE, GRANULE, 0, handle, 0) != CUDA_SUCCESS)
            ;
    if (next(worker) % 4 == 0) {
        while (cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + (times - 1) * GRANULE)) != CUDA_SUCCESS)
            ;
        while (cuMemRelease(again) != CUDA_SUCCESS)
            ;
    }
    while (cuMemRelease(handle) != CUDA_SUCCESS)
        ;
    item->key = at;
    item->size = times * GRANULE;
    return CUDA_SUCCESS;
}

static CUresult take_registered(uint64_t bits, struct item *item)
{
    unsigned page = (unsigned)(bits >> 8) % PAGES;
    if (__atomic_exchange_n(&is_registered[page], 1, __ATOMIC_ACQ_REL) != 0)
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    void *address = pages + page * 4 * KIB;
    item->key = (uintptr_t)address;
    CUresult result =
        bits & 1 ? cuMemHostRegister_v2(address, 4 * KIB, 0) : cuMemHostRegister(address, 1 + bits % (4 * KIB), 0);
    if (result != CUDA_SUCCESS)
        __atomic_store_n(&is_registered[page], 0, __ATOMIC_RELEASE);
    return result;
}

static CUresult give_registered(const struct item *item)
{
    CUresult result = cuMemHostUnregister((void *)(uintptr_t)item->key);
    if (result == CUDA_SUCCESS)
        __atomic_store_n(&is_registered[((char *)(uintptr_t)item->key - pages) / (4 * KIB)], 0, __ATOMIC_RELEASE);
    return result;
}

static CUresult instantiate(struct graph *graph, uint64_t bits)
{
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
    switch (bits % 4) {
    case 0:
        return cuGraphInstantiate_v2(&graph->exec, graph->graph, NULL, NULL, 0);
    case 1:
        return cuGraphInstantiateWithParams(&graph->exec, graph->graph, &params);
    case 2:
        return cuGraphInstantiateWithParams_ptsz(&graph->exec, graph->graph, &params);
    default:
        return cuGraphInstantiateWithFlags(&graph->exec, graph->graph, 0);
    }
}

/* A graph of one allocation, that it frees itself or does not. */
static CUresult take_graph(uint64_t bits, struct item *item)
{
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = 1 + (bits >> 16) % GRANULE};
    struct graph *graph = calloc(1, sizeof *graph);
    if (graph == NULL) /* refused */
        return CUDA_ERROR_OUT_OF_MEMORY;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    must(cuGraphCreate(&graph->graph, 0), "graph");
    must(cuGraphAddMemAllocNode(&node, graph->graph, NULL, 0, &params), "allocation node");
    if (bits & 16)
        must(cuGraphAddMemFreeNode(&node, graph->graph, NULL, 0, params.dptr), "free node");
    CUresult result = instantiate(graph, bits);
    if (result == CUDA_SUCCESS) {
        result = bits & 32 ? cuGraphLaunch(graph->exec, NULL) : cuGraphLaunch_ptsz(graph->exec, NULL);
        if (result != CUDA_SUCCESS)
            while (cuGraphExecDestroy(graph->exec) != CUDA_SUCCESS)
                ;
    }
    if (result != CUDA_SUCCESS) {
        must(cuGraphDestroy(graph->graph), "graph destroy");
        free(graph);
        return result;
    }
    graph->unfreed = bits & 16 ? 0 : params.dptr;
    item->key = (uintptr_t)graph;
    return CUDA_SUCCESS;
}

static CUresult give_graph(const struct item *item)
{
    struct graph *graph = (struct graph *)(uintptr_t)item->key;
    if (graph->unfreed != 0) {
        CUresult result = cuMemFreeAsync(graph->unfreed, NULL);
        if (result != CUDA_SUCCESS)
            return result;
        graph->unfreed = 0;
    }
    CUresult result = cuGraphExecDestroy(graph->exec);
    if (result != CUDA_SUCCESS)
        return result;
    must(cuGraphDestroy(graph->graph), "graph destroy");
    free(graph);
    return CUDA_SUCCESS;
}

/* A context with a few things in it that nobody frees: they go with it. */
static CUresult take_context(struct worker *worker, struct item *item)
{
    CUcontext own;
    CUdeviceptr address;
    CUarray array;
    void *host;
    const CUDA_ARRAY_DESCRIPTOR flat = {1 + next(worker) % 3000, 3, CU_AD_FORMAT_FLOAT, 1};
    if (__atomic_add_fetch(&context_count, 1, __ATOMIC_ACQ_REL) > CONTEXTS_AT_ONCE) {
        __atomic_sub_fetch(&context_count, 1, __ATOMIC_ACQ_REL);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = cuCtxCreate_v2(&own, 0, 0);
    if (result != CUDA_SUCCESS) {
        __atomic_sub_fetch(&context_count, 1, __ATOMIC_ACQ_REL);
        return result;
    }
    item->key = (uintptr_t)own;
    item->size = cuMemAlloc_v2(&address, 1 + next(worker) % (64 * KIB)) == CUDA_SUCCESS;
    item->size += cuMemAllocManaged(&address, 1 + next(worker) % (64 * KIB), CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS;
    item->size += cuMemHostAlloc(&host, 1 + next(worker) % (64 * KIB), 0) == CUDA_SUCCESS;
    item->size += cuArrayCreate_v2(&array, &flat) == CUDA_SUCCESS;
    worker->taken += item->size;
    must(cuCtxPopCurrent_v2(&own), "pop");
    return CUDA_SUCCESS;
}

static CUresult give_context(struct worker *worker, const struct item *item)
{
    CUresult result = cuCtxDestroy_v2((CUcontext)(uintptr_t)item->key);
    if (result == CUDA_SUCCESS) {
        worker->given += item->size;
        __atomic_sub_fetch(&context_count, 1, __ATOMIC_ACQ_REL);
    }
    return result;
}

/* ---- what is shared ---- */

/* In a process of its own: what it took there is no business of ours. */
static void make_offer(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemoryPool pool;
    CUdeviceptr address;
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .handleTypes = CU_MEM_HANDLE_TYPE_FABRIC,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    must(cuInit(0), "init");
    must(cuDevicePrimaryCtxRetain(&context, 0), "context");
    must(cuCtxSetCurrent(context), "context");
    must(cuMemAlloc_v2(&address, GRANULE), "offer");
    must(cuIpcGetMemHandle(&offer.ipc, address), "offer");
    must(cuMemCreate(&handle, GRANULE, place(0), 0), "offer");
    must(cuMemExportToShareableHandle(&offer.handle, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0), "offer");
    must(cuMemPoolCreate(&pool, &props), "offer");
    must(cuMemPoolExportToShareableHandle(&offer.pool, pool, CU_MEM_HANDLE_TYPE_FABRIC, 0), "offer");
    must(cuMemAllocFromPoolAsync(&address, GRANULE, pool, NULL), "offer");
    must(cuMemPoolExportPointer(&offer.block, address), "offer");
}

static void get_offer(void)
{
    int pipes[2];
    if (pipe(pipes) != 0)
        exit(1);
    pid_t child = fork();
    if (child == 0) {
        make_offer();
        _exit(write(pipes[1], &offer, sizeof offer) != sizeof offer);
    }
    close(pipes[1]); /* or a child that fails would be waited for without end */
    if (read(pipes[0], &offer, sizeof offer) != sizeof offer || waitpid(child, NULL, 0) != child)
        exit(1);
}

static CUresult take_shared(struct worker *worker, struct item *item)
{
    CUmemGenericAllocationHandle handle;
    CUmemFabricHandle fabric;
    int file;
    CUresult result = cuMemCreate(&handle, GRANULE, place(next(worker)), 0);
    if (result != CUDA_SUCCESS)
        return result;
    worker->taken++;
    if (next(worker) % 2 == 0) {
        while (cuMemExportToShareableHandle(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0) != CUDA_SUCCESS)
            ;
        while (cuMemImportFromShareableHandle(&item->key, &fabric, CU_MEM_HANDLE_TYPE_FABRIC) != CUDA_SUCCESS)
            ;
    } else {
        const CUmemAllocationHandleType descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        while (cuMemExportToShareableHandle(&file, handle, descriptor, 0) != CUDA_SUCCESS)
            ;
        while (cuMemImportFromShareableHandle(&item->key, (void *)(intptr_t)file, descriptor) != CUDA_SUCCESS)
            ;
        close(file);
    }
    CUmemGenericAllocationHandle released = handle;
    if (item->key != handle) { /* an import under a number of its own does not count: the first one stays */
        released = item->key;
        item->key = handle;
    }
    while (cuMemRelease(released) != CUDA_SUCCESS)
        ;
    return CUDA_SUCCESS;
}

/* The object is mapped beside the memory while it is bound, and takes nothing. */
static CUresult take_team(struct worker *worker, struct item *item)
{
    const CUmulticastObjectProp prop = {.numDevices = 1, .size = GRANULE};
    CUmemGenericAllocationHandle team;
    CUdeviceptr at;
    CUresult result = cuMemCreate(&item->key, GRANULE, place(0), 0);
    if (result != CUDA_SUCCESS)
        return result;
    worker->taken++;
    must(cuMulticastCreate(&team, &prop), "team");
    must(cuMulticastAddDevice(team, 0), "team");
    must(cuMemAddressReserve(&at, 2 * GRANULE, 0, 0, 0), "reserve");
    while (cuMemMap(at, GRANULE, 0, team, 0) != CUDA_SUCCESS)
        ;
    while (cuMemMap(at + GRANULE, GRANULE, 0, item->key, 0) != CUDA_SUCCESS)
        ;
    must(next(worker) % 2 == 0 ? cuMulticastBindMem(team, 0, item->key, 0, GRANULE, 0)
                               : cuMulticastBindAddr(team, 0, at + GRANULE, GRANULE, 0),
         "bind");
    while (cuMemUnmap(at, 2 * GRANULE) != CUDA_SUCCESS)
        ;
    must(cuMemAddressFree(at, 2 * GRANULE), "address free");
    item->size = team;
    return CUDA_SUCCESS;
}

static CUresult give_team(const struct item *item)
{
    CUresult result = cuMemRelease(item->key);
    if (result != CUDA_SUCCESS)
        return result;
    must(cuMulticastUnbind(item->size, 0, 0, GRANULE), "unbind");
    while (cuMemRelease(item->size) != CUDA_SUCCESS)
        ;
    return CUDA_SUCCESS;
}

/* ---- pools that come and go ---- */

static CUresult take_churn(struct worker *worker, struct item *item)
{
    static const CUmemLocationType places[] = {CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_LOCATION_TYPE_HOST};
    uint64_t bits = next(worker), threshold = bits & 1 ? UINT64_MAX : 0;
    const CUmemPoolProps props = {.allocType =
                                      bits & 2 ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = places[bits >> 2 & 1], .id = 0}};
    CUmemoryPool pool;
    CUdeviceptr address;
    CUresult result = cuMemPoolCreate(&pool, &props);
    if (result != CUDA_SUCCESS)
        return result;
    must(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), "threshold");
    result = cuMemAllocFromPoolAsync(&address, 1 + (bits >> 8) % (256 * KIB), pool, stream);
    if (result != CUDA_SUCCESS || bits & 16)
        while (cuMemPoolDestroy(pool) != CUDA_SUCCESS)
            ;
    item->key = address;
    item->size = bits & 16 ? 0 : (uintptr_t)pool;
    worker->taken += result == CUDA_SUCCESS;
    return result;
}

static CUresult give_churn(const struct item *item)
{
    CUresult result = cuMemFreeAsync(item->key, stream);
    if (result == CUDA_SUCCESS && item->size != 0)
        while (cuMemPoolDestroy((CUmemoryPool)(uintptr_t)item->size) != CUDA_SUCCESS)
            ;
    return result;
}

/* ---- the second device: its primary context ends at any time ---- */

static void graph_elsewhere(uint64_t bits)
{
    struct graph graph = {0};
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = 1 + (bits >> 16) % GRANULE};
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    must(cuGraphCreate(&graph.graph, 0), "graph");
    CUresult result = CUDA_SUCCESS; /* the context may end meanwhile */
    for (int device = 0; result == CUDA_SUCCESS && device < 2; device++) {
        params.poolProps.location.id = device;
        result = cuGraphAddMemAllocNode(&node, graph.graph, NULL, 0, &params);
        if (result == CUDA_SUCCESS)
            result = cuGraphAddMemFreeNode(&node, graph.graph, &node, 1, params.dptr);
    }
    if (result == CUDA_SUCCESS && instantiate(&graph, bits) == CUDA_SUCCESS) {
        (void)cuGraphLaunch(graph.exec, NULL);
        while (cuGraphExecDestroy(graph.exec) != CUDA_SUCCESS)
            ;
    }
    must(cuGraphDestroy(graph.graph), "graph destroy");
}

static void step_elsewhere(struct worker *worker)
{
    CUcontext other;
    CUdeviceptr address;
    void *host;
    uint64_t bits = next(worker);
    if (bits % 8 == 0)
        (void)(bits & 8 ? cuDevicePrimaryCtxReset_v2(1) : cuDevicePrimaryCtxRelease_v2(1));
    if (cuDevicePrimaryCtxRetain(&other, 1) != CUDA_SUCCESS)
        return;
    if (cuCtxSetCurrent(other) == CUDA_SUCCESS) {
        unsigned long taken = cuMemAlloc_v2(&address, 1 + (bits >> 8) % (64 * KIB)) == CUDA_SUCCESS;
        taken += cuMemAllocManaged(&address, 1 + (bits >> 16) % (64 * KIB), CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS;
        taken += cuMemHostAlloc(&host, 1 + (bits >> 24) % (64 * KIB), 0) == CUDA_SUCCESS;
        taken += cuMemAllocAsync(&address, 1 + (bits >> 32) % (64 * KIB), NULL) == CUDA_SUCCESS;
        const CUDA_ARRAY_DESCRIPTOR flat = {1 + (bits >> 40) % 3000, 3, CU_AD_FORMAT_FLOAT, 1};
        CUarray array;
        taken += cuArrayCreate_v2(&array, &flat) == CUDA_SUCCESS;
        if (bits & 32)
            graph_elsewhere(bits);
        __atomic_add_fetch(&taken_elsewhere, taken, __ATOMIC_RELAXED);
    }
    must(cuCtxSetCurrent(context), "context");
    if (bits & 16)
        (void)cuDevicePrimaryCtxRelease_v2(1);
}

/* ---- all kinds ---- */

/* What becomes resident, or is dropped, was taken before. */
static void move_pages(struct worker *worker, const struct item *item)
{
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUdeviceptr address = item->key;
    size_t size = 1, from = 0;
    uint64_t bits = next(worker);
    if (bits % 3 == 0)
        (void)cuMemPrefetchBatchAsync(&address, &size, 1, &here, &from, 1, 0, stream);
    else if (bits % 3 == 1)
        (void)cuMemDiscardBatchAsync(&address, &size, 1, 0, stream);
    else
        (void)cuMemDiscardAndPrefetchBatchAsync(&address, &size, 1, &here, &from, 1, 0, stream);
}

static CUresult take(struct worker *worker, struct item *item)
{
    size_t size = 1 + next(worker) % (256 * KIB), pitch;
    CUdeviceptr_v1 low;
    CUdeviceptr address = 0;
    CUarray array;
    unsigned int low_pitch;
    CUresult result = CUDA_SUCCESS;
    item->kind = (enum kind)(next(worker) % KINDS);
    uint64_t bits = next(worker);
    switch (item->kind) {
    case LINEAR:
        result = cuMemAlloc_v2(&item->key, size);
        break;
    case LOW:
        if (bits & 1)
            result = cuMemAlloc(&low, (unsigned)size);
        else
            result = cuMemAllocPitch(&low, &low_pitch, 1 + (unsigned)(bits >> 8) % 5000, 1 + (unsigned)size % 50, 4);
        item->key = low;
        break;
    case PITCHED:
        result = cuMemAllocPitch_v2(&item->key, &pitch, 1 + (bits >> 8) % 5000, 1 + size % 50, 8);
        break;
    case MANAGED:
        result = cuMemAllocManaged(&item->key, size, CU_MEM_ATTACH_GLOBAL);
        break;
    case HOST:
        if (bits % 3 == 0)
            result = cuMemHostAlloc((void **)&item->key, size, CU_MEMHOSTALLOC_PORTABLE);
        else if (bits % 3 == 1)
            result = cuMemAllocHost_v2((void **)&item->key, size);
        else
            result = cuMemAllocHost((void **)&item->key, (unsigned)size);
        break;
    case ARRAY: {
        const CUDA_ARRAY_DESCRIPTOR flat = {1 + size % 300, size % 7, CU_AD_FORMAT_FLOAT, 4};
        const CUDA_ARRAY3D_DESCRIPTOR deep = {1 + size % 60, size % 5, size % 3, CU_AD_FORMAT_HALF, 2, 0};
        result = bits & 1 ? cuArrayCreate_v2(&array, &flat) : cuArray3DCreate_v2(&array, &deep);
        item->key = (uintptr_t)array;
        break;
    }
    case MIPMAPPED: {
        const CUDA_ARRAY3D_DESCRIPTOR deep = {1 + size % 60, 1 + size % 50, size % 3, CU_AD_FORMAT_HALF, 2, 0};
        CUmipmappedArray mipmapped = NULL;
        result = cuMipmappedArrayCreate(&mipmapped, &deep, 1 + (unsigned)(bits >> 8) % 9);
        item->key = (uintptr_t)mipmapped;
        break;
    }
    case REGISTERED:
        return take_registered(bits, item);
    case GRAPH:
        return take_graph(bits, item);
    case CONTEXT:
        return take_context(worker, item);
    case ASYNC:
        result = bits & 1 ? cuMemAllocAsync(&address, size, bits & 2 ? stream : NULL)
                          : cuMemAllocAsync_ptsz(&address, size, NULL);
        item->key = address;
        break;
    case FROM_POOL:
        result = bits & 1 ? cuMemAllocFromPoolAsync(&address, size, own_pools[bits % POOLS], NULL)
                          : cuMemAllocFromPoolAsync_ptsz(&address, size, own_pools[bits % POOLS], NULL);
        item->key = address;
        break;
    case HANDLE:
        result = cuMemCreate(&item->key, GRANULE, place(bits), 0);
        break;
    case MAPPED:
        return take_mapped(worker, item);
    case SHARED_HANDLE:
        return take_shared(worker, item);
    case CHURN:
        return take_churn(worker, item);
    case TEAM:
        return take_team(worker, item);
    case OPENED:
        return cuIpcOpenMemHandle_v2(&item->key, offer.ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    case IMPORTED:
        return cuMemImportFromShareableHandle(&item->key, &offer.handle, CU_MEM_HANDLE_TYPE_FABRIC);
    case BORROWED:
        return cuMemPoolImportPointer(&item->key, borrowed_pool, &offer.block);
    case KINDS:
        break;
    }
    worker->taken += result == CUDA_SUCCESS;
    return result;
}

static CUresult give(struct worker *worker, const struct item *item)
{
    CUresult result = CUDA_SUCCESS;
    switch (item->kind) {
    case LINEAR:
    case PITCHED:
    case MANAGED:
        result = cuMemFree_v2(item->key);
        break;
    case LOW:
        result = cuMemFree((CUdeviceptr_v1)item->key);
        break;
    case HOST:
        result = cuMemFreeHost((void *)(uintptr_t)item->key);
        break;
    case ARRAY:
        result = cuArrayDestroy((CUarray)(uintptr_t)item->key);
        break;
    case MIPMAPPED:
        result = cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)item->key);
        break;
    case REGISTERED:
        return give_registered(item);
    case GRAPH:
        return give_graph(item);
    case CONTEXT:
        return give_context(worker, item);
    case ASYNC:
    case FROM_POOL:
        result = next(worker) % 3 == 0   ? cuMemFree_v2(item->key)
                 : next(worker) % 2 == 0 ? cuMemFreeAsync(item->key, NULL)
                                         : cuMemFreeAsync_ptsz(item->key, NULL);
        break;
    case HANDLE:
    case SHARED_HANDLE:
        result = cuMemRelease(item->key);
        break;
    case CHURN:
        result = give_churn(item);
        break;
    case TEAM:
        result = give_team(item);
        break;
    case OPENED:
        return cuIpcCloseMemHandle(item->key);
    case IMPORTED:
        return cuMemRelease(item->key);
    case BORROWED:
        return next(worker) % 2 == 0 ? cuMemFree_v2(item->key) : cuMemFreeAsync(item->key, NULL);
    case MAPPED:
        result = cuMemUnmap(item->key, item->size);
        if (result == CUDA_SUCCESS)
            must(cuMemAddressFree(item->key, item->size), "address free");
        break;
    case KINDS:
        break;
    }
    worker->given += result == CUDA_SUCCESS;
    return result;
}

/* Puts an item where another thread may find it, and takes what lay there. */
static void swap(struct worker *worker, struct item *item)
{
    unsigned place = (unsigned)(next(worker) % SHARED);
    pthread_mutex_lock(&passing);
    struct item other = passed[place];
    passed[place] = *item;
    pthread_mutex_unlock(&passing);
    *item = other;
}

static void step(struct worker *worker)
{
    uint64_t choice = next(worker);
    if (choice % 499 == 0)
        (void)cuStreamSynchronize(stream);
    if (devices > 1 && choice % 61 == 0)
        step_elsewhere(worker);
    if (choice % 997 == 0) {
        (void)cuMemPoolTrimTo(own_pools[choice >> 16 & 1], (size_t)(choice >> 32) % (64 * KIB * KIB));
        (void)cuDeviceGraphMemTrim(0);
        return;
    }
    if (worker->count < HELD && (worker->count == 0 || choice % 2 == 0)) {
        worker->count += take(worker, &worker->held[worker->count]) == CUDA_SUCCESS;
        return;
    }
    unsigned at = (unsigned)(choice >> 8) % worker->count;
    if ((choice >> 40) % 8 == 0)
        swap(worker, &worker->held[at]);
    if (worker->held[at].kind == MANAGED && worker->held[at].key != 0)
        move_pages(worker, &worker->held[at]);
    if (worker->held[at].key == 0 || give(worker, &worker->held[at]) == CUDA_SUCCESS)
        worker->held[at] = worker->held[--worker->count];
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    must(cuCtxSetCurrent(context), "context");
    for (unsigned phase = 0; phase < phases; phase++) {
        pthread_barrier_wait(&begin);
        for (unsigned long i = 0; i < calls_per_phase; i++)
            step(worker);
        pthread_barrier_wait(&end);
    }
    return NULL;
}

/* Different numbers in different phases; each planned failure strikes once. */
static void plan_failures(unsigned phase)
{
    static const char *const symbols[] = {"cuMemAlloc_v2",
                                          "cuMemFree_v2",
                                          "cuMemHostAlloc",
                                          "cuMemFreeHost",
                                          "cuMemAllocManaged",
                                          "cuMemCreate",
                                          "cuMemRelease",
                                          "cuMemMap",
                                          "cuMemUnmap",
                                          "cuMemAllocAsync",
                                          "cuMemFreeAsync",
                                          "cuArrayCreate_v2",
                                          "cuArrayDestroy",
                                          "cuMemAllocFromPoolAsync_ptsz",
                                          "cuMemPoolTrimTo",
                                          "cuMemRetainAllocationHandle",
                                          "cuMipmappedArrayCreate",
                                          "cuMipmappedArrayDestroy",
                                          "cuMemHostRegister_v2",
                                          "cuMemHostUnregister",
                                          "cuGraphLaunch",
                                          "cuGraphInstantiateWithParams",
                                          "cuGraphExecDestroy",
                                          "cuDeviceGraphMemTrim",
                                          "cuCtxCreate_v2",
                                          "cuCtxDestroy_v2",
                                          "cuMemImportFromShareableHandle",
                                          "cuIpcOpenMemHandle_v2",
                                          "cuIpcCloseMemHandle",
                                          "cuMemPoolImportPointer",
                                          "cuMemPrefetchBatchAsync",
                                          "cuDevicePrimaryCtxReset_v2",
                                          "cuDevicePrimaryCtxRelease_v2",
                                          "cuDevicePrimaryCtxRetain"};
    static const char *const queries[] = {
        "cuMemPoolGetAttribute", "cuDeviceGetMemPool",         "cuStreamGetDevice", "cuCtxGetDevice",
        "cuStreamIsCapturing",   "cuDevicePrimaryCtxGetState", "cuCtxGetId",        "cuMemGetAllocationGranularity"};
    for (unsigned i = 0; i < sizeof symbols / sizeof symbols[0]; i++)
        for (int n = 1; n <= 2; n++)
            sgsim_fail(symbols[i], n * (int)(7 + 3 * i + phase), n % 2 ? 0 : CUDA_ERROR_ILLEGAL_ADDRESS);
    for (unsigned i = 0; i < sizeof queries / sizeof queries[0]; i++)
        sgsim_fail(queries[i], (int)(101 + 37 * i + 11 * phase), CUDA_ERROR_UNKNOWN);
}

static void rest(const struct worker *workers, unsigned count)
{
    unsigned long taken = taken_elsewhere, given = taken_elsewhere;
    if (devices > 1)
        while (cuDevicePrimaryCtxReset_v2(1) != CUDA_SUCCESS)
            ;
    for (unsigned i = 0; i < count; i++) {
        taken += workers[i].taken;
        given += workers[i].given;
    }
    printf("device %zu\npinned %zu\nmanaged %zu\nregistered %zu\ntaken %lu\ngiven %lu\npools %zu\nblocked %lu\nquiet\n",
           sgsim_live_bytes("device") + sgsim_live_bytes("array"), sgsim_live_bytes("pinned"),
           sgsim_live_bytes("managed"), sgsim_live_bytes("registered"), taken, given, sgsim_live_bytes("pool_reserved"),
           sgsim_blocked_calls());
    fflush(stdout);
    if (getchar() != '\n')
        exit(1);
}

static void give_all(struct worker *worker)
{
    for (unsigned i = 0; i < worker->count; i++)
        if (worker->held[i].key != 0)
            while (give(worker, &worker->held[i]) != CUDA_SUCCESS)
                ;
    worker->count = 0;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    unsigned count = (unsigned)atoi(argv[2]);
    seed = argv[1];
    pages = aligned_alloc(4 * KIB, PAGES * 4 * KIB);
    CUmemoryPool default_pool;
    struct worker *workers = calloc(count, sizeof *workers);
    calls_per_phase = strtoul(argv[3], NULL, 0);
    phases = (unsigned)atoi(argv[4]);
    get_offer();
    (void)sgsim_blocked_calls(); /* from here on they count */
    must(cuInit(0), "init");
    must(cuDeviceGetCount(&devices), "devices");
    must(cuDevicePrimaryCtxRetain(&context, 0), "context");
    must(cuCtxSetCurrent(context), "context");
    must(cuMemPoolImportFromShareableHandle(&borrowed_pool, &offer.pool, CU_MEM_HANDLE_TYPE_FABRIC, 0), "import");
    const CUmemPoolProps props[POOLS] = {
        {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_HOST}},
        {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = {.type = CU_MEM_LOCATION_TYPE_HOST}}};
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
    for (unsigned i = 0; i < POOLS; i++)
        must(cuMemPoolCreate(&own_pools[i], &props[i]), "pool");
    must(cuDeviceGetDefaultMemPool(&default_pool, 0), "pool");
    pthread_barrier_init(&begin, NULL, count + 1);
    pthread_barrier_init(&end, NULL, count + 1);
    for (unsigned i = 0; i < count; i++) {
        workers[i].random = strtoull(argv[1], NULL, 0) * 0x9e3779b97f4a7c15u + i + 1;
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    for (unsigned phase = 0; phase < phases; phase++) {
        plan_failures(phase);
        pthread_barrier_wait(&begin);
        pthread_barrier_wait(&end);
        rest(workers, count);
    }
    for (unsigned i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
        give_all(&workers[i]);
    }
    for (unsigned i = 0; i < SHARED; i++)
        if (passed[i].key != 0)
            while (give(&workers[0], &passed[i]) != CUDA_SUCCESS)
                ;
    for (unsigned i = 0; i < POOLS; i++)
        while (cuMemPoolDestroy(own_pools[i]) != CUDA_SUCCESS)
            ;
    while (cuDeviceGraphMemTrim(0) != CUDA_SUCCESS)
        ;
    while (cuCtxSynchronize() != CUDA_SUCCESS)
        ;
    while (cuMemPoolTrimTo(default_pool, 0) != CUDA_SUCCESS)
        ;
    rest(workers, count);
    return 0;
}
