/*
 * wait.h - the verdicts on a request, and how long a request that does not fit yet waits for each possible change.
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
    SG_LOOK_AGAIN,        /* the driver's figure or the caller's ledger is out of date */
    SG_WAIT_FOR_TURN,     /* fits without the requests queued before it */
    SG_WAIT_FOR_FLIGHT,   /* fits without those and without the requests in flight */
    SG_WAIT_FOR_NEWS,     /* fits without the promises that others publish: their watchdogs are asked to scan */
    SG_WAIT_FOR_PRESSURE, /* another process populates memory so that the kernel shrinks the driver's pools */
    SG_ASK_DRIVER,        /* fits with what the driver's pools would give back under pressure */
    SG_WAIT_FOR_RETURNS,  /* fits with bytes that this process has freed and the kernel does not show yet */
};

/* Whether the requests in flight may belong to the call that this thread is inside of. A request of the driver itself
 * must not wait for them: it would wait for its own caller. */
bool sg_wait_may_be_own_flight(void);

/* Sleeps until the epoch is no longer `seen` (peers.h), or for one step. Steps grow from 1 to 50 ms. False: the time
 * that this verdict allows the request is over, and nothing was waited for. */
bool sg_wait_for_change(struct sg_request *request, uint32_t seen, enum sg_verdict verdict);

#endif
