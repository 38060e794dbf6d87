/*
 * gpu_take.c - one way to take memory: too much, which somebody is to refuse, then what fits, then back.
 *
 *     gpu_take KIND LARGE SMALL [reset]     give back by cudaDeviceReset instead of the free of this kind
 *
 * First SMALL is taken and given back, so that what the driver keeps for itself is there. Then it prints
 *   large N, get N, again N    what the large request answered, and cudaGetLastError() after it, twice
 *   small N, works N           what the small one answered; 1 if what was written there can be read (-1: nothing to
 *   write to) took N                     by how much the driver's free memory has shrunk
 * and rests three times: before the large request, while the small one is held, and after it was given back.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaTypedefs.h>

#include "gpu.h"

#include <string.h>

#define ROW ((size_t)256 << 10) /* of an array: 16384 elements of 16 bytes */
#define COLUMNS (ROW / 16)
#define GRANULE (2 * MIB)

union block {
    void *pointer;
    struct cudaPitchedPtr pitched;
    cudaArray_t array;
    cudaMipmappedArray_t mipmapped;
    struct {
        CUdeviceptr address;
        CUmemGenericAllocationHandle handle;
        size_t size;
    } mapped;
    struct {
        CUgraph graph;
        CUgraphExec exec;
    } graph;
};

static const struct cudaChannelFormatDesc four_floats = {32, 32, 32, 32, cudaChannelFormatKindFloat};

/* ---- plain, pinned, managed ---- */

static int take_malloc(union block *block, size_t size)
{
    return (int)cudaMalloc(&block->pointer, size);
}

static int take_pitch(union block *block, size_t size)
{
    size_t pitch;
    return (int)cudaMallocPitch(&block->pointer, &pitch, MIB, size / MIB);
}

static int take_3d(union block *block, size_t size)
{
    return (int)cudaMalloc3D(&block->pitched, (struct cudaExtent){MIB, 16, size / MIB / 16});
}

static int take_managed(union block *block, size_t size)
{
    return (int)cudaMallocManaged(&block->pointer, size, cudaMemAttachGlobal);
}

static int give_device(union block *block)
{
    return (int)cudaFree(block->pointer);
}

static int take_host(union block *block, size_t size)
{
    return (int)cudaMallocHost(&block->pointer, size);
}

static int take_host_alloc(union block *block, size_t size)
{
    return (int)cudaHostAlloc(&block->pointer, size, cudaHostAllocMapped);
}

static int give_host(union block *block)
{
    return (int)cudaFreeHost(block->pointer);
}

/* ---- pools ---- */

static int take_async(union block *block, size_t size)
{
    int result = (int)cudaMallocAsync(&block->pointer, size, NULL);
    return result ? result : (int)cudaDeviceSynchronize();
}

static int take_pool(union block *block, size_t size)
{
    static cudaMemPool_t pool;
    struct cudaMemPoolProps properties = {.allocType = cudaMemAllocationTypePinned,
                                          .location = {.type = cudaMemLocationTypeDevice}};
    if (!pool)
        MUST(cudaMemPoolCreate(&pool, &properties));
    int result = (int)cudaMallocFromPoolAsync(&block->pointer, size, pool, NULL);
    return result ? result : (int)cudaDeviceSynchronize();
}

static int give_async(union block *block)
{
    int result = (int)cudaFreeAsync(block->pointer, NULL);
    return result ? result : (int)cudaDeviceSynchronize();
}

/* ---- arrays ---- */

static int take_array(union block *block, size_t size)
{
    return (int)cudaMallocArray(&block->array, &four_floats, COLUMNS, size / ROW, 0);
}

static int give_array(union block *block)
{
    return (int)cudaFreeArray(block->array);
}

static int take_mipmapped(union block *block, size_t size)
{
    struct cudaExtent extent = {COLUMNS, size / ROW, 0};
    return (int)cudaMallocMipmappedArray(&block->mipmapped, &four_floats, extent, 3, 0);
}

static int give_mipmapped(union block *block)
{
    return (int)cudaFreeMipmappedArray(block->mipmapped);
}

/* ---- the driver's own: mapped memory, and memory of a graph ---- */

static int take_mapped(union block *block, size_t size)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address = 0;
    size = (size + GRANULE - 1) / GRANULE * GRANULE;
    CUresult result = driver(cuMemCreate, 10020)(&handle, size, &properties, 0);
    if (result != CUDA_SUCCESS)
        return (int)result;
    MUST(driver(cuMemAddressReserve, 10020)(&address, size, 0, 0, 0));
    MUST(driver(cuMemMap, 10020)(address, size, 0, handle, 0));
    MUST(driver(cuMemSetAccess, 10020)(address, size, &access, 1));
    block->mapped.address = address;
    block->mapped.handle = handle;
    block->mapped.size = size;
    return 0;
}

