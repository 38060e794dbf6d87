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
#include "account/driver_pool.h"
#include "admit/check.h"
#include "admit/headroom.h"
#include "admit/reclaim/pool_room.h"
#include "shared/decision_lock.h"

/* Figures are rounded down to this, so that a request of exactly the answer is granted although figures fluctuate. */
#define STEP_BYTES (UINT64_C(2) << 20)

static uint64_t fixed_total; /* (atomic) 0: not queried yet */

/* What a request could get now, with a new snapshot as thorough as before a refusal. */
struct capacity {
    uint64_t largest_bytes; /* the largest CUDA request that would be admitted now; 0 if unknown */
    uint64_t all_bytes;     /* CUDA memory for all guarded programs, with theirs, above the reserve, within LIMIT */
    uint64_t reserve_bytes; /* the machine's */
    uint64_t most_bytes;    /* the same if nothing else used the machine: all but the reserve, within LIMIT */
    bool is_known;
    bool is_below_floor;
};

/* CUDA memory that all guarded programs together could have, with what they have. The reserve is not subtracted. */
static uint64_t for_all_cuda(void)
{
    uint64_t live = sg_load(&sg_own->domain[SG_DOMAIN_DEVICE].granted_bytes) +
                    sg_load(&sg_own->domain[SG_DOMAIN_PINNED].granted_bytes) +
                    sg_load(&sg_own->domain[SG_DOMAIN_MANAGED].granted_bytes) + sg_headroom_last.peers.cuda_bytes;
    return sg_headroom_usable(0, SG_HEADROOM_PROMISES | SG_HEADROOM_FLIGHT, false) + live;
}

/* `is_bounded`: the cgroups bound largest_bytes, too. */
static void measure(struct capacity *capacity, bool is_bounded)
{
    struct sg_lock_state lock;
    sg_segment_attach();
    sg_lock_acquire(&sg_decision_lock, &lock);
    sg_check_join();
    sg_check_take_out_the_dead(NULL);
    sg_headroom_scan();
    sg_headroom_refresh(0, true);
    uint64_t limit = sg_headroom_limit_bytes(), pooled = sg_pool_room_for_all(false), all = for_all_cuda() + pooled,
             reserve = sg_headroom_last.snapshot.at[0].reserve_bytes;
    *capacity = (struct capacity){.largest_bytes = sg_headroom_for_cuda(is_bounded, pooled),
                                  .all_bytes = all > reserve ? all - reserve : 0,
                                  .reserve_bytes = reserve,
                                  .most_bytes = sg_headroom_machine_bytes(),
                                  .is_known = sg_headroom_last.snapshot.is_valid,
                                  .is_below_floor = sg_headroom_slack(SG_HEADROOM_FLOOR) < 0};
    if (limit != 0) {
        uint64_t held = sg_headroom_job_bytes(SG_HEADROOM_ALL), left = limit > held ? limit - held : 0;
        capacity->largest_bytes = capacity->largest_bytes < left ? capacity->largest_bytes : left;
        capacity->all_bytes = capacity->all_bytes < limit ? capacity->all_bytes : limit;
        capacity->most_bytes = capacity->most_bytes < limit ? capacity->most_bytes : limit;
    }
    sg_lock_release(&sg_decision_lock, &lock);
}

/* Whether NVML's list of processes would tell more of the driver's pool before measure(), by a new snapshot. */
static bool wants_list(void)
{
    struct sg_lock_state lock;
    sg_segment_attach();
    sg_lock_acquire(&sg_decision_lock, &lock);
    sg_check_join();
    bool is_used = sg_driver_pool_is_used();
    if (is_used)
        sg_headroom_refresh(0, false);
    bool wants_list = is_used && sg_pool_room_wants_list(SG_POOL_LIST_REPORTED);
    sg_lock_release(&sg_decision_lock, &lock);
    return wants_list;
}

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
static uint64_t total_of(const struct capacity *capacity, uint64_t device_total)
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
    struct capacity capacity;
    if (wants_list())
        sg_process_list_read();
    measure(&capacity, is_bounded_by_cgroups());
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
