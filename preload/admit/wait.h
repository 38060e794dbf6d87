/*
 * wait.h - what is decided of a request, and how long one that does not fit yet waits for what may still change.
 *
 * Any thread; nothing is held while it sleeps.
 */
#ifndef SG_PRELOAD_ADMIT_WAIT_H
#define SG_PRELOAD_ADMIT_WAIT_H

#include "admit/admission.h"

#include <stdbool.h>
#include <stdint.h>

enum sg_verdict {
    SG_ADMIT,
    SG_REFUSE,
    SG_LOOK_AGAIN,        /* the driver's figure is out of date */
    SG_WAIT_FOR_TURN,     /* it fits without what those before us ask for */
    SG_WAIT_FOR_FLIGHT,   /* it fits without that and what is in flight */
    SG_WAIT_FOR_NEWS,     /* it fits without what others say they have promised: they are asked to look again */
    SG_WAIT_FOR_PRESSURE, /* somebody populates memory so that the kernel shrinks the driver's pools */
    SG_ASK_DRIVER,        /* it fits with what the driver's pools would give back under pressure */
    SG_WAIT_FOR_RETURNS,  /* it fits with what this process has given back and the kernel does not show yet */
};

/* Whether what is in flight may be of the very call that this thread is inside of: a driver's own call cannot wait for
 * it. */
bool sg_wait_may_be_own_flight(void);

/* Sleeps until something settles behind the epoch `seen` (peers.h) or the step is over: false if the request's time is
 * up. Steps grow from 1 to 50 ms. */
bool sg_wait_for_change(struct sg_request *request, uint32_t seen, enum sg_verdict verdict);

#endif
