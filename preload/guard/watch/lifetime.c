/*
 * lifetime.c - see lifetime.h.
 */
#include "watch/lifetime.h"

#include "account/timeline.h"
#include "base/atomics.h"
#include "base/clock.h"
#include "base/options.h"
#include "base/syscall.h"
#include "shared/job.h"
#include "shared/registry.h"
#include "shared/segment.h"

#include <sys/resource.h>

/* Whether the record is to be removed: the process leaves no evidence, and it exited or is a forked child that execs.
 * No record of a sweep is. A program that replaced itself keeps its record; a child that was forked only to exec
 * another program does not. */
static bool leaves_nothing(enum sg_state state)
{
    return !sg_segment_is_evidence() && !sg_options.is_record_kept &&
           (state == SG_STATE_EXITED || sg_own->slot.inherited_bytes + sg_own->inherited_shared_bytes != 0);
}

/* Records the largest resident size. The launcher compares it with the largest resident size of all its children. */
static void note_resident(void)
{
    struct rusage usage = {0};
    if (sg_syscall(SYS_getrusage, RUSAGE_SELF, (long)&usage, 0, 0, 0, 0) != 0)
        return;
    sg_own->max_resident_mib = (uint32_t)((usage.ru_maxrss + 1023) / 1024);
}

void sg_lifetime_end(enum sg_state state, int exit_code)
{
    if (!sg_segment_is_own())
        return;
    if (leaves_nothing(state))
        sg_job_leave_peak();
    else
        sg_job_take_left_peak();
    sg_own->ended_time_ns = (int64_t)sg_clock_ns(CLOCK_REALTIME);
    note_resident();
    sg_own->exit_code = exit_code;
    sg_own->signal = 0;
    sg_store_release(&sg_own->slot.state, (uint32_t)state);
    if (state == SG_STATE_EXITED)
        sg_registry_leave();
    else
        sg_registry_note_replaced();
    if (leaves_nothing(state)) {
        sg_timeline_drop(); /* before the segment, by which readers find the time line */
        sg_segment_remove();
    } else {
        sg_segment_write_through();
    }
}

void sg_lifetime_resume(void)
{
    if (!sg_segment_is_own())
        return;
    sg_own->ended_time_ns = 0;
    sg_own->signal = -1;
    sg_store_release(&sg_own->slot.state, (uint32_t)SG_STATE_RUNNING);
    sg_registry_come_back();
    sg_segment_write_through();
    sg_segment_restore();
}
