/*
 * cuda_sim.c - a simulated NVIDIA driver, built as libcuda.so.1, so that everything in front of a driver can be
 * tested on a machine without a GPU. This file: start, errors and cuGetProcAddress. Beside it: sim_device.c,
 * sim_context.c, sim_green.c, sim_graph.c, sim_capture.c, sim_stream.c, sim_memory.c, sim_chunk.c, sim_managed.c,
 * sim_array.c, sim_pool.c, sim_vmm.c, sim_share.c, sim_multicast.c, sim_query.c (copies too); sim_faults.c reads the
 * environment and plans failures, sim_hold.c delays, sim_ledger.c books, sim_machine.c plays the machine around it, whose
 * books sim_books.c keeps and whose kernel sim_pressure.c plays, sim_core.c is the ground they stand on.
 *
 * Link with -Wl,-Bsymbolic: a driver hands out its own functions, whatever a preload exports.
 *
 * It exports the public driver API of functions.def under the exact names, unversioned, and answers
 * with the real error codes; it computes nothing. "Device" memory is host memory taken by raw
 * system calls, as is all its bookkeeping: who interposes malloc or mmap sees nothing of it, just
 * as nothing is seen of a kernel driver.
 *
 * Environment (read at the first call; sizes are bytes, or a number followed by K, M or G):
 *   SGSIM_KIND     gb10 (default: integrated, compute capability 12.1) or discrete (own memory)
 *   SGSIM_DEVICES  how many devices there are, default 1, at most 16; 0: cuInit says NO_DEVICE
 *   SGSIM_MEMORY   memory of each device; default 121.7 GiB for gb10, where all share one pool with
 *                  pinned memory, 24 GiB for discrete, where pinned memory is not limited
 *   SGSIM_BACKING  lazy (default: mapped, not populated), touch (populated at once, as a Spark does;
 *                  managed memory stays lazy, as there) or none (addresses only; writes are dropped
 *                  and reads give zeros; pinned and managed memory is lazy)
 *   SGSIM_CONTEXT  bytes that each context takes without any allocation call, default 0
 *   SGSIM_HOST     bytes of the libc's heap that each call needs while it runs, default 0; it answers
 *                  CUDA_ERROR_UNKNOWN where malloc has none
 *   SGSIM_CHUNK    what linear device memory is taken in: a larger block takes whole chunks, blocks of up to half a
 *                  chunk share them, see sim_chunk.c. The ledger and the kinds of sgsim_live_bytes still tell what
 *                  was asked for, the machine and cuMemGetInfo what was taken. Default 2M on gb10; on discrete 0: the one is
 *                  the other
 *   SGSIM_STREAMS  idle (default), or busy: what is freed asynchronously counts as outstanding to cuMemPoolTrimTo,
 *                  and is there for its own stream only, until a synchronisation of that has seen it done
 *   SGSIM_POOL_STEP  what a pool reserves at once for blocks that are smaller, default 32M
 *   SGSIM_POOL_COUNTER  zero: pools answer that they have reserved nothing
 *   SGSIM_FAIL     "symbol:N[:code]", comma separated: the Nth call of that exported symbol fails
 *                  with CUresult `code` (default 2, out of memory); N = * fails every call
 *   SGSIM_HOLD     "symbol:N:UNTIL", comma separated: the Nth call of that symbol (* for every one) stays inside the
 *                  driver before it does anything, UNTIL milliseconds, or until the file UNTIL (with a "/") is there;
 *                  see sgsim_hold
 *   SGSIM_DAWDLE   N: one call in N, at random, begins up to 1 ms late, and one in N returns so; default 0: none
 *   SGSIM_MEMINFO  a fake meminfo file whose MemFree, MemAvailable and Cached follow what is taken from the machine:
 *                  device, array, context and pinned bytes of gb10, pinned bytes only of discrete, managed bytes once
 *                  touched (sgsim_touch, cuMemPrefetchAsync). Several processes share one machine, whose books are
 *                  beside it in MEMINFO.machine: once there, the file is the simulator's, and others change it by
 *                  sgsim_machine_move. It is rewritten in place, by one pwrite of constant length, under flock. What
 *                  MemFree lacks is reclaimed from Cached; gb10 says OUT_OF_MEMORY beyond MemAvailable; what is touched
 *                  beyond it is owed. What a process held goes back when it ends, however it ends: at the next driver
 *                  call of anyone, or at sgsim_settle. On gb10 cuMemGetInfo answers MemFree
 *                  Its lines Shmem, Mlocked, AnonPages and SwapFree follow too, where it has them. What it calls CmaFree
 *                  the driver does not get, but shared memory does
 *   SGSIM_PINNED   shmem (default of gb10): what cuMemHostAlloc and cuMemAllocHost give is the process's shared memory:
 *                  "/dev/zero (deleted)" in its map, resident, in Cached, Shmem and Mlocked, and back at once when it is
 *                  freed. driver (default of discrete): the driver's pages, in no line, and kept by its pool
 *   SGSIM_RESIDENT how much of shmem a process has resident at most, default 256M: the machine that runs the tests is
 *                  smaller than the simulated one. What is beyond it is mapped, and touched by nobody
 *   SGSIM_REGISTER works (default): cuMemHostRegister locks, which Mlocked shows; idle: it answers success and locks
 *                  nothing; missing: NOT_SUPPORTED
 *   SGSIM_MANAGED  mapped (default of gb10): managed memory that was touched is in the CPU's page tables as well, because
 *                  a driver maps there what its GPU touched first; unmapped (default of discrete): it shows in the
 *                  machine's figures alone
 *   SGSIM_RECLAIM  yes (default), or no: gb10 says OUT_OF_MEMORY beyond MemFree, however much cache there is
 *   SGSIM_LATE_FREE  milliseconds until what is given back is in the meminfo again, by anyone's next driver call or
 *                  sgsim_settle after that; default 0
 *   SGSIM_POOL     keep: as drivers >= 590 do, device memory that is given back stays in a pool of the driver's, outside
 *                  MemAvailable, whoever's it was. Allocations of any process are served from it first. none: no pool.
 *                  Default: as driver/nvidia/params beside the meminfo says (EnableSystemMemoryPools)
 *   SGSIM_FAILED   keep (default where there is a pool): a request that fails leaves in the pool what it had got, which
 *                  is all that there was; none: it leaves nothing
 *   SGSIM_FRAGMENTED  bytes: a request fails that needs more than that from the machine, whatever is available, for
 *                  there are no more blocks of 2 MiB
 *   SGSIM_SHRINK   MILLISECONDS:BYTES, default 20 and a sixteenth of MemTotal: how the pool shrinks while less than 1/256
 *                  of MemTotal is available: so much at most, in blocks of 2 MiB, each time that so long has passed. Idle
 *                  memory of others (sgsim_machine_move) goes to swap before, as far as SwapFree lasts. Who writes 2 or 3
 *                  to sys/vm/drop_caches beside the meminfo empties the pool; 1 or 3, the page cache. It is seen at the
 *                  next driver call of anyone, or at sgsim_settle
 *   SGSIM_LISTS    bytes of bookkeeping for each 4 KiB of device memory, which no pool keeps; default 24 on gb10,
 *                  else 0
 *   SGSIM_RATE     milliseconds that a driver takes for each GiB, default 0: device memory is taken in steps of 128 MiB,
 *                  MemFree falls meanwhile, and cuMemGetInfo of other processes waits
 *   SGSIM_PROCESSES  a folder in which each process says what it has on each device, for the simulated NVML. Default:
 *                  MEMINFO.processes on a fake machine
 *   SGSIM_LEDGER   at exit of a process that called cuInit: a JSON file with live and peak bytes by kind, calls by
 *                  symbol, and "leaks", the number of allocations never given back. On a fake machine also the least
 *                  MemFree at the moment of an allocation, alone and less what was asked for, and the least
 *                  MemAvailable since the machine began
 *   SGSIM_MIG      no (default), or yes: all devices are instances of one card, as in MIG mode. cuDeviceGetUuid
 *                  answers the card's UUID for each, cuDeviceGetUuid_v2 the instance's own
 *   CUDA_VISIBLE_DEVICES  as the real one's, by numbers only
 *
 * Where it is simpler than a driver: streams finish at once; managed memory is limited only by itself (live managed
 * bytes <= SGSIM_MEMORY); each process has a device of its own; contents of a VMM handle are not shared between two
 * mappings of it, nor between processes; of graphs there is the memory only; kernels and modules are absent. A child
 * forked after cuInit gets NOT_INITIALIZED, as from the real one.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#include <cudaTypedefs.h>
#include <string.h>

/* The version of the newest function: the size of the largest member. */
union newest {
#define SGSIM_FUNCTION(symbol, base, version, stream) char symbol##_version[version];
#include "functions.def"
#undef SGSIM_FUNCTION
};
enum { DRIVER_VERSION = sizeof(union newest) };

