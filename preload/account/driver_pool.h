/*
 * driver_pool.h - counts the pages that may be in the driver's own pools, for all processes of the machine.
 *
 * NVIDIA's driver from 590 on puts freed pages of the machine into pools of its own (NVreg_EnableSystemMemoryPools).
 * They are in no counter of /proc/meminfo. The registry counts what guarded programs gave back, or ended with,
 * and nobody has taken since: an upper bound of what is in the pools. It also says how much memory somebody populates
 * to make the driver give pages back (admit/driver_pages.h).
 */
#ifndef SG_PRELOAD_ACCOUNT_DRIVER_POOL_H
#define SG_PRELOAD_ACCOUNT_DRIVER_POOL_H

#include <stdbool.h>
#include <stdint.h>

/* An announcement of populated memory that is not renewed is void after this time. */
#define SG_DRIVER_POOL_LEASE_NS UINT64_C(3000000000)

/* Whether the driver has pools: its parameters are read once. Under the decision lock. */
bool sg_driver_pool_is_used(void);

/* This process's CUDA memory is the machine's: from now on it is counted. Any thread, without the decision lock. */
void sg_driver_pool_learn(void);

/* CUDA memory of the machine (device or pinned) that this process took or gave back. Any thread. */
void sg_driver_pool_note_taken(uint64_t bytes);
void sg_driver_pool_note_given(uint64_t bytes);

/* Bytes given back and not taken since, where the driver has pools; else 0. Any thread. */
uint64_t sg_driver_pool_counted_bytes(void);

/* Whether somebody is making pressure now, and the bytes that he has populated for it and is about to drop. Any
 * thread. */
bool sg_driver_pool_is_pressed(void);
uint64_t sg_driver_pool_pressure_bytes(void);

#endif
