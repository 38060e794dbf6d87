/*
 * lock.h - one lock for the lists of CUDA's rarer calls: VMM handles and mappings (vmm.c), pools (mempool.c), contexts,
 * graphs. Those calls take microseconds to milliseconds, so an uncontended lock adds little to their cost.
 *
 * Never call the driver under this lock. The driver may wait for another thread, and that thread may be waiting for
 * this lock in a hook: a deadlock.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_LOCK_H
#define SG_PRELOAD_HOOKS_CUDA_LOCK_H

#include "base/lock.h"

extern struct sg_lock sg_cuda_lock;

#endif