/* The handle goes first: the memory may go only with the mapping. */
static int give_mapped(union block *block)
{
    MUST(driver(cuMemRelease, 10020)(block->mapped.handle));
    MUST(driver(cuMemUnmap, 10020)(block->mapped.address, block->mapped.size));
    return (int)driver(cuMemAddressFree, 10020)(block->mapped.address, block->mapped.size);
}

/* Allocated and freed inside the graph: the device keeps it for the next launch. */
static int take_graph(union block *block, size_t size)
{
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        .bytesize = size};
    CUgraphNode taken, given;
    CUgraph graph;
    CUgraphExec exec = NULL;
    MUST(driver(cuGraphCreate, 10000)(&graph, 0));
    int result = (int)driver(cuGraphAddMemAllocNode, 11040)(&taken, graph, NULL, 0, &parameters);
    if (result == 0)
        result = (int)driver(cuGraphAddMemFreeNode, 11040)(&given, graph, &taken, 1, parameters.dptr);
    if (result == 0)
        result = (int)driver(cuGraphInstantiateWithFlags, 11040)(&exec, graph, 0);
    if (result == 0)
        result = (int)driver(cuGraphLaunch, 10000)(exec, NULL);
    if (result == 0)
        result = (int)cudaDeviceSynchronize();
    if (result != 0) {
        if (exec)
            MUST(driver(cuGraphExecDestroy, 10000)(exec));
        MUST(driver(cuGraphDestroy, 10000)(graph));
        return result;
    }
    block->graph.graph = graph;
    block->graph.exec = exec;
    return 0;
}

static int give_graph(union block *block)
{
    MUST(driver(cuGraphExecDestroy, 10000)(block->graph.exec));
    MUST(driver(cuGraphDestroy, 10000)(block->graph.graph));
    return (int)driver(cuDeviceGraphMemTrim, 11040)(0);
}

/* ---- the kinds ---- */

static const struct kind {
    const char *name;
    int (*take)(union block *block, size_t size);
    int (*give)(union block *block);
    int is_written; /* the block begins with an address that can be written to */
} kinds[] = {
    {"malloc", take_malloc, give_device, 1}, {"pitch", take_pitch, give_device, 1},
    {"3d", take_3d, give_device, 1},         {"managed", take_managed, give_device, 1},
    {"host", take_host, give_host, 1},       {"host_alloc", take_host_alloc, give_host, 1},
    {"async", take_async, give_async, 1},    {"pool", take_pool, give_async, 1},
    {"array", take_array, give_array, 0},    {"mipmapped", take_mipmapped, give_mipmapped, 0},
    {"mapped", take_mapped, give_mapped, 1}, {"graph", take_graph, give_graph, 0},
};

/* Writes to the first MiB and reads it back. */
static int works(const union block *block)
{
    static unsigned char seen[MIB];
    void *address;
    memcpy(&address, block, sizeof address);
    MUST(cudaMemset(address, 0xa5, MIB));
    MUST(cudaMemcpy(seen, address, MIB, cudaMemcpyDefault));
    for (size_t i = 0; i < MIB; i++) {
        if (seen[i] != 0xa5)
            return 0;
    }
    return 1;
}

/* A pool's figures come up to date with the next call that takes memory. */
static void settle(void)
{
    union block block;
    MUST(take_malloc(&block, MIB));
    MUST(give_device(&block));
}

int main(int argc, char **argv)
{
    const struct kind *kind = NULL;
    union block block = {0};
    for (size_t i = 0; argc >= 4 && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(argv[1], kinds[i].name) == 0)
            kind = &kinds[i];
    }
    if (!kind)
        return 2;
    size_t large = strtoul(argv[2], NULL, 10), small = strtoul(argv[3], NULL, 10);
    MUST(cudaSetDevice(0));
    MUST(cudaFree(NULL));
    MUST(kind->take(&block, small));
    if (kind->is_written)
        works(&block);
    MUST(kind->give(&block));
    settle();
    size_t before = free_bytes();
    rest();

    printf("large %d\n", kind->take(&block, large));
    printf("get %d\n", (int)cudaGetLastError());
    printf("again %d\n", (int)cudaGetLastError());
    int result = kind->take(&block, small);
    printf("small %d\n", result);
    if (result != 0)
        return 1;
    printf("works %d\n", kind->is_written ? works(&block) : -1);
    printf("took %lld\n", (long long)before - (long long)free_bytes());
    rest();

    if (argc > 4)
        MUST(cudaDeviceReset());
    else
        MUST(kind->give(&block));
    settle();
    rest();
    return 0;
}
