/*
 * phases.c - see phases.h.
 */
#include "hooks/phases.h"

#include "base/atomics.h"
#include "account/ledger.h"
#include "base/lock.h"
#include "shared/segment.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "account/thread_record.h"

#include <string.h>

static struct sg_lock lock SG_AT_FORK;
static uint64_t earlier_peak_bytes SG_AT_FORK; /* (atomic) highest peak of the phases that ended since the last reset */

/* Releases this thread's unused credit, which would count as held in the peak that begins. */
static void settle_credit(void)
{
    if (sg_self.record != NULL)
        sg_ledger_return_credit(sg_self.record, 0);
}

/* How many bytes of a name fit in `capacity` with a terminator, in whole UTF-8 characters. */
static size_t fitting_bytes(const char *name, size_t capacity)
{
    size_t length = strnlen(name, capacity);
    if (length < capacity)
        return length;
    length = capacity - 1;
    while (length > 0 && ((unsigned char)name[length] & 0xc0) == 0x80)
        length--;
    return length;
}

/* Ends the present phase, number `count`. The peak is written into the ring before phase_peak_bytes is reset: readers
 * take the higher of both, and so never miss the peak. */
static void end_present(uint64_t count)
{
    struct sg_phase *present = count != 0 ? &sg_own->phase[(count - 1) % SG_PHASE_CAPACITY] : NULL;
    if (present != NULL) {
        sg_store(&present->live_bytes, sg_ledger_live_bytes());
        sg_store(&present->peak_bytes, sg_load(&sg_own->phase_peak_bytes));
    }
    settle_credit();
    uint64_t peak = sg_ledger_turn_peak();
    sg_raise_to(&earlier_peak_bytes, peak);
    if (present != NULL)
        sg_raise_to(&present->peak_bytes, peak);
}

void sg_phases_begin(const char *name)
{
    struct sg_lock_state state;
    sg_lock_acquire(&lock, &state);
    uint64_t count = sg_load(&sg_own->phase_count);
    end_present(count);
    struct sg_phase *phase = &sg_own->phase[count % SG_PHASE_CAPACITY];
    sg_store_relaxed(&phase->sequence, 0);
    sg_fence(); /* readers must not see the new content under the old sequence number */
    memset((char *)phase + sizeof phase->sequence, 0, sizeof *phase - sizeof phase->sequence);
    phase->time_ns = (int64_t)sg_clock_ns(CLOCK_REALTIME);
    memcpy(phase->name, name, fitting_bytes(name, sizeof phase->name));
    sg_store_release(&phase->sequence, count + 1);
    sg_store(&sg_own->phase_count, count + 1);
    sg_lock_release(&lock, &state);
}

uint64_t sg_phases_peak_bytes(void)
{
    uint64_t earlier = sg_load(&earlier_peak_bytes), present = sg_load(&sg_own->phase_peak_bytes);
    return earlier > present ? earlier : present;
}

void sg_phases_reset_peak(void)
{
    struct sg_lock_state state;
    sg_lock_acquire(&lock, &state);
    settle_credit();
    sg_store(&earlier_peak_bytes, 0);
    (void)sg_ledger_turn_peak();
    sg_ledger_turn_domain_peaks();
    sg_lock_release(&lock, &state);
}

void sg_phases_atfork_child(void)
{
    sg_lock_reset(&lock);
    sg_store(&earlier_peak_bytes, 0);
}
