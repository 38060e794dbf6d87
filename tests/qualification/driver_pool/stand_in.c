/*
 * stand_in.c - a libcuda.so.1 and a libnvidia-ml.so.1 whose memory is that of the module (driver_pool.c).
 *
 * Just what the programs of this folder call and what a guard asks about: one integrated device, contexts, linear
 * memory. Both libraries are this file; each is built with its own name. tests/sim has the whole API, over invented
 * memory.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "driver_pool.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define CONTEXT_BYTES (64 * MIB)
#define DEVICE_ADDRESS ((CUdeviceptr)1 << 40) /* of the first block; nothing is mapped there */
#define NUMBER_SHIFT 36                       /* above the largest block */

static const char identity[16] = "driver-pool-test";
static const char name[] = "Stand-in GB10";
static int device_fd = -1;
static __thread CUcontext current;
static char context_handle; /* all contexts are the primary one */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int is_retained;

static CUresult take(size_t bytes, __u64 *number)
{
    struct driver_pool_request request = {.bytes = bytes};
    if (device_fd < 0)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (ioctl(device_fd, DRIVER_POOL_TAKE, &request) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *number = request.number;
    return CUDA_SUCCESS;
}

static size_t total_bytes(void)
{
    struct sysinfo info;
    sysinfo(&info);
    return (size_t)info.totalram * info.mem_unit;
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

CUresult CUDAAPI cuInit(unsigned int flags)
{
    if (device_fd < 0)
        device_fd = open(DRIVER_POOL_DEVICE, O_RDWR | O_CLOEXEC);
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : device_fd < 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = 0;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceGetName(char *text, int length, CUdevice device)
{
    snprintf(text, (size_t)length, "%s", name);
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    memcpy(uuid->bytes, identity, sizeof uuid->bytes);
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    *bytes = total_bytes();
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    *value = attribute == CU_DEVICE_ATTRIBUTE_INTEGRATED || attribute == CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY ||
             attribute == CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    __u64 unused;
    pthread_mutex_lock(&lock);
    if (result == CUDA_SUCCESS && !is_retained)
        result = take(CONTEXT_BYTES, &unused);
    is_retained = is_retained || result == CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
    *context = (CUcontext)(void *)&context_handle;
    return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *is_active)
{
    *flags = 0;
    *is_active = is_retained;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context)
{
    current = context;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice *device)
{
    *device = 0;
    return current != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    __u64 number;
    CUresult result = current == NULL ? CUDA_ERROR_INVALID_CONTEXT
                      : bytes == 0    ? CUDA_ERROR_INVALID_VALUE
                                      : take(bytes, &number);
    if (result == CUDA_SUCCESS)
        *pointer = DEVICE_ADDRESS + ((CUdeviceptr)number << NUMBER_SHIFT);
    return result;
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr pointer)
{
    __u64 number = (pointer - DEVICE_ADDRESS) >> NUMBER_SHIFT;
    return ioctl(device_fd, DRIVER_POOL_GIVE, &number) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* As the driver of an integrated GPU: what is free on the machine, without what could be reclaimed. */
CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    struct sysinfo info;
    sysinfo(&info);
    *free_bytes = (size_t)info.freeram * info.mem_unit;
    *total = total_bytes();
    return current != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* ---- NVML -------------------------------------------------------------------------------------------------------- */

/* Layouts and values as in NVIDIA's nvml.h. */
enum {
    NVML_SUCCESS = 0,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_UNKNOWN = 999
};
typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;
struct process {
    unsigned int pid;
    unsigned long long bytes;
    unsigned int instance, compute_instance;
};
struct process_v1 {
    unsigned int pid;
    unsigned long long bytes;
};

#define DEVICE ((nvmlDevice_t)(void *)&context_handle)

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned int length);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned int length);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, void *info);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, void *info);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, struct process_v1 *infos);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, struct process *infos);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, struct process *infos);

nvmlReturn_t nvmlInit_v2(void)
{
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void)
{
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    *device = DEVICE;
    return index == 0 ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned int length)
{
    snprintf(text, length, "%s", name);
    return device == DEVICE ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned int length)
{
    size_t at = (size_t)snprintf(text, length, "GPU-");
    for (size_t i = 0; i < sizeof identity && at + 4 < length; i++)
        at += (size_t)sprintf(text + at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", identity[i]);
    return device == DEVICE ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}

/* The answer for a GPU that shares memory with the system. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, void *info)
{
    (void)info;
    return device == DEVICE ? NVML_NOT_SUPPORTED : NVML_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, void *info)
{
    return nvmlDeviceGetMemoryInfo(device, info);
}

/* The module lists them. */
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, struct process *infos)
{
    unsigned int found = 0, pid;
    unsigned long long mib;
    char line[80];
    FILE *file = device == DEVICE ? fopen(DRIVER_POOL_DEVICE, "re") : NULL;
    if (file == NULL)
        return NVML_UNKNOWN;
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "process %u %llu MiB", &pid, &mib) != 2)
            continue;
        if (found < *count)
            infos[found] = (struct process){pid, mib * MIB, UINT32_MAX, UINT32_MAX};
        found++;
    }
    fclose(file);
    nvmlReturn_t result = found > *count ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
    *count = found;
    return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, struct process_v1 *infos)
{
    struct process all[64];
    unsigned int found = 64, most = *count;
    nvmlReturn_t result = nvmlDeviceGetComputeRunningProcesses_v3(device, &found, all);
    *count = found;
    if (result != NVML_SUCCESS || found > most)
        return result != NVML_SUCCESS ? result : NVML_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < found; i++)
        infos[i] = (struct process_v1){all[i].pid, all[i].bytes};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, struct process *infos)
{
    (void)infos;
    *count = 0;
    return device == DEVICE ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}
