/*
 * meminfo.c - hooks of the driver's queries of free and total memory on unified memory (SPARKGUARD_MEMINFO).
 *
 * On unified memory the driver's "free" is MemFree. It counts page cache as used, and it ignores the reserve, promises
 * and other tenants. Programs size themselves by it. Therefore the hooks replace both figures:
 *   - free is the largest request that admission would grant now.
 *   - total is the memory that all guarded programs could have, fixed at the first query of the process.
 * Errors of the driver are passed on, except OUT_OF_MEMORY, and NOT_SUPPORTED in a thread that was refused a request:
 * PyTorch queries while it reports an out-of-memory error, and raises another one if the query fails. Below the floor,
 * where the driver has been seen to hang, the driver is not called. Observe mode changes no answer.
 */
#include "hooks/cuda/meminfo.h"

#include "base/pages.h"
#include "base/compiler.h"
#include "hooks/cuda/call.h"
#include "hooks/pool/mempool.h"
#include "hooks/process_list.h"
#include "base/options.h"
#include "admit/headroom.h"

/* Figures are rounded down to this, so that a request of exactly the answer is granted although figures fluctuate. */
#define STEP_BYTES (UINT64_C(2) << 20)

static uint64_t fixed_total; /* (atomic) 0: not queried yet */

/* Whether the device's memory is the machine's. */
static bool is_unified(CUdevice device)
{
    return device >= 0 && sg_cuda_knows_device((uint32_t)device) && !sg_cuda_has_own_pool((uint32_t)device);
}

/* Cgroups bound managed memory, but not device memory. The domain that this process has used more decides. Before it
 * has used either, the answer is the smaller figure, which both domains can be granted. */
static bool is_bounded_by_cgroups(void)
{
    uint64_t device = sg_load(&sg_own->domain[SG_DOMAIN_DEVICE].granted_bytes);
    return device <= sg_load(&sg_own->domain[SG_DOMAIN_MANAGED].granted_bytes);
}

/* The bytes that a device of `total` bytes can give: total less the reserve, but at least the smaller of total and
 * reserve. */
static uint64_t of_device(uint64_t total, uint64_t reserve)
{
    uint64_t above = total > reserve ? total - reserve : 0, least = sg_smaller(total, reserve);
    return above > least ? above : least;
}

/* The total to report; `device_total` is the driver's. Never 0, because programs divide by it. If no memory is left
 * now, the figure of an otherwise empty machine is used. */
static uint64_t total_of(const struct sg_capacity *capacity, uint64_t device_total)
{
    uint64_t known = sg_load(&fixed_total);
    if (known != 0)
        return known;
    uint64_t all = capacity->all_bytes >= STEP_BYTES ? capacity->all_bytes : capacity->most_bytes;
    uint64_t total = sg_smaller(all, of_device(device_total, capacity->reserve_bytes));
    total = total >= STEP_BYTES ? total / STEP_BYTES * STEP_BYTES : total != 0 ? total : 1;
    return sg_cas_u64(&fixed_total, &known, total) ? total : known;
}

bool sg_meminfo_find(struct sg_meminfo *answer, uint64_t device_total)
{
    struct sg_capacity capacity;
    if (sg_admission_wants_list())
        sg_process_list_read();
    sg_admission_measure(&capacity, is_bounded_by_cgroups());
    answer->is_below_floor = capacity.is_below_floor;
    answer->total_bytes = total_of(&capacity, device_total);
    answer->free_bytes = capacity.largest_bytes / STEP_BYTES * STEP_BYTES;
    if (answer->free_bytes > answer->total_bytes)
        answer->free_bytes = answer->total_bytes;
    return capacity.is_known;
}

static bool find_answer(struct sg_meminfo *answer, CUdevice device)
{
    return sg_meminfo_find(answer, sg_own->device[sg_cuda_device_number(device)].total_bytes);
}

/* Finds the current context's device. True if its memory is the machine's; otherwise pass the driver's answer on. */
static SG_INLINE bool is_answered_here(CUdevice *device)
{
    SG_DRIVER(get_device, cuCtxGetDevice);
    return sg_meminfo_is_honest() && get_device != NULL && get_device(device) == CUDA_SUCCESS && is_unified(*device);
}

/* True if the hook replaces a driver answer with this result. */
static bool is_replaced(CUresult result)
{
    return result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY ||
           (result == CUDA_ERROR_NOT_SUPPORTED && sg_self.refused_count != 0);
}

/* Returns the driver's own answer. */
#define PASS(name, ...) \
    do { \
        SG_DRIVER_INSIDE(name, __VA_ARGS__); \
        return result; \
    } while (0)

#define GET_INFO(name, type, most) \
    struct sg_meminfo answer; \
    CUdevice device = 0; \
    type real_free = 0, real_total = 0; \
    if (sg_cuda_is_ours()) \
        sg_mempool_memory_refresh(); \
    if (free == NULL || total == NULL || !is_answered_here(&device) || !find_answer(&answer, device)) \
        PASS(name, free, total); \
    if (!answer.is_below_floor) { \
        SG_DRIVER_INSIDE(name, &real_free, &real_total); \
        if (!is_replaced(result)) \
            return result; \
    } \
    *free = (type)(answer.free_bytes < (most) ? answer.free_bytes : (most)); \
    *total = (type)(answer.total_bytes < (most) ? answer.total_bytes : (most)); \
    return CUDA_SUCCESS

SG_EXPORT CUresult CUDAAPI cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    GET_INFO(cuMemGetInfo, unsigned int, UINT32_MAX);
}

SG_EXPORT CUresult CUDAAPI cuMemGetInfo_v2(size_t *free, size_t *total)
{
    GET_INFO(cuMemGetInfo_v2, size_t, SIZE_MAX);
}

#define GET_TOTAL(name, type, most) \
    struct sg_meminfo answer; \
    SG_DRIVER_INSIDE(name, bytes, dev); \
    if (result != CUDA_SUCCESS || !sg_meminfo_is_honest() || !is_unified(dev) || !find_answer(&answer, dev)) \
        return result; \
    *bytes = (type)(answer.total_bytes < (most) ? answer.total_bytes : (most)); \
    return result

SG_EXPORT CUresult CUDAAPI cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
    GET_TOTAL(cuDeviceTotalMem, unsigned int, UINT32_MAX);
}

SG_EXPORT CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    GET_TOTAL(cuDeviceTotalMem_v2, size_t, SIZE_MAX);
}
