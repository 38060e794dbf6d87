/*
 * nvml.c - hooks of NVML's memory info, which then reports the same as cuMemGetInfo (SPARKGUARD_MEMINFO, meminfo.c),
 * and of the three functions that PyTorch calls while it reports an out-of-memory error (docs/assumptions.md).
 *
 * Programs call NVML before they use CUDA (vLLM) or without it (monitors). The hooks must not call cuInit for them.
 * Three sources say, in this order, whether a device's memory is unified:
 *   1. CUDA, if the program itself has called cuInit. The UUID identifies the device.
 *   2. SPARKGUARD_UNIFIED, if set.
 *   3. NVML. NOT_SUPPORTED is its answer for an integrated GPU that shares memory with the system (NVIDIA's nvml.h;
 *      seen on GB10). The hook replaces that answer. A device that gives figures of its own counts as discrete.
 * All other errors are passed on. Below the floor, a device once found unified is not queried, even if NVML has been
 * shut down since.
 */
#include "base/compiler.h"
#include "hooks/cuda/call.h"
#include "hooks/cuda/meminfo.h"
#include "hooks/cuda/nvml.h"
#include "base/options.h"

/* Calls the real function, or answers as a machine without a driver does. */
#define NVML_CALL(name, ...) (SG_REAL(name) != NULL ? SG_REAL(name)(__VA_ARGS__) : NVML_ERROR_UNINITIALIZED)

static uint64_t unified[SG_DEVICE_CAPACITY]; /* (atomic) NVML handles of devices found unified; handles never change */

/* True if an earlier call has found this device unified. */
static bool was_unified(nvmlDevice_t device)
{
    for (unsigned i = 0; i < SG_DEVICE_CAPACITY; i++)
        if (device != NULL && sg_load(&unified[i]) == (uintptr_t)device)
            return true;
    return false;
}

static void note_unified(nvmlDevice_t device)
{
    for (unsigned i = 0; i < SG_DEVICE_CAPACITY; i++) {
        uint64_t held = 0;
        if (sg_cas_u64(&unified[i], &held, (uintptr_t)device) || held == (uintptr_t)device)
            return;
    }
}

/* CUDA's number of the device; -1: unknown. `memory_info`: any real function of the same NVML library. */
static int find_in_cuda(nvmlDevice_t device, sg_function memory_info)
{
    static sg_function known;
    sg_function get_uuid = sg_load_acquire(&known);
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
    if (get_uuid == NULL) {
        get_uuid = sg_real_beside(memory_info, "nvmlDeviceGetUUID");
        sg_store_release(&known, get_uuid);
    }
    if (get_uuid == NULL || ((__typeof__(&nvmlDeviceGetUUID))get_uuid)(device, uuid, sizeof uuid) != NVML_SUCCESS)
        return -1;
    return sg_cuda_find_device(uuid);
}

/* True if NVML's answer must be replaced, by `answer`. `total`: the device's total by NVML. */
static bool find_answer(struct sg_meminfo *answer, nvmlDevice_t device, sg_function memory_info, nvmlReturn_t result,
                        uint64_t total)
{
    if (result != NVML_SUCCESS && result != NVML_ERROR_NOT_SUPPORTED)
        return false;
    int in_cuda = find_in_cuda(device, memory_info);
    bool is_unified = in_cuda >= 0                            ? !sg_cuda_has_own_pool((uint32_t)in_cuda)
                      : sg_options.unified == SG_UNIFIED_AUTO ? result == NVML_ERROR_NOT_SUPPORTED
                                                              : sg_options.unified == SG_UNIFIED_ON;
    if (!is_unified)
        return false;
    if (in_cuda >= 0)
        total = sg_own->device[in_cuda].total_bytes;
    else if (result == NVML_ERROR_NOT_SUPPORTED)
        total = UINT64_MAX;
    if (!sg_meminfo_find(answer, total))
        return false;
    note_unified(device);
    return true;
}

/* Computes `answer`, which replaces NVML's answer, or returns NVML's own answer from the hook. */
#define GET_INFO(name) \
    struct sg_meminfo answer; \
    if (!sg_meminfo_is_honest()) \
        return NVML_CALL(name, device, memory); \
    bool is_found = was_unified(device) && sg_meminfo_find(&answer, UINT64_MAX); /* the total is fixed already */ \
    if (!is_found || !answer.is_below_floor) { \
        nvmlReturn_t result = NVML_CALL(name, device, memory); \
        if (!find_answer(&answer, device, (sg_function)SG_REAL(name), result, memory->total)) \
            return result; \
    }

