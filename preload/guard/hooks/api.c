/*
 * api.c - the C API of include/sparkguard.h, and the functions for claims of sparkguard_abi.h.
 */
#include "sparkguard.h"

#include "admit/admission.h"
#include "admit/check.h"
#include "admit/claim.h"
#include "base/atomics.h"
#include "account/ledger.h"
#include "hooks/lifecycle.h"
#include "hooks/phases.h"
#include "admit/headroom.h"
#include "shared/segment.h"
#include "account/timeline.h"
#include "shared/decision_lock.h"

_Static_assert(SG_DOMAIN_COUNT == 5, "struct sparkguard_stats has a member for each domain");

static uint64_t live_of(enum sg_domain domain)
{
    return domain == SG_DOMAIN_HEAP ? sg_ledger_live_heap_bytes() : sg_load(&sg_own->domain[domain].granted_bytes);
}

static void fill_process(struct sparkguard_stats *stats)
{
    struct sparkguard_domain_stats *const domain[SG_DOMAIN_COUNT] = {
        [SG_DOMAIN_HEAP] = &stats->heap,       [SG_DOMAIN_MAPPED] = &stats->mapped, [SG_DOMAIN_PINNED] = &stats->pinned,
        [SG_DOMAIN_MANAGED] = &stats->managed, [SG_DOMAIN_DEVICE] = &stats->device,
    };
    for (unsigned i = 0; i < SG_DOMAIN_COUNT; i++) {
        uint64_t live = live_of((enum sg_domain)i), peak = sg_load(&sg_own->domain[i].recent_peak_bytes);
        *domain[i] = (struct sparkguard_domain_stats){live, peak > live ? peak : live};
        stats->live_bytes += live;
        stats->refused_count += sg_load(&sg_own->domain[i].refused_count);
        stats->refused_bytes += sg_load(&sg_own->domain[i].refused_bytes);
    }
    uint64_t peak = sg_phases_peak_bytes();
    stats->peak_bytes = peak > stats->live_bytes ? peak : stats->live_bytes;
}

static void read_machine(struct sg_machine *machine)
{
    struct sg_lock_state lock;
    sg_admission_join();
    sg_lock_acquire(&sg_decision_lock, &lock);
    sg_check_take_out_the_dead(NULL); /* what a killed process was promised is room */
    sg_headroom_refresh(0, false);
    *machine = sg_own->machine;
    if (!sg_headroom_last.snapshot.is_valid)
        machine->usable_bytes = machine->reserve_bytes = SG_UNKNOWN;
    sg_lock_release(&sg_decision_lock, &lock);
}

SG_EXPORT int(sparkguard_active)(void)
{
    return sg_lifecycle_enter() ? 1 : 0;
}

SG_EXPORT int(sparkguard_mark)(const char *name)
{
    struct sg_machine machine;
    if (!sg_lifecycle_enter())
        return -ENOSYS;
    if (name == NULL || name[0] == '\0')
        return -EINVAL;
    read_machine(&machine); /* adds a sample to the time line */
    sg_timeline_begin();
    sg_phases_begin(name);
    return 0;
}

SG_EXPORT int(sparkguard_stats)(struct sparkguard_stats *out)
{
    struct sg_machine machine;
    if (!sg_lifecycle_enter())
        return -ENOSYS;
    if (out == NULL || out->size < sizeof out->size)
        return -EINVAL;
    read_machine(&machine);
    struct sparkguard_stats stats = {
        .size = out->size < sizeof stats ? out->size : sizeof stats,
        .usable_bytes = machine.usable_bytes,
        .reserve_bytes = machine.reserve_bytes,
        .unified = sg_headroom_unified(),
        .thread_refused_count = sg_self.refused_count,
    };
    fill_process(&stats);
    memcpy(out, &stats, stats.size);
    return 0;
}

SG_EXPORT int(sparkguard_reset_peak)(void)
{
    if (!sg_lifecycle_enter())
        return -ENOSYS;
    sg_phases_reset_peak();
    return 0;
}

SG_EXPORT int(sparkguard_claim)(struct sg_claim_order *order)
{
    return sg_lifecycle_enter() ? sg_claim_try(order) : -ENOSYS;
}

SG_EXPORT int(sparkguard_raise_claim)(struct sg_claim_order *order)
{
    return sg_lifecycle_enter() ? sg_claim_raise(order) : -ENOSYS;
}
