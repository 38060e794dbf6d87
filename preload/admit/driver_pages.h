/*
 * driver_pages.h - pages that the driver keeps after a free, and how the kernel is made to take them back.
 *
 * NVIDIA's driver from 590 on puts freed pages of the machine into pools of its own (NVreg_EnableSystemMemoryPools).
 * They are in no counter of /proc/meminfo: MemAvailable stays low after a CUDA program has ended. The driver serves new
 * allocations from the pools first, and gives pages back when the kernel shrinks its caches, under memory pressure.
 *
 * The registry counts what guarded programs gave back, or ended with, and nobody has taken since: an upper
 * bound of what is in the pools. Before a request is refused that fits with these pages, this process makes the
 * kernel shrink the pools: it populates free memory until the kernel wakes its reclaim thread (kswapd). The
 * populated memory is announced in the ledger while it is there: other processes count it as available, and let
 * large requests wait.
 */
#ifndef SG_PRELOAD_ADMIT_DRIVER_PAGES_H
#define SG_PRELOAD_ADMIT_DRIVER_PAGES_H

#include <stdbool.h>
#include <stdint.h>

/* The longest that pressure is made, and what a request waits at most while another process makes it. */
#define SG_PRESSURE_LONGEST_NS UINT64_C(10000000000)

/* At most so much is in the driver's pools: 0 where the driver has none, or nothing is known of any. Under the
 * decision lock. */
uint64_t sg_driver_pages_kept_bytes(void);

/* Makes the kernel shrink the driver's pools by `bytes`, for SG_PRESSURE_LONGEST_NS at most. Does nothing where
 * somebody else is at it, or has failed within the last minute, or where pressure would swap others out or break a
 * cgroup's limit. Afterwards sg_driver_pages_kept_bytes says what may still be there. Any thread, without the
 * decision lock. */
void sg_driver_pages_reclaim(uint64_t bytes);

#endif
