/*
 * deferred_frees.c - see deferred_frees.h.
 */
#include "admit/deferred_frees.h"

#include "base/atomics.h"
#include "account/driver_pool.h"
#include "admit/headroom.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "shared/decision_lock.h"

#define RETURN_NS UINT64_C(3000000000)
#define RETURN_BYTES (UINT64_C(32) << 20)

static struct {
    uint64_t last_ns;     /* (atomic) when this process last freed much; 0: no free is outstanding */
    uint64_t bytes;       /* sum of frees, each less than RETURN_NS after the one before */
    uint64_t free_before; /* MemFree and MemAvailable before the first of them */
    uint64_t available_before;
} late;

void sg_deferred_frees_atfork_child(void)
{
    sg_store_relaxed(&late.last_ns, UINT64_C(0));
}

void sg_deferred_frees_note_free(uint64_t bytes)
{
    struct sg_lock_state lock;
    if (bytes < RETURN_BYTES)
        return;
    sg_lock_acquire(&sg_decision_lock, &lock);
    uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
    uint64_t last_ns = sg_load_relaxed(&late.last_ns);
    if (last_ns == 0 || now - last_ns >= RETURN_NS) {
        late.bytes = 0;
        late.free_before = sg_headroom_measure_free();
        late.available_before = sg_headroom_available_with(late.free_before);
    }
    sg_store_relaxed(&late.last_ns, now != 0 ? now : 1);
    late.bytes += bytes;
    sg_lock_release(&sg_decision_lock, &lock);
}

void sg_deferred_frees_note_freed(uint64_t bytes)
{
    struct sg_lock_state lock;
    if (bytes < RETURN_BYTES)
        return;
    sg_lock_acquire(&sg_decision_lock, &lock);
    if (sg_load_relaxed(&late.last_ns) != 0 &&
        sg_headroom_measure_free() >= late.free_before + late.bytes - late.bytes / 8)
        sg_store_relaxed(&late.last_ns, UINT64_C(0)); /* 7/8 of the bytes have come back */
    sg_lock_release(&sg_decision_lock, &lock);
}

void sg_deferred_frees_note_taken(void)
{
    if (sg_load_relaxed(&late.last_ns) != 0)
        sg_store_relaxed(&late.last_ns, UINT64_C(0));
}

uint64_t sg_deferred_frees_due_bytes(void)
{
    uint64_t last_ns = sg_load_relaxed(&late.last_ns); /* sg_deferred_frees_note_taken may run beside this */
    if (last_ns == 0 || sg_clock_ns(CLOCK_MONOTONIC) - last_ns >= RETURN_NS || sg_driver_pool_is_used())
        return 0;
    uint64_t available = sg_headroom_last.snapshot.at[0].headroom_bytes, before = late.available_before;
    uint64_t shown = available > before ? available - before : 0;
    return late.bytes > shown ? late.bytes - shown : 0;
}
