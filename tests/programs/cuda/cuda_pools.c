/*
 * cuda_pools.c - random stream-ordered allocations, frees and synchronisations from several threads, on pools that
 * they share.
 *
 *     cuda_pools SEED THREADS STEPS PHASES ROOM
 *
 * Each phase every thread makes STEPS steps and frees what it has; then all rest, the pools are emptied, and one
 * thread makes as many steps alone, in one stream. A request that is refused then, though the pool's growth for it
 * fits into what is left of ROOM bytes of device memory, is counted. At the end:
 *     granted N / refused N / alone N (refused) / wrong N (refused alone, though it fits) / held N (bytes, after all
 *     was freed)
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "cuda_random.h"
#include "cuda_sim.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define HELD 24
#define POOLS 3
#define SOME_KEPT (256 * MIB)

struct block {
    CUdeviceptr address;
    int is_linear;
};

struct worker {
    pthread_t thread;
    unsigned number;
    uint64_t random;
    CUcontext context;
    CUstream stream;
    struct block held[HELD];
    unsigned count;
    unsigned long granted, refused, wrong;
    uint64_t room; /* of the one that is alone; else 0 */
};

static CUmemoryPool pools[POOLS];
static CUstream shared_stream;
static CUcontext primary;
static pthread_barrier_t begin, end;
static unsigned long steps;
static unsigned phases;

static uint64_t next(struct worker *worker)
{
    return next_random(&worker->random);
}

/* Small ones of a step, large ones, and sizes that many blocks share. */
static uint64_t some_size(struct worker *worker)
{
    uint64_t bits = next(worker);
    switch (bits % 4) {
    case 0:
        return 1 + (bits >> 8) % (8 * MIB);
    case 1:
        return (20 + (bits >> 8) % 400) * MIB + (bits >> 40) % (4 * KIB);
    case 2:
        return 128 * MIB;
    default:
        return 24 * MIB;
    }
}

static CUstream some_stream(struct worker *worker)
{
    if (worker->room != 0)
        return shared_stream;
    CUstream streams[4] = {worker->stream, worker->stream, shared_stream, NULL};
    return streams[next(worker) % 4];
}

/* A refused request must not fit. */
static void check_refusal(struct worker *worker, CUmemoryPool pool, uint64_t size)
{
    uint64_t growth = sgsim_pool_growth(pool, size, shared_stream), live = sgsim_live_bytes("device");
    if (worker->room == 0 || live + growth > worker->room)
        return;
    worker->wrong++;
    fprintf(stderr, "cuda_pools: seed %s: %llu bytes are refused, %llu live, growth %llu\n", seed,
            (unsigned long long)size, (unsigned long long)live, (unsigned long long)growth);
}

static void take(struct worker *worker)
{
    struct block block = {0, next(worker) % 16 == 0};
    uint64_t size = some_size(worker);
    CUmemoryPool pool = pools[next(worker) % (POOLS + 1) % POOLS];
    CUresult result = CUDA_SUCCESS;
    if (worker->count == HELD)
        return;
    if (block.is_linear)
        result = cuMemAlloc_v2(&block.address, size / 4 + 1);
    else if (pool == pools[0])
        result = cuMemAllocAsync(&block.address, size, some_stream(worker));
    else
        result = cuMemAllocFromPoolAsync(&block.address, size, pool, some_stream(worker));
    worker->granted += result == CUDA_SUCCESS;
    worker->refused += result != CUDA_SUCCESS;
    if (result != CUDA_SUCCESS && !block.is_linear)
        check_refusal(worker, pool, size);
    if (result == CUDA_SUCCESS)
        worker->held[worker->count++] = block;
    else if (result != CUDA_ERROR_OUT_OF_MEMORY)
        must(result, "allocation");
}

static void give(struct worker *worker)
{
    if (worker->count == 0)
        return;
    unsigned which = (unsigned)(next(worker) % worker->count);
    struct block block = worker->held[which];
    worker->held[which] = worker->held[--worker->count];
    if (block.is_linear || next(worker) % 16 == 0)
        must(cuMemFree_v2(block.address), "cuMemFree");
    else
        must(cuMemFreeAsync(block.address, some_stream(worker)), "cuMemFreeAsync");
}

/* Where a pool gives back a part of what is free, nobody is told which: the one that is alone has it give back all. */
static void trim(struct worker *worker)
{
    if (worker->room != 0)
        must(cuStreamSynchronize(shared_stream), "cuStreamSynchronize");
    uint64_t keep = worker->room != 0 ? 0 : next(worker) % 512 * MIB;
    must(cuMemPoolTrimTo(pools[next(worker) % POOLS], keep), "cuMemPoolTrimTo");
}

