/*
 * device.h - what the driver tells of its devices: asked once for each, outside decisions. Any thread.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_DEVICE_H
#define SG_PRELOAD_HOOKS_CUDA_DEVICE_H

#include "base/atomics.h"
#include "base/compiler.h"
#include "base/options.h"
#include "sparkguard_abi.h"

#include <stdbool.h>
#include <stdint.h>

/* The number that our figures have a device under: those from the eighth on share one. Of a device the driver has
 * given, not -1. */
static inline uint32_t sg_cuda_device_number(int64_t device)
{
    return (uint64_t)device < SG_DEVICE_CAPACITY ? (uint32_t)device : SG_DEVICE_CAPACITY - 1;
}

/* (atomic) What each device is, once the driver has told. */
enum { SG_DEVICE_UNKNOWN = 0, SG_DEVICE_DISCRETE = 1, SG_DEVICE_INTEGRATED = 2 };
extern SG_INTERNAL uint32_t sg_cuda_device_kind[];

/* Whether the driver has told what kind of device it is (asked if need be), and whether its memory is a pool of its
 * own. */
bool sg_cuda_knows_device(uint32_t device);
static inline bool sg_cuda_has_own_pool(uint32_t device)
{
    if (sg_options.unified == SG_UNIFIED_AUTO)
        return sg_load_acquire(&sg_cuda_device_kind[sg_cuda_device_number(device)]) == SG_DEVICE_DISCRETE;
    return sg_options.unified == SG_UNIFIED_OFF;
}

/* Of a known device: the same in every process, whatever number it has there. */
uint64_t sg_cuda_device_identity(uint32_t device);

/* The device that NVML and nvidia-smi call "GPU-...", once the program itself has begun with CUDA; else, or if CUDA
 * does not have it, -1. */
int sg_cuda_find_device(const char *nvml_uuid);

#endif