/* ---- start, errors ---- */

CUresult CUDAAPI cuInit(unsigned int flags)
{
    SGSIM_ENTER(cuInit, SGSIM_NEEDS_UNFORKED);
    if (flags != 0)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    if (sgsim.devices == 0)
        return sgsim_leave(CUDA_ERROR_NO_DEVICE);
    sgsim.is_initialised = true;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDriverGetVersion(int *version)
{
    SGSIM_ENTER(cuDriverGetVersion, SGSIM_NEEDS_NOTHING);
    if (!version)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    *version = DRIVER_VERSION;
    return sgsim_leave(CUDA_SUCCESS);
}

static const struct error_text {
    CUresult code;
    const char *name, *text;
} error_texts[] = {
#define ERROR(code, text) \
    { \
        code, #code, text \
    }
    ERROR(CUDA_SUCCESS, "no error"),
    ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
#undef ERROR
};

static CUresult find_error(CUresult code, bool is_name, const char **text)
{
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = NULL;
    for (size_t i = 0; i < sizeof error_texts / sizeof error_texts[0]; i++) {
        if (error_texts[i].code == code)
            *text = is_name ? error_texts[i].name : error_texts[i].text;
    }
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **text)
{
    SGSIM_ENTER(cuGetErrorName, SGSIM_NEEDS_NOTHING);
    return sgsim_leave(find_error(error, true, text));
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text)
{
    SGSIM_ENTER(cuGetErrorString, SGSIM_NEEDS_NOTHING);
    return sgsim_leave(find_error(error, false, text));
}

/* ---- cuGetProcAddress ---- */

enum { STREAM_legacy, STREAM_ptds, STREAM_ptsz };
#define PFN_legacy(base, version) PFN_##base##_v##version
#define PFN_ptds(base, version) PFN_##base##_v##version##_ptds
#define PFN_ptsz(base, version) PFN_##base##_v##version##_ptsz

/* As cudaGLTypedefs.h and cudaVDPAUTypedefs.h have them. */
typedef __typeof__(&cuGLCtxCreate) PFN_cuGLCtxCreate_v2000;
typedef __typeof__(&cuGLCtxCreate_v2) PFN_cuGLCtxCreate_v3020;
typedef __typeof__(&cuVDPAUCtxCreate) PFN_cuVDPAUCtxCreate_v3010;
typedef __typeof__(&cuVDPAUCtxCreate_v2) PFN_cuVDPAUCtxCreate_v3020;

/* Every line of functions.def is a pair of name and version that cudaTypedefs.h knows, with this very signature. */
#define SGSIM_FUNCTION(symbol, base, version, stream) \
    _Static_assert(__builtin_types_compatible_p(PFN_##stream(base, version), __typeof__(&symbol)), \
                   #symbol " is not version " #version " of " #base);
#include "functions.def"
#undef SGSIM_FUNCTION

static const struct entry_point {
    const char *base;
    int version, stream;
    void (*function)(void);
} entry_points[] = {
    /* By this name cuda.h means another function since CUDA 12. */
    {"cuGraphInstantiate", 12000, STREAM_legacy, (void (*)(void))cuGraphInstantiateWithFlags},
#define SGSIM_FUNCTION(symbol, base, version, stream) {#base, version, STREAM_##stream, (void (*)(void))symbol},
#include "functions.def"
#undef SGSIM_FUNCTION
};

/*
 * The newest variant not newer than asked; a per-thread one goes first where they are wanted. An unknown
 * name, "" among them, is no error: the answer is success with NULL, as cuda.h promises ("will return
 * CUDA_SUCCESS and set the returned pfn to NULL if [...] the driver symbol is invalid").
 */
static CUresult find_entry_point(const char *base, void **pfn, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status)
{
    const struct entry_point *best = NULL;
    bool is_known = false, wants_per_thread = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (!base || !pfn || version > DRIVER_VERSION || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sizeof entry_points / sizeof entry_points[0]; i++) {
        const struct entry_point *entry = &entry_points[i];
        if (strcmp(entry->base, base) != 0 || (entry->stream != STREAM_legacy && !wants_per_thread))
            continue;
        is_known = true;
        if (entry->version > version)
            continue;
        bool is_better_stream = best && entry->stream != STREAM_legacy && best->stream == STREAM_legacy;
        bool is_same_stream = best && (entry->stream == STREAM_legacy) == (best->stream == STREAM_legacy);
        if (!best || is_better_stream || (is_same_stream && entry->version > best->version))
            best = entry;
    }
    *pfn = NULL;
    if (best)
        memcpy(pfn, &best->function, sizeof *pfn);
    if (status)
        *status = best       ? CU_GET_PROC_ADDRESS_SUCCESS
                  : is_known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                             : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    SGSIM_ENTER(cuGetProcAddress, SGSIM_NEEDS_NOTHING);
    return sgsim_leave(find_entry_point(symbol, pfn, version, flags, NULL));
}

CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *status)
{
    SGSIM_ENTER(cuGetProcAddress_v2, SGSIM_NEEDS_NOTHING);
    return sgsim_leave(find_entry_point(symbol, pfn, version, flags, status));
}
