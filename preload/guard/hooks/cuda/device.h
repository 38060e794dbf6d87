/*
 * device.h - properties of CUDA devices. The driver is queried once per device, outside decisions. Any thread.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_DEVICE_H
#define SG_PRELOAD_HOOKS_CUDA_DEVICE_H

#include "base/atomics.h"
#include "base/compiler.h"
#include "base/options.h"
#include "sparkguard_abi.h"

#include <stdbool.h>
#include <stdint.h>

/* The index of a device in arrays of SG_DEVICE_CAPACITY: the eighth and all later devices share the last index.
 * `device` is a number from the driver, not -1. */
static inline uint32_t sg_cuda_device_number(int64_t device)
{
    return (uint64_t)device < SG_DEVICE_CAPACITY ? (uint32_t)device : SG_DEVICE_CAPACITY - 1;
}

/* (atomic) The kind of each device; SG_DEVICE_UNKNOWN until the driver has answered. APART: integrated by its own word,
 * and yet its memory does not come out of the machine's (self_check.h). */
enum { SG_DEVICE_UNKNOWN = 0, SG_DEVICE_DISCRETE = 1, SG_DEVICE_INTEGRATED = 2, SG_DEVICE_APART = 3 };
extern SG_INTERNAL uint32_t sg_cuda_device_kind[];

/* True if the kind of the device is known. Queries the driver if it is not known yet. */
bool sg_cuda_knows_device(uint32_t device);

/* True if the device has memory of its own (a discrete card), not the machine's. SPARKGUARD_UNIFIED overrides the
 * driver; without it, the answer is false for a device of unknown kind. */
static inline bool sg_cuda_has_own_pool(uint32_t device)
{
    if (sg_options.unified == SG_UNIFIED_AUTO) {
        uint32_t kind = sg_load_acquire(&sg_cuda_device_kind[sg_cuda_device_number(device)]);
        return kind == SG_DEVICE_DISCRETE || kind == SG_DEVICE_APART;
    }
    return sg_options.unified == SG_UNIFIED_OFF;
}

/* True if the driver alone judges requests for the device's memory. */
static inline bool sg_cuda_is_apart(uint32_t device)
{
    return sg_load_acquire(&sg_cuda_device_kind[sg_cuda_device_number(device)]) == SG_DEVICE_APART;
}

/* After a measurement on an integrated device: its memory is the machine's, or not, as was found (self_check.h). */
void sg_cuda_note_trust(uint32_t device);

/* A number that names the device in all processes, whatever index each process gives it: a hash of its UUID. Derived
 * from the index if the driver gives no UUID. The device must be known (sg_cuda_knows_device). */
uint64_t sg_cuda_device_identity(uint32_t device);

/* The CUDA device with the UUID that NVML and nvidia-smi print as "GPU-..." or "MIG-...". -1 if CUDA does not have it,
 * or if the program has not called cuInit. */
int sg_cuda_find_device(const char *nvml_uuid);

#endif
