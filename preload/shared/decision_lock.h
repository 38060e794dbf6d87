/*
 * decision_lock.h - the lock of this process's decisions: one request at a time looks at the machine, at the registry
 * and at the other processes, and what they show stays as it is until the request is decided. Processes do not share
 * the lock (lock.h): between them the order of the registry decides (registry.h).
 */
#ifndef SG_PRELOAD_SHARED_DECISION_LOCK_H
#define SG_PRELOAD_SHARED_DECISION_LOCK_H

#include "base/lock.h"

extern struct sg_lock sg_decision_lock;

#endif
