/*
 * driver_pool.h - counts the pages that may be in the driver's own pools, for all processes of the machine.
 *
 * NVIDIA's driver from 590 on keeps freed system pages in pools of its own (NVreg_EnableSystemMemoryPools). No counter
 * of /proc/meminfo shows these pages. The registry counts the bytes that guarded programs freed, or held when they
 * ended, less the bytes allocated since: an upper bound of the pools' content. The registry also shows how much
 * memory a process has populated to make the driver return pages (admit/reclaim/driver_pages.h).
 */
#ifndef SG_PRELOAD_ACCOUNT_DRIVER_POOL_H
#define SG_PRELOAD_ACCOUNT_DRIVER_POOL_H

#include "base/atomics.h"
#include "base/compiler.h"
#include "shared/own_entry.h"

#include <stdbool.h>
#include <stdint.h>

/* 3 s: an announcement of populated memory that is not renewed within this time is ignored. */
#define SG_DRIVER_POOL_LEASE_NS UINT64_C(3000000000)

/* Whether the driver has pools. Reads the driver's parameters at the first call only. Under sg_decision_lock. */
bool sg_driver_pool_is_used(void);

/* Notes that this process's CUDA memory is system memory (unified): its CUDA memory is counted from now on. Any thread;
 * takes sg_decision_lock. */
void sg_driver_pool_learn(void);

/* Notes system memory (device or pinned) that this process allocated or freed through CUDA. Any thread. */
void sg_driver_pool_note_taken(uint64_t bytes);
void sg_driver_pool_note_given(uint64_t bytes);

/* The bytes freed and not allocated since; 0 if the driver has no pools, or that is not known yet. Any thread. */
uint64_t sg_driver_pool_counted_bytes(void);

/* Whether `until_ns`, the end of an announcement, lies in the next 3 s. */
bool sg_driver_pool_is_lease(uint64_t until_ns);

/* Whether a process of the machine is making memory pressure now. Any thread. */
static inline bool sg_driver_pool_is_pressed(void)
{
    uint64_t until = sg_load(&sg_entry_registry()->pressure_until_ns);
    return SG_UNLIKELY(until != 0) && sg_driver_pool_is_lease(until);
}

/* The bytes that the process which makes pressure has populated and is about to drop; 0: none. Any thread. */
static inline uint64_t sg_driver_pool_pressure_bytes(void)
{
    return sg_driver_pool_is_pressed() ? sg_load(&sg_entry_registry()->pressure_bytes) : 0;
}

#endif
