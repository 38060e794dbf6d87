/*
 * decision_lock.h - the lock under which this process decides on requests, one at a time. It keeps the snapshot, the
 * sums over the peers and the queued request unchanged until the decision. Processes do not share it (lock.h); the
 * order of the registry applies between processes (registry.h).
 */
#ifndef SG_PRELOAD_SHARED_DECISION_LOCK_H
#define SG_PRELOAD_SHARED_DECISION_LOCK_H

#include "base/lock.h"

extern struct sg_lock sg_decision_lock;

#endif
