/*
 * wait.h - the verdicts on a request, and how long a request that does not fit yet waits for what may still change.
 *
 * Any thread. A sleeping thread holds no lock.
 */
#ifndef SG_PRELOAD_ADMIT_WAIT_H
#define SG_PRELOAD_ADMIT_WAIT_H

#include "admit/admission.h"

#include <stdbool.h>
#include <stdint.h>

enum sg_verdict {
    SG_ADMIT,
    SG_REFUSE,
    SG_LOOK_AGAIN, /* the driver's figure, NVML's list or the caller's ledger is out of date */
    SG_DROP_POOL,  /* fits once the driver's pool is emptied */
    SG_WAIT,       /* may fit within request->wait_ns of its first wait */
};

/* How long a request waits, from its first wait on, for what other processes decide or do, and for figures of the
 * kernel that are late: pages in lists of processors, processes that end, a claim that passes from a job that ends. */
#define SG_WAIT_OTHERS_NS UINT64_C(3000000000)
#define SG_WAIT_FIGURES_NS UINT64_C(300000000)

/* The same for other processes that were asked to give memory back, unless SPARKGUARD_WAIT is set. */
#define SG_WAIT_GIVERS_NS UINT64_C(2000000000)

/* The same for the end of requests in flight. 0 inside a CUDA call: they may belong to the call that this thread is
 * inside of, and a request of the driver itself must not wait for its own caller. */
uint64_t sg_wait_for_flight_ns(void);

/* Sleeps until the epoch is no longer `seen` (peers.h), or for one step. Steps grow from 1 to 50 ms. False: wait_ns, or
 * SPARKGUARD_WAIT if that is longer and the request is large, is over, and nothing was waited for. */
bool sg_wait_for_change(struct sg_request *request, uint32_t seen);

#endif
