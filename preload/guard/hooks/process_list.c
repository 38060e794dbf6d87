/*
 * process_list.c - see process_list.h.
 */
#include "hooks/process_list.h"

#include "admit/reclaim/pool_room.h"
#include "base/atomics.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "hooks/cuda/driver.h"
#include "hooks/cuda/nvml.h"
#include "hooks/real.h"
#include "shared/container.h"
#include "shared/segment.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#define NOT_AVAILABLE UINT64_MAX /* NVML does not say how much a process has */

#define WAIT_NS UINT64_C(100000000) /* for an answer, which usually takes some milliseconds */

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
    uint32_t asker; /* (atomic, futex) id of the process whose thread asks, for a forked child has none; 0: nobody */
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
    nvmlReturn_t result =
        nvml->graphics != NULL ? nvml->graphics(device, &graphics, list.graphics) : NVML_ERROR_NOT_SUPPORTED;
    if (result != NVML_SUCCESS || graphics > LIST_MAX)
        return result == NVML_ERROR_NOT_SUPPORTED; /* a device without graphics */
    for (unsigned int i = 0; i < graphics; i++)
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

/* An ordinary thread of the C library, because NVML allocates and takes locks. */
static void *ask_apart(void *ignored)
{
    (void)ignored;
    (void)sg_cuda_go_inside();
    ask();
    sg_store(&list.asker, 0u);
    (void)sg_sys_futex(&list.asker, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL);
    return NULL;
}

/* Signals of the program are for its own threads. pthread_detach is looked up: each function of the C library that is
 * imported here would cost each start a thousand instructions. */
static bool make_thread(void)
{
    const uint64_t all = UINT64_MAX;
    uint64_t before = 0;
    pthread_t thread;
    sg_function detach = sg_real_beside((sg_function)SG_REAL(pthread_create), "pthread_detach");
    if (detach == NULL)
        return false;
    (void)sg_sys_sigprocmask(2 /* SIG_SETMASK */, &all, &before);
    bool is_made = SG_REAL(pthread_create)(&thread, NULL, ask_apart, NULL) == 0;
    (void)sg_sys_sigprocmask(2, &before, NULL);
    if (is_made)
        (void)((int (*)(pthread_t))detach)(thread);
    return is_made;
}

static void await_answer(uint32_t own)
{
    uint64_t now_ns, until_ns = sg_clock_ns(CLOCK_MONOTONIC) + WAIT_NS;
    while (sg_load(&list.asker) == own && (now_ns = sg_clock_ns(CLOCK_MONOTONIC)) < until_ns) {
        const struct timespec left = {0, (long)(until_ns - now_ns)};
        (void)sg_sys_futex(&list.asker, FUTEX_WAIT_PRIVATE, own, &left);
    }
}

void sg_process_list_read(void)
{
    uint32_t own = (uint32_t)sg_sys_getpid(), asker = sg_load(&list.asker);
    int saved_errno = errno;
    if (sg_own->pid_namespace != SG_FIRST_PID_NAMESPACE || sg_load(&list.is_missing) != 0 || asker == own ||
        !sg_cas_u32(&list.asker, &asker, own))
        return;
    uint32_t layers = sg_cuda_go_inside();
    if (make_thread())
        await_answer(own);
    else
        sg_store(&list.asker, 0u);
    sg_self.layers = layers;
    errno = saved_errno;
}
