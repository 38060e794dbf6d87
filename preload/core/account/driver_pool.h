/*
 * driver_pool.h - counts device memory that guarded processes freed, for all processes of the machine.
 *
 * NVIDIA's driver from 590 on keeps freed device memory of a unified machine in a pool of its own
 * (NVreg_EnableSystemMemoryPools), and serves the next request from it. The registry counts the bytes freed, less those
 * taken since: a lower bound of the pool (admit/reclaim/pool_room.h). Pinned memory is the process's own shared memory,
 * and never in the pool.
 */
#ifndef SG_PRELOAD_ACCOUNT_DRIVER_POOL_H
#define SG_PRELOAD_ACCOUNT_DRIVER_POOL_H

#include <stdbool.h>
#include <stdint.h>

/* Whether the driver lists pools. Reads the driver's parameters at the first call only. Under sg_decision_lock. */
bool sg_driver_pool_is_used(void);

/* Notes that this process's device memory is the machine's (unified): it is counted from now on. Any thread; takes
 * sg_decision_lock. */
void sg_driver_pool_learn(void);

/* Notes device memory that this process took, or gave back to the driver. Any thread. */
void sg_driver_pool_note_taken(uint64_t bytes);
void sg_driver_pool_note_given(uint64_t bytes);

/* The bytes counted now; 0 if the driver lists no pools, or that is not known yet. Any thread. */
uint64_t sg_driver_pool_counted_bytes(void);

#endif
