/*
 * cuda_left CALL - a signal handler leaves CALL by siglongjmp, again and again: at each place where the guard or the
 * program is inside the driver. Behind it nothing is in flight or counted on, the thread can be cancelled, and what
 * is left is granted without a wait. Under LIMIT=200M. Prints how often it left.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "cuda_sim.h"
#include "heap_case.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>

#define HELD (100 * MIB)
#define WARM (60 * MIB) /* free in the pool */

static CUmemoryPool pool;
static CUstream stream;
static CUgraphExec graph;
static CUdeviceptr in_graph, out;
static CUmemGenericAllocationHandle handle;
static void *host;
static sigjmp_buf back;

static CUresult give_back(void)
{
    CUresult result = out != 0 ? cuMemFreeAsync(out, stream) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        result = cuMemFree_v2(out);
    if (host != NULL)
        cuMemFreeHost(host);
    if (handle != 0)
        cuMemRelease(handle);
    out = 0;
    host = NULL;
    handle = 0;
    return result;
}

static CUresult take_from(CUmemoryPool from, size_t bytes)
{
    return from != NULL ? cuMemAllocFromPoolAsync(&out, bytes, from, stream) : cuMemAllocAsync(&out, bytes, stream);
}

static CUresult call_linear(void)
{
    return cuMemAlloc_v2(&out, 30 * MIB);
}

static CUresult call_managed(void)
{
    return cuMemAllocManaged(&out, 30 * MIB, CU_MEM_ATTACH_GLOBAL);
}

static CUresult call_pinned(void)
{
    return cuMemHostAlloc(&host, 30 * MIB, 0);
}

static CUresult call_create(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    return cuMemCreate(&handle, 30 * MIB, &prop, 0);
}

static CUresult call_piece(void) /* is there */
{
    return take_from(NULL, WARM);
}

static CUresult call_growth(void)
{
    return take_from(pool, 30 * MIB + WARM / 2 + 4 * MIB);
}

static CUresult call_trimmed(void) /* fits when the pool has given back what it has */
{
    return take_from(NULL, WARM + 30 * MIB);
}

static CUresult call_too_much(void)
{
    return take_from(NULL, 150 * MIB);
}

static CUresult call_launch(void)
{
    out = in_graph; /* to be given back, if it came */
    return cuGraphLaunch(graph, stream);
}

static CUresult call_synchronize(void)
{
    return cuStreamSynchronize(stream);
}

static const struct {
    const char *name;
    CUresult (*run)(void);
} calls[] = {{"linear", call_linear},          {"managed", call_managed},   {"pinned", call_pinned},
             {"create", call_create},          {"piece", call_piece},       {"growth", call_growth},
             {"trimmed", call_trimmed},        {"too_much", call_too_much}, {"launch", call_launch},
             {"synchronize", call_synchronize}};

static const char *const places[] = {
    "cuCtxGetDevice",  "cuStreamGetDevice",       "cuDeviceGetMemPool", "cuStreamIsCapturing",
    "cuMemGetInfo_v2", "cuMemPoolGetAttribute",   "cuMemPoolTrimTo",    "cuThreadExchangeStreamCaptureMode",
    "cuMemAlloc_v2",   "cuMemAllocManaged",       "cuMemHostAlloc",     "cuMemGetAllocationGranularity",
    "cuMemCreate",     "cuMemAllocAsync",         "cuMemFreeAsync",     "cuDeviceGetGraphMemAttribute",
    "cuGraphLaunch",   "cuMemAllocFromPoolAsync", "cuStreamSynchronize"};

static void interrupt(void)
{
    raise(SIGUSR1);
}

static void on_signal(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

static void *rest(void *unused) /* a process of one thread needs not hold off pthread_cancel */
{
    pause();
    return unused;
}

static long waits(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

static void warm_up(void)
{
    CHECK_EQUAL(cuMemAllocAsync(&out, WARM, stream), CUDA_SUCCESS);
    CHECK_EQUAL(give_back(), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
}

/* All is as if the call had not been. */
static void look_behind(void)
{
    int state = -1;
    long before = waits();
    CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
    CHECK_EQUAL(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state), 0);
    CHECK_EQUAL(state, PTHREAD_CANCEL_ENABLE);
    (void)give_back();
    CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    CHECK_EQUAL(take_from(NULL, WARM), CUDA_SUCCESS); /* alone in its pool */
    CHECK_EQUAL(give_back(), CUDA_SUCCESS);
    CHECK_EQUAL(take_from(NULL, WARM + 30 * MIB), CUDA_SUCCESS); /* a turn is to be had */
    CHECK_EQUAL(give_back(), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphLaunch(graph, stream), CUDA_SUCCESS); /* a store, too */
    CHECK_EQUAL(cuMemFreeAsync(in_graph, stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQUAL(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&out, 95 * MIB), CUDA_SUCCESS); /* what is left */
    CHECK_EQUAL(cuMemFree_v2(out), CUDA_SUCCESS);
    out = 0;
    CHECK(waits() - before < 20); /* each would be of many short sleeps */
    CHECK_EQUAL(segment->slot.in_flight_bytes, 0);
}

static void begin(void)
{
    CUcontext context;
    CUdeviceptr held = 0;
    CUgraph made;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = 30 * MIB};
    pthread_t thread;
    uint64_t keep = UINT64_MAX;
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    live_begin();
    signal(SIGUSR1, on_signal);
    CHECK_EQUAL(pthread_create(&thread, NULL, rest, NULL), 0);
    CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQUAL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    CHECK_EQUAL(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), CUDA_SUCCESS);
    CHECK_EQUAL(cuMemAlloc_v2(&held, HELD), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphCreate(&made, 0), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphAddMemAllocNode(&node, made, NULL, 0, &params), CUDA_SUCCESS);
    CHECK_EQUAL(cuGraphInstantiateWithFlags(&graph, made, 0), CUDA_SUCCESS);
    in_graph = params.dptr;
}

static unsigned leave_at(CUresult (*run)(void), const char *place, int nth, bool is_behind)
{
    volatile unsigned was_left = 1;
    warm_up();
    (is_behind ? sgsim_behind : sgsim_inside)(place, nth, interrupt);
    if (sigsetjmp(back, 1) == 0) {
        (void)run();
        was_left = 0;
    }
    sgsim_hold(place, 0, "");
    if (was_left == 0)
        CHECK_EQUAL(give_back(), CUDA_SUCCESS);
    look_behind();
    return was_left;
}

int main(int count, char **arguments)
{
    unsigned left = 0;
    begin();
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        for (size_t j = 0;
             count > 1 && strcmp(calls[i].name, arguments[1]) == 0 && j < sizeof places / sizeof places[0]; j++)
            for (int nth = 1; nth <= 3; nth++)
                left += leave_at(calls[i].run, places[j], nth, false) + leave_at(calls[i].run, places[j], nth, true);
    printf("left %u\n", left);
    return 0;
}
