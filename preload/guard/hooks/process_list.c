/*
 * process_list.c - see process_list.h.
 */
#include "hooks/process_list.h"

#include "admit/reclaim/pool_room.h"
#include "base/atomics.h"
#include "base/syscall.h"
#include "hooks/cuda/driver.h"
#include "hooks/cuda/nvml.h"
#include "hooks/real.h"
#include "shared/segment.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#define FIRST_PID_NAMESPACE 0xEFFFFFFCu /* inode of /proc/self/ns/pid outside all containers (proc_ns.h of Linux) */
#define NOT_AVAILABLE UINT64_MAX        /* NVML does not say how much a process has */

enum { DEVICES_MAX = 64, LIST_MAX = 512 };

typedef nvmlReturn_t list_function(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *processes);

struct nvml {
    nvmlReturn_t (*init)(void);
    nvmlReturn_t (*shut_down)(void);
    nvmlReturn_t (*count)(unsigned int *count);
    nvmlReturn_t (*device)(unsigned int index, nvmlDevice_t *device);
    list_function *compute, *graphics; /* processes of both kinds are in both lists */
};

static struct {
    uint32_t is_asking;  /* (atomic) */
    uint32_t is_missing; /* (atomic) NVML cannot be loaded */
    nvmlProcessInfo_v2_t compute[LIST_MAX], graphics[LIST_MAX];
} list;

static bool find(struct nvml *nvml)
{
    if (SG_REAL(nvmlInit_v2) == NULL && SG_REAL(dlopen)("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL) == NULL)
        return false;
    sg_function init = (sg_function)SG_REAL(nvmlInit_v2);
    nvml->init = (__typeof__(nvml->init))init;
    nvml->shut_down = (__typeof__(nvml->shut_down))sg_real_beside(init, "nvmlShutdown");
    nvml->count = (__typeof__(nvml->count))sg_real_beside(init, "nvmlDeviceGetCount_v2");
    nvml->device = (__typeof__(nvml->device))sg_real_beside(init, "nvmlDeviceGetHandleByIndex_v2");
    nvml->compute = (list_function *)sg_real_beside(init, "nvmlDeviceGetComputeRunningProcesses_v3");
    nvml->graphics = (list_function *)sg_real_beside(init, "nvmlDeviceGetGraphicsRunningProcesses_v3");
    return init != NULL && nvml->shut_down != NULL && nvml->count != NULL && nvml->device != NULL &&
           nvml->compute != NULL;
}

static bool is_listed(uint32_t pid, unsigned int count)
{
    for (unsigned int i = 0; i < count; i++)
        if (list.compute[i].pid == pid)
            return true;
    return false;
}

/* Adds one process. False: its memory is not known. */
static bool add(const nvmlProcessInfo_v2_t *process, uint64_t *bytes, bool *has_own)
{
    *has_own = *has_own || process->pid == (uint32_t)sg_sys_getpid();
    *bytes += process->used_bytes;
    return process->used_bytes != NOT_AVAILABLE;
}

/* Adds the processes of a device. False: the list is not complete. */
static bool add_device(const struct nvml *nvml, nvmlDevice_t device, uint64_t *bytes, bool *has_own)
{
    unsigned int count = LIST_MAX, graphics = LIST_MAX;
    if (nvml->compute(device, &count, list.compute) != NVML_SUCCESS || count > LIST_MAX)
        return false;
    for (unsigned int i = 0; i < count; i++)
        if (!add(&list.compute[i], bytes, has_own))
            return false;
    if (nvml->graphics == NULL || nvml->graphics(device, &graphics, list.graphics) != NVML_SUCCESS)
        return true; /* a device without graphics */
    for (unsigned int i = 0; i < graphics && i < LIST_MAX; i++)
        if (!is_listed(list.graphics[i].pid, count) && !add(&list.graphics[i], bytes, has_own))
            return false;
    return true;
}

static bool add_all(const struct nvml *nvml, uint64_t *bytes)
{
    unsigned int count = 0;
    bool has_own = false, is_complete = nvml->count(&count) == NVML_SUCCESS && count <= DEVICES_MAX;
    for (unsigned int i = 0; i < count && is_complete; i++) {
        nvmlDevice_t device = NULL;
        is_complete = nvml->device(i, &device) == NVML_SUCCESS && add_device(nvml, device, bytes, &has_own);
    }
    return is_complete && has_own;
}

static void ask(void)
{
    struct nvml nvml;
    uint64_t bytes = 0, owned = sg_pool_room_owned_bytes();
    if (!find(&nvml)) {
        sg_store(&list.is_missing, 1u);
        return;
    }
    if (nvml.init() != NVML_SUCCESS)
        return;
    if (add_all(&nvml, &bytes))
        sg_pool_room_note_list(bytes, owned);
    (void)nvml.shut_down();
}

void sg_process_list_read(void)
{
    uint32_t nobody = 0;
    int saved_errno = errno;
    if (sg_own->pid_namespace != FIRST_PID_NAMESPACE || sg_load(&list.is_missing) != 0 ||
        !sg_cas_u32(&list.is_asking, &nobody, 1))
        return;
    uint32_t layers = sg_cuda_go_inside();
    ask();
    sg_self.layers = layers;
    sg_store(&list.is_asking, 0u);
    errno = saved_errno;
}
