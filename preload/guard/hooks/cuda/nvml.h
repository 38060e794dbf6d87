/*
 * nvml.h - the NVML declarations that the hooks need. NVIDIA ships nvml.h in another package than cuda.h, so a
 * build with CUDA's headers alone may lack it.
 *
 * Layouts and values were compared with NVIDIA's nvml.h (nvidia-nvml-dev 13.5.37) and NVIDIA's own Python client
 * (nvidia-ml-py 13.615).
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_NVML_H
#define SG_PRELOAD_HOOKS_CUDA_NVML_H

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef int nvmlReturn_t;

enum { NVML_SUCCESS = 0, NVML_ERROR_UNINITIALIZED = 1, NVML_ERROR_NOT_SUPPORTED = 3 };

/* All in bytes. */
typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version; /* set by the caller */
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

#define NVML_MEMORY_V2 ((unsigned int)sizeof(nvmlMemory_v2_t) | 2u << 24)
_Static_assert(sizeof(nvmlMemory_t) == 24 && NVML_MEMORY_V2 == 0x02000028, "as NVIDIA has them");

/* The entry of the first version of nvmlDeviceGetComputeRunningProcesses, whose symbol has no suffix. */
typedef struct {
    unsigned int pid;
    unsigned long long used_bytes;
} nvmlProcessInfo_v1_t;

/* The entry of its versions _v2 and _v3. */
typedef struct {
    unsigned int pid;
    unsigned long long used_bytes;
    unsigned int gpu_instance, compute_instance;
} nvmlProcessInfo_v2_t;

#define NVML_DEVICE_UUID_V2_BUFFER_SIZE 96

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_v1_t *processes);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length);

/* The hooks of those that are not exported (SG_HOOK_NVML_HIDDEN). */
nvmlReturn_t sg_nvml_nvmlInit_v2(void);
nvmlReturn_t sg_nvml_nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device);
nvmlReturn_t sg_nvml_nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                          nvmlProcessInfo_v1_t *processes);

#endif