SG_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    if (memory == NULL)
        return NVML_CALL(nvmlDeviceGetMemoryInfo, device, memory);
    GET_INFO(nvmlDeviceGetMemoryInfo)
    memory->total = answer.total_bytes;
    memory->free = answer.free_bytes;
    memory->used = answer.total_bytes - answer.free_bytes;
    return NVML_SUCCESS;
}

SG_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    if (memory == NULL || memory->version != NVML_MEMORY_V2)
        return NVML_CALL(nvmlDeviceGetMemoryInfo_v2, device, memory);
    GET_INFO(nvmlDeviceGetMemoryInfo_v2)
    memory->total = answer.total_bytes;
    memory->reserved = 0; /* the total does not include the reserve */
    memory->free = answer.free_bytes;
    memory->used = answer.total_bytes - answer.free_bytes;
    return NVML_SUCCESS;
}

/* ---- what PyTorch asks about processes before it raises torch.OutOfMemoryError ---- */

/* PyTorch asserts that these three succeed. Where one is not supported, the program would get a RuntimeError about
 * NVML, and not the OutOfMemoryError that scripts wait for. So in a thread that was refused a request, NOT_SUPPORTED
 * becomes a list without processes. Every other answer, and every answer to other threads, is NVML's. */

static char no_device;            /* its address stands for a device that NVML has no handle for */
static uint32_t is_init_replaced; /* (atomic) NVML is not initialised, and a program was told that it is */

/* Inlined into the hook, whose frame sg_cuda_is_ours needs. */
static SG_INLINE bool may_replace(nvmlReturn_t result)
{
    bool is_unknown = result == NVML_ERROR_NOT_SUPPORTED ||
                      (result == NVML_ERROR_UNINITIALIZED && sg_load_acquire(&is_init_replaced) != 0);
    return is_unknown && sg_meminfo_is_honest() && sg_self.refused_count != 0;
}

/* The handle of the only device; NULL if there is another number of them or NVML does not say. */
static nvmlDevice_t find_only_device(sg_function by_bus_id)
{
    nvmlReturn_t (*get_count)(unsigned int *) =
        (__typeof__(get_count))sg_real_beside(by_bus_id, "nvmlDeviceGetCount_v2");
    nvmlReturn_t (*get_handle)(unsigned int, nvmlDevice_t *) =
        (__typeof__(get_handle))sg_real_beside(by_bus_id, "nvmlDeviceGetHandleByIndex_v2");
    unsigned int count = 0;
    nvmlDevice_t device = NULL;
    if (get_count == NULL || get_handle == NULL || get_count(&count) != NVML_SUCCESS || count != 1)
        return NULL;
    return get_handle(0, &device) == NVML_SUCCESS ? device : NULL;
}

nvmlReturn_t sg_nvml_nvmlInit_v2(void)
{
    nvmlReturn_t result = NVML_CALL(nvmlInit_v2);
    if (!may_replace(result))
        return result;
    sg_store_release(&is_init_replaced, 1u);
    return NVML_SUCCESS;
}

nvmlReturn_t sg_nvml_nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    nvmlReturn_t result = NVML_CALL(nvmlDeviceGetHandleByPciBusId_v2, bus_id, device);
    if (device == NULL || !may_replace(result))
        return result;
    nvmlDevice_t only = find_only_device((sg_function)SG_REAL(nvmlDeviceGetHandleByPciBusId_v2));
    *device = only != NULL ? only : (nvmlDevice_t)(void *)&no_device;
    return NVML_SUCCESS;
}

nvmlReturn_t sg_nvml_nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                          nvmlProcessInfo_v1_t *processes)
{
    bool is_ours = device == (nvmlDevice_t)(void *)&no_device;
    nvmlReturn_t result =
        is_ours ? NVML_ERROR_NOT_SUPPORTED : NVML_CALL(nvmlDeviceGetComputeRunningProcesses, device, count, processes);
    if (count == NULL || !may_replace(result))
        return result;
    *count = 0;
    return NVML_SUCCESS;
}