static void step(struct worker *worker)
{
    uint64_t kind = next(worker) % 64;
    if (kind < 30)
        take(worker);
    else if (kind < 57)
        give(worker);
    else if (kind < 60)
        must(cuStreamSynchronize(some_stream(worker)), "cuStreamSynchronize");
    else if (kind == 60)
        must(cuCtxSynchronize(), "cuCtxSynchronize");
    else if (kind == 61)
        trim(worker);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    must(cuCtxSetCurrent(worker->context), "cuCtxSetCurrent");
    for (unsigned phase = 0; phase < phases; phase++) {
        pthread_barrier_wait(&begin);
        for (unsigned long i = 0; i < steps; i++)
            step(worker);
        while (worker->count != 0)
            give(worker);
        pthread_barrier_wait(&end);
    }
    return NULL;
}

static void empty_pools(cuuint64_t keep)
{
    must(cuMemPoolSetAttribute(pools[POOLS - 1], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), "cuMemPoolSetAttribute");
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    for (unsigned i = 0; i < POOLS; i++)
        must(cuMemPoolTrimTo(pools[i], 0), "cuMemPoolTrimTo");
}

static void make_pools(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    cuuint64_t keep[POOLS] = {UINT64_MAX, 0, SOME_KEPT};
    must(cuDeviceGetDefaultMemPool(&pools[0], 0), "cuDeviceGetDefaultMemPool");
    for (unsigned i = 1; i < POOLS; i++)
        must(cuMemPoolCreate(&pools[i], &props), "cuMemPoolCreate");
    for (unsigned i = 0; i < POOLS; i++)
        must(cuMemPoolSetAttribute(pools[i], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep[i]), "cuMemPoolSetAttribute");
}

/* Every third thread has a context of its own on the same device. */
static void begin_worker(struct worker *worker, unsigned number)
{
    worker->number = number;
    worker->random = (strtoull(seed, NULL, 10) + number + 1) * UINT64_C(0x9e3779b97f4a7c15);
    worker->context = primary;
    if (number % 3 == 2)
        must(cuCtxCreate_v2(&worker->context, 0, 0), "cuCtxCreate");
    must(cuCtxSetCurrent(worker->context), "cuCtxSetCurrent");
    must(cuStreamCreate(&worker->stream, 0), "cuStreamCreate");
    must(cuCtxSetCurrent(primary), "cuCtxSetCurrent");
    if (pthread_create(&worker->thread, NULL, work, worker) != 0)
        exit(1);
}

int main(int argc, char **argv)
{
    static struct worker workers[64], alone;
    if (argc != 6)
        return 2;
    seed = argv[1];
    unsigned threads = (unsigned)strtoul(argv[2], NULL, 10);
    steps = strtoul(argv[3], NULL, 10);
    phases = (unsigned)strtoul(argv[4], NULL, 10);
    must(cuInit(0), "cuInit");
    must(cuDevicePrimaryCtxRetain(&primary, 0), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(primary), "cuCtxSetCurrent");
    must(cuStreamCreate(&shared_stream, 0), "cuStreamCreate");
    make_pools();
    pthread_barrier_init(&begin, NULL, threads + 1);
    pthread_barrier_init(&end, NULL, threads + 1);
    for (unsigned i = 0; i < threads && i < 64; i++)
        begin_worker(&workers[i], i);
    alone.random = 1 + strtoull(seed, NULL, 10);
    alone.room = strtoull(argv[5], NULL, 10);
    unsigned long granted = 0, refused = 0;
    for (unsigned phase = 0; phase < phases; phase++) {
        pthread_barrier_wait(&begin);
        pthread_barrier_wait(&end);
        empty_pools(UINT64_MAX);
        for (unsigned long i = 0; i < steps; i++)
            step(&alone);
        while (alone.count != 0)
            give(&alone);
        empty_pools(SOME_KEPT);
    }
    for (unsigned i = 0; i < threads && i < 64; i++) {
        pthread_join(workers[i].thread, NULL);
        granted += workers[i].granted;
        refused += workers[i].refused;
    }
    printf("granted %lu\nrefused %lu\nalone %lu\nwrong %lu\nheld %zu\n", granted, refused, alone.refused, alone.wrong,
           sgsim_live_bytes("device"));
    return 0;
}
