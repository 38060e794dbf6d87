/*
 * service_thread.c - see service_thread.h.
 */
#include "watch/service_thread.h"

#include "base/procfs.h"
#include "shared/segment.h"
#include "base/syscall.h"
#include "base/text.h"
#include "account/thread_record.h"

#include <errno.h>
#include <time.h>

#define SECOND_NS UINT64_C(1000000000)

static uint32_t running; /* (atomic) helpers, from before each is made until it has done its work */

static void end(struct sg_service_thread *helper, uint64_t pause_ns)
{
    sg_fetch_sub(&running, 1u);
    sg_store(&helper->is_unwanted, 0u);
    sg_store(&helper->not_before_ns, sg_clock_ns(CLOCK_MONOTONIC) + pause_ns);
    sg_store(&helper->presence, (uint32_t)SG_SERVICE_THREAD_ABSENT);
}

static void run(void *argument)
{
    struct sg_service_thread *helper = argument;
    sg_self = (struct sg_thread){.purse = &sg_thread_no_purse};
    (void)sg_thread_pause(); /* nothing that happens here is the program's */
    (void)sg_syscall(SYS_prctl, 15 /* PR_SET_NAME */, (long)"sparkguard", 0, 0, 0, 0);
    helper->work();
    end(helper, SECOND_NS);
}

bool sg_service_thread_is_due(const struct sg_service_thread *helper)
{
    return sg_self.layers == 0 && sg_self.is_forking == 0 && sg_segment_is_own() &&
           sg_clock_ns(CLOCK_MONOTONIC) >= sg_load(&helper->not_before_ns);
}

static void say_that_there_is_none(const struct sg_service_thread *helper)
{
    char event[64];
    struct sg_text text = sg_text_begin(event, sizeof event);
    sg_text_add(&text, "no ");
    sg_text_add(&text, helper->name);
    sg_text_add(&text, ": a thread could not be made");
    sg_segment_add_event(event);
}

void sg_service_thread_begin(struct sg_service_thread *helper)
{
    uint32_t absent = SG_SERVICE_THREAD_ABSENT;
    if (sg_load(&helper->thread.is_running) != 0 || !sg_cas_u32(&helper->presence, &absent, SG_SERVICE_THREAD_RUNNING))
        return; /* the last one has not quite ended */
    sg_fetch_add(&running, 1u);
    if (sg_raw_thread_begin(&helper->thread, run, helper))
        return;
    say_that_there_is_none(helper);
    end(helper, 10 * SECOND_NS);
}

bool sg_service_thread_stop(struct sg_service_thread *helper, unsigned most_ms)
{
    uint32_t is_running = SG_SERVICE_THREAD_RUNNING;
    if (sg_cas_u32(&helper->presence, &is_running, SG_SERVICE_THREAD_LEAVING)) {
        sg_store(&helper->is_unwanted, 1u); /* or too late: then the next one ends as it begins */
        helper->wake();
    }
    return sg_raw_thread_wait(&helper->thread, most_ms);
}

void sg_service_thread_await(struct sg_service_thread *helper, uint64_t until_ns)
{
    uint64_t now_ns = sg_clock_ns(CLOCK_MONOTONIC);
    uint32_t thread = sg_load(&helper->thread.known);
    if (thread == 0 || thread == sg_load(&helper->given_up))
        return;
    (void)sg_raw_thread_wait(&helper->thread, until_ns > now_ns ? (unsigned)((until_ns - now_ns) / 1000000) : 0);
    if (sg_load(&helper->thread.is_running) != 0)
        sg_store(&helper->given_up, thread);
}

bool sg_service_thread_is_alone(void)
{
    return sg_procfs_is_left_to(sg_load(&running));
}

void sg_service_thread_refork(struct sg_service_thread *helper)
{
    sg_store(&running, 0u);
    sg_store(&helper->presence, (uint32_t)SG_SERVICE_THREAD_ABSENT);
    sg_store(&helper->is_unwanted, 0u);
    sg_store(&helper->not_before_ns, 0u);
    sg_raw_thread_refork(&helper->thread);
}
