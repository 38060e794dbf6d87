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

/* How long the request may wait for this verdict, from its first wait on. SPARKGUARD_WAIT may extend it for large
 * requests. */
static uint64_t max_wait_ns(const struct sg_request *request, enum sg_verdict verdict)
{
    uint64_t limit_ns = 0;
    if (verdict == SG_WAIT_FOR_FLIGHT || verdict == SG_WAIT_FOR_RETURNS)
        limit_ns = sg_wait_may_be_own_flight() ? 0 : WAIT_FOR_OTHERS_NS;
    else if (verdict == SG_WAIT_FOR_PRESSURE)
        limit_ns = SG_PRESSURE_LONGEST_NS + WAIT_FOR_OTHERS_NS;
    else if (verdict == SG_WAIT_FOR_TURN)
        limit_ns = WAIT_FOR_OTHERS_NS;
    else if (verdict == SG_WAIT_FOR_NEWS)
        limit_ns = WAIT_FOR_NEWS_NS;
    return request->is_small || limit_ns > sg_options.wait_ns ? limit_ns : sg_options.wait_ns;
}

bool sg_wait_for_change(struct sg_request *request, uint32_t seen, enum sg_verdict verdict)
{
    uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
    if (request->asked_ns == 0)
        request->asked_ns = now;
    uint64_t deadline = request->asked_ns + max_wait_ns(request, verdict), step = WAIT_STEP_NS;
    if (now >= deadline)
        return false;
    if (request->waits < 6)
        step = UINT64_C(1000000) << request->waits++;
    if (verdict == SG_WAIT_FOR_NEWS)
        sg_peers_call();
    sg_peers_wait(seen, deadline - now < step ? deadline - now : step);
    return true;
}
