/*
 * wait.c - see wait.h.
 */
#include "admit/wait.h"

#include "admit/driver_pages.h"
#include "base/options.h"
#include "shared/peers.h"
#include "base/syscall.h"
#include "account/thread_record.h"

#include <time.h>

#define WAIT_FOR_OTHERS_NS UINT64_C(3000000000)
#define WAIT_FOR_NEWS_NS UINT64_C(300000000)
#define WAIT_STEP_NS UINT64_C(50000000)

bool sg_wait_may_be_own_flight(void)
{
    return (sg_self.layers & SG_LAYER_CUDA) != 0;
}

/* Until when the request may wait, from the time it was asked for. */
static uint64_t patience_of(const struct sg_request *request, enum sg_verdict verdict)
{
    uint64_t patience = 0;
    if (verdict == SG_WAIT_FOR_FLIGHT || verdict == SG_WAIT_FOR_RETURNS)
        patience = sg_wait_may_be_own_flight() ? 0 : WAIT_FOR_OTHERS_NS;
    else if (verdict == SG_WAIT_FOR_PRESSURE)
        patience = SG_PRESSURE_LONGEST_NS + WAIT_FOR_OTHERS_NS;
    else if (verdict == SG_WAIT_FOR_TURN)
        patience = WAIT_FOR_OTHERS_NS;
    else if (verdict == SG_WAIT_FOR_NEWS)
        patience = WAIT_FOR_NEWS_NS;
    return request->is_small || patience > sg_options.wait_ns ? patience : sg_options.wait_ns;
}

bool sg_wait_for_change(struct sg_request *request, uint32_t seen, enum sg_verdict verdict)
{
    uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
    if (request->asked_ns == 0)
        request->asked_ns = now;
    uint64_t deadline = request->asked_ns + patience_of(request, verdict), step = WAIT_STEP_NS;
    if (now >= deadline)
        return false;
    if (request->waits < 6)
        step = UINT64_C(1000000) << request->waits++;
    if (verdict == SG_WAIT_FOR_NEWS)
        sg_peers_call();
    sg_peers_wait(seen, deadline - now < step ? deadline - now : step);
    return true;
}
