/*
 * wait.c - see wait.h.
 */
#include "admit/wait.h"

#include "base/options.h"
#include "shared/peers.h"
#include "base/clock.h"
#include "account/thread_record.h"

#include <time.h>

#define STEP_NS UINT64_C(50000000)

uint64_t sg_wait_for_flight_ns(void)
{
    return (sg_self.layers & SG_LAYER_CUDA) != 0 ? 0 : SG_WAIT_OTHERS_NS;
}

bool sg_wait_for_change(struct sg_request *request, uint32_t seen)
{
    uint64_t now = sg_clock_ns(CLOCK_MONOTONIC), wait_ns = request->attempt.wait_ns, step = STEP_NS;
    if (request->kind != SG_REQUEST_SMALL && wait_ns < sg_options.wait_ns)
        wait_ns = sg_options.wait_ns;
    uint64_t givers_ns = sg_options.wait_ns != 0 ? sg_options.wait_ns : SG_WAIT_GIVERS_NS;
    if (request->attempt.is_giving && wait_ns < givers_ns)
        wait_ns = givers_ns;
    if (request->attempt.asked_ns == 0)
        request->attempt.asked_ns = now;
    uint64_t deadline = request->attempt.asked_ns + wait_ns;
    if (now >= deadline)
        return false;
    if (request->attempt.waits < 6)
        step = UINT64_C(1000000) << request->attempt.waits++;
    sg_peers_wait(seen, deadline - now < step ? deadline - now : step);
    return true;
}
