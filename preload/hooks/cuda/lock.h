/*
 * lock.h - the lock for what CUDA's rarer calls keep in lists: VMM handles and mappings (vmm.c), pools (mempool.c),
 * contexts, graphs. Those calls take microseconds to milliseconds; a lock is cheap beside them. The driver is never
 * called under it: it may wait there for another thread, which may be on its way to us.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_LOCK_H
#define SG_PRELOAD_HOOKS_CUDA_LOCK_H

#include "base/lock.h"

extern struct sg_lock sg_vmm_lock;

#endif
