/*
 * meminfo.h - the honest numbers, for whoever is asked for them: the driver's functions and NVML's. Any thread.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_MEMINFO_H
#define SG_PRELOAD_HOOKS_CUDA_MEMINFO_H

#include <stdbool.h>
#include <stdint.h>

struct sg_meminfo {
    uint64_t free_bytes;  /* the largest request that admission would grant now, at most total */
    uint64_t total_bytes; /* fixed at the process's first question */
    bool is_below_floor;  /* where the driver has been seen to hang: it is not asked */
};

/* Whether answers about unified memory are replaced; not from inside a call of the driver. */
bool sg_meminfo_is_honest(void);

/* `device_total`: what the driver says the device has; UINT64_MAX: it does not say. False if nothing is known of the
 * machine: then the driver's word stands. */
bool sg_meminfo_find(struct sg_meminfo *answer, uint64_t device_total);

#endif
