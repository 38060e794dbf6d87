/*
 * driver_pool.c - see driver_pool.h.
 */
#include "account/driver_pool.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "base/options.h"
#include "base/text.h"
#include "shared/decision_lock.h"
#include "shared/own_entry.h"

enum { POOLS_UNKNOWN, POOLS_KEEP, POOLS_NONE };

/* (atomic) this process's device memory is the machine's, and the driver lists pools */
static uint32_t is_counting;
static uint32_t pools; /* (atomic) POOLS_... */

/* Whether the driver's parameters show pools. Drivers without pools lack the parameter; its value is a mask of page
 * sizes. */
static bool is_listed(void)
{
    static char path[SG_PATH_CAPACITY + 64],
        parameters[8192]; /* static, under sg_decision_lock: too large for a stack */
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, sg_options.system_root);
    sg_text_add(&text, "/proc/driver/nvidia/params");
    return sg_text_read_file(path, parameters, sizeof parameters) > 0 &&
           sg_text_read_field(parameters, "EnableSystemMemoryPools:", 0) != 0;
}

bool sg_driver_pool_is_used(void)
{
    uint32_t known = sg_load_relaxed(&pools);
    if (known == POOLS_UNKNOWN) {
        known = is_listed() ? POOLS_KEEP : POOLS_NONE;
        sg_store_relaxed(&pools, known);
    }
    return known == POOLS_KEEP;
}

void sg_driver_pool_learn(void)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_decision_lock, &lock);
    sg_store_relaxed(&is_counting, sg_driver_pool_is_used() ? 1u : 0u);
    sg_lock_release(&sg_decision_lock, &lock);
}

void sg_driver_pool_note_given(uint64_t bytes)
{
    if (SG_UNLIKELY(sg_load_relaxed(&is_counting) != 0))
        sg_fetch_add(&sg_entry_registry()->pool_proven_bytes, bytes);
}

void sg_driver_pool_note_taken(uint64_t bytes)
{
    if (SG_UNLIKELY(sg_load_relaxed(&is_counting) != 0))
        (void)sg_sub_clamped(&sg_entry_registry()->pool_proven_bytes, bytes);
}

uint64_t sg_driver_pool_counted_bytes(void)
{
    return sg_load_relaxed(&pools) == POOLS_KEEP ? sg_load(&sg_entry_registry()->pool_proven_bytes) : 0;
}
