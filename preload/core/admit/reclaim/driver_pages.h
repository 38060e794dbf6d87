/*
 * driver_pages.h - driver pages: pages that the driver keeps after a free, and how the kernel is made to reclaim them.
 *
 * NVIDIA's driver from 590 on puts freed system pages into pools of its own (NVreg_EnableSystemMemoryPools). No counter
 * of /proc/meminfo shows them, so MemAvailable stays low after a CUDA program has ended. The driver serves new
 * allocations from its pools first. It gives pages back when the kernel shrinks its caches under memory pressure.
 *
 * The registry counts the bytes that guarded programs freed, or held at their end, and that no program has taken since.
 * The count is an upper bound of what the pools hold. Before refusing a request that would fit with these pages, a
 * process makes the kernel shrink the pools: it populates free memory until the kernel wakes its reclaim thread
 * (kswapd). The registry announces the populated memory while it exists. Other processes count it as available, and
 * their large requests wait.
 */
#ifndef SG_PRELOAD_ADMIT_RECLAIM_DRIVER_PAGES_H
#define SG_PRELOAD_ADMIT_RECLAIM_DRIVER_PAGES_H

#include <stdbool.h>
#include <stdint.h>

/* How long pressure is made at most, and how long a request waits at most while another process makes it. */
#define SG_PRESSURE_LONGEST_NS UINT64_C(10000000000)

/* Upper bound of the bytes in the driver's pools; 0: the driver has no pools, or too few bytes for pressure (32 MiB).
 * Under the decision lock. */
uint64_t sg_driver_pages_kept_bytes(void);

/* Makes the kernel shrink the driver's pools by `bytes`, for SG_PRESSURE_LONGEST_NS at most. Afterwards
 * sg_driver_pages_kept_bytes says what the pools may still hold. Does nothing while another process makes pressure, or
 * within a minute after one had to stop early. It also does nothing where populating would break a cgroup's limit, and
 * stops when other processes are swapped out. Any thread, without the decision lock. */
void sg_driver_pages_reclaim(uint64_t bytes);

#endif
