/*
 * context_estimate.c - see context_estimate.h.
 */
#include "hooks/measure/context_estimate.h"

#include "account/ledger.h"
#include "admit/admission.h"
#include "base/pages.h"
#include "base/atomics.h"
#include "account/driver_pool.h"
#include "admit/headroom.h"
#include "admit/reclaim/pool_room.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/segment.h"
#include "shared/decision_lock.h"

#define MIB (UINT64_C(1) << 20)
#define FIRST_GUESS (512 * MIB)
#define LEAST_COST (8 * MIB)   /* a smaller fall is noise */
#define OTHERS_MAX (128 * MIB) /* requested between the snapshots, usually by the driver itself */

/* A context never takes more: 2.6 to 2.7 GiB were seen on a DGX Spark (llamastash#80). On smaller machines a share of
 * MemTotal bounds the estimate, because a wrong estimate must not refuse every context. */
#define MOST_COST (4096 * MIB)
#define MOST_PART 16 /* of MemTotal */

static uint64_t most_believed(void)
{
    uint64_t total = sg_own->machine.total_bytes; /* 0: no snapshot yet; SG_UNKNOWN: unreadable */
    uint64_t most = total != 0 && total / MOST_PART < MOST_COST ? total / MOST_PART : MOST_COST;
    return most > FIRST_GUESS ? most : FIRST_GUESS;
}

/* For the first context of a machine. A machine with less than 8 GiB is a virtual one or a test's. */
static uint64_t first_guess(void)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_decision_lock, &lock);
    if (sg_own->machine.total_bytes == 0) /* the first request of this process */
        sg_headroom_refresh(0, false);
    uint64_t total = sg_own->machine.total_bytes;
    sg_lock_release(&sg_decision_lock, &lock);
    return total != 0 && total / MOST_PART < FIRST_GUESS ? total / MOST_PART : FIRST_GUESS;
}

/* The registry may hold any value, so the estimate is bounded like a measurement. */
uint64_t sg_context_estimate_expected_bytes(void)
{
    sg_admission_join();
    uint64_t expected = sg_load(&sg_entry_registry()->context_bytes), most = most_believed();
    if (expected == 0)
        return first_guess();
    return expected < most ? expected : most;
}

struct sg_context_estimate_figures sg_context_estimate_read(uint64_t own_flight)
{
    struct sg_lock_state lock;
    struct sg_context_estimate_figures now;
    sg_lock_acquire(&sg_decision_lock, &lock);
    now.asked_bytes = sg_load(&sg_entry_registry()->asked_bytes);
    sg_headroom_scan();
    uint64_t granted = sg_load(&sg_own->slot.granted_bytes), promised = sg_ledger_promised_bytes();
    now.own_bytes = granted > promised ? granted - promised : 0;
    sg_headroom_look(true);
    now.promised_bytes = sg_headroom_last.peers.machine.held_bytes;
    now.available_bytes = sg_headroom_last.snapshot.at[0].headroom_bytes;
    now.has_pool = sg_driver_pool_is_used();
    now.pooled_bytes = sg_pool_room_most_bytes();
    now.is_quiet = sg_headroom_last.peers.machine.flight_bytes == 0 && sg_entry_own_flight(false) <= own_flight;
    sg_lock_release(&sg_decision_lock, &lock);
    return now;
}

/* Memory that the driver took by malloc, and promises that were touched meanwhile, are counted already. */
uint64_t sg_context_estimate_measure(const struct sg_context_estimate_figures *before,
                                     const struct sg_context_estimate_figures *after)
{
    if (!before->is_quiet || !after->is_quiet || after->asked_bytes - before->asked_bytes > OTHERS_MAX)
        return 0;
    uint64_t fall = sg_above(before->available_bytes, after->available_bytes);
    uint64_t booked =
        sg_above(after->own_bytes, before->own_bytes) + sg_above(before->promised_bytes, after->promised_bytes);
    uint64_t cost = sg_above(fall, booked), most = most_believed();
    cost = cost < most ? cost : most;
    return cost >= LEAST_COST ? cost : 0;
}

static uint64_t median(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t low = a < b ? a : b, high = a < b ? b : a;
    return c < low ? low : c > high ? high : c;
}

/*
 * The estimate from the last measurements, the newest first. Too high an estimate refuses contexts that would fit, and
 * then no measurement is made that could correct it. Too low an estimate lets a context take memory below the reserve,
 * and many contexts at once far below it. Therefore the median of the last three counts, with FIRST_GUESS in place of a
 * missing third. The very first measurement counts alone.
 */
static uint64_t expect(const uint64_t last[3])
{
    if (last[1] == 0)
        return last[0];
    return median(last[0], last[1], last[2] != 0 ? last[2] : FIRST_GUESS);
}

/* What the driver's pool served is in no fall: the cost is a lower bound then. Where the pool seems to be empty it may
 * still have had what is within the noise, so not less than half of what is expected is believed. */
static bool is_believed(uint64_t cost, const struct sg_context_estimate_figures *before)
{
    if (!before->has_pool)
        return true;
    uint64_t expected = sg_context_estimate_expected_bytes();
    return cost >= (before->pooled_bytes == 0 ? expected / 2 : expected);
}

/* If two processes store at the same time, one measurement may be lost; every stored value was measured. */
uint64_t sg_context_estimate_learn(const struct sg_context_estimate_figures *before,
                                   const struct sg_context_estimate_figures *after)
{
    uint64_t cost = sg_context_estimate_measure(before, after);
    if (cost == 0 || !is_believed(cost, before))
        return cost;
    struct sg_registry *registry = sg_entry_registry();
    uint64_t *words = registry->measured_context_bytes;
    uint64_t last[3] = {cost, sg_load(&words[0]), sg_load(&words[1])};
    sg_store(&words[0], last[0]);
    sg_store(&words[1], last[1]);
    sg_store(&registry->context_bytes, expect(last));
    return cost;
}
