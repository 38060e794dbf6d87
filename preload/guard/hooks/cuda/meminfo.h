/*
 * meminfo.h - free and total memory as the hooks of cuMemGetInfo, cuDeviceTotalMem and NVML report them. Any thread.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_MEMINFO_H
#define SG_PRELOAD_HOOKS_CUDA_MEMINFO_H

#include "base/options.h"
#include "hooks/cuda/call.h"

#include <stdbool.h>
#include <stdint.h>

struct sg_meminfo {
    uint64_t free_bytes;  /* the largest request that admission would grant now, at most total */
    uint64_t total_bytes; /* fixed at the first query of the process */
    bool is_below_floor;  /* the machine is below the floor, where the driver has been seen to hang: do not call it */
};

/* True if the hooks replace the driver's answers about unified memory (SPARKGUARD_MEMINFO, and not in observe mode).
 * False inside a driver call. Inlined into the hook, whose frame sg_cuda_is_ours needs. */
static SG_INLINE bool sg_meminfo_is_honest(void)
{
    return sg_cuda_is_ours() && sg_options.meminfo_honest && !sg_options.mode_observe;
}

/* Computes `answer`. `device_total` is the driver's total of the device in bytes; UINT64_MAX if the driver gives none.
 * False: the machine's figures cannot be read, and the driver's answer must be passed on. */
bool sg_meminfo_find(struct sg_meminfo *answer, uint64_t device_total);

#endif
