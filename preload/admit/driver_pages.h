/*
 * driver_pages.h - pages that the driver keeps after a free, and how the kernel is made to take them back.
 *
 * NVIDIA's driver from 590 on puts freed pages of the machine into pools of its own (NVreg_EnableSystemMemoryPools).
 * They are in no counter of /proc/meminfo: MemAvailable stays low after a CUDA program has ended. The driver serves new
 * allocations from the pools first, and gives pages back when the kernel shrinks its caches, under memory pressure.
 *
 * The machine's ledger counts what guarded programs gave back, or ended with, and nobody has taken since: an upper
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

/* This process's CUDA memory is the machine's: from now on it is counted. Any thread, without the decision lock. */
void sg_driver_pages_learn(void);

/* CUDA memory of the machine (device or pinned) that this process took or gave back. Any thread. */
void sg_driver_pages_note_taken(uint64_t bytes);
void sg_driver_pages_note_given(uint64_t bytes);

/* At most so much is in the driver's pools: 0 where the driver has none, or nothing is known of any. Under the
 * decision lock. */
uint64_t sg_driver_pages_kept_bytes(void);

/* Bytes given back and not taken since, where the driver has pools; else 0. Any thread. */
uint64_t sg_driver_pages_counted_bytes(void);

/* Bytes that any process has populated now to make pressure and is about to drop. Any thread. */
uint64_t sg_driver_pages_pressure_bytes(void);

/* Whether somebody is making pressure now. Any thread. */
bool sg_driver_pages_is_pressed(void);

/* Makes the kernel shrink the driver's pools by `bytes`, for SG_PRESSURE_LONGEST_NS at most. Does nothing where
 * somebody else is at it, or has failed within the last minute, or where pressure would swap others out or break a
 * cgroup's limit. Afterwards sg_driver_pages_kept_bytes says what may still be there. Any thread, without the
 * decision lock. */
void sg_driver_pages_reclaim(uint64_t bytes);

#endif
