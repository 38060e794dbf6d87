/*
 * service_thread.c - see service_thread.h.
 */
#include "watch/service_thread.h"

#include "watch/own_process.h"
#include "shared/segment.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/text.h"
#include "account/thread_record.h"

#include <errno.h>
#include <linux/futex.h>
#include <time.h>

#define SECOND_NS UINT64_C(1000000000)

/* (atomic) service threads, each from before it is made until its work has returned */
static uint32_t running SG_AT_FORK;

/* (atomic, futex) threads of the program that are forking (sg_service_thread_hold) */
static uint32_t forking SG_AT_FORK;

static void end(struct sg_service_thread *service, uint64_t pause_ns)
{
    sg_fetch_sub(&running, 1u);
    sg_store(&service->is_unwanted, 0u);
    sg_store(&service->not_before_ns, sg_clock_ns(CLOCK_MONOTONIC) + pause_ns);
    sg_store(&service->presence, (uint32_t)SG_SERVICE_THREAD_ABSENT);
}

static void run(void *argument)
{
    struct sg_service_thread *service = argument;
    sg_self = (struct sg_thread){.credit = &sg_thread_no_credit};
    sg_thread_count_nothing();
    (void)sg_syscall(SYS_prctl, 15 /* PR_SET_NAME */, (long)"sparkguard", 0, 0, 0, 0);
    sg_service_thread_go_on(service);
    service->work();
    sg_service_thread_rest(service);
    end(service, SECOND_NS);
}

bool sg_service_thread_is_due(const struct sg_service_thread *service)
{
    return sg_self.layers == 0 && sg_self.is_forking == 0 && sg_segment_is_own() &&
           sg_clock_ns(CLOCK_MONOTONIC) >= sg_load(&service->not_before_ns);
}

static void record_failure(const struct sg_service_thread *service)
{
    char event[64];
    struct sg_text text = sg_text_begin(event, sizeof event);
    sg_text_add(&text, "no ");
    sg_text_add(&text, service->name);
    sg_text_add(&text, ": a thread could not be made");
    sg_segment_add_event(event);
}

void sg_service_thread_begin(struct sg_service_thread *service)
{
    uint32_t absent = SG_SERVICE_THREAD_ABSENT;
    if (sg_load(&service->thread.is_running) != 0 ||
        !sg_cas_u32(&service->presence, &absent, SG_SERVICE_THREAD_RUNNING))
        return; /* it is running, or the last one has not quite ended */
    sg_fetch_add(&running, 1u);
    if (sg_raw_thread_begin(&service->thread, run, service))
        return;
    record_failure(service);
    end(service, 10 * SECOND_NS);
}

bool sg_service_thread_stop(struct sg_service_thread *service, unsigned timeout_ms)
{
    uint32_t is_running = SG_SERVICE_THREAD_RUNNING;
    if (sg_cas_u32(&service->presence, &is_running, SG_SERVICE_THREAD_LEAVING)) {
        sg_store(&service->is_unwanted, 1u); /* if it is ending by itself already, the next one ends at its start */
        service->wake();
    }
    return sg_raw_thread_wait(&service->thread, timeout_ms);
}

void sg_service_thread_await(struct sg_service_thread *service, uint64_t until_ns)
{
    uint64_t now_ns = sg_clock_ns(CLOCK_MONOTONIC);
    uint32_t thread = sg_load(&service->thread.tid);
    if (thread == 0 || thread == sg_load(&service->given_up))
        return;
    (void)sg_raw_thread_wait(&service->thread, until_ns > now_ns ? (unsigned)((until_ns - now_ns) / 1000000) : 0);
    if (sg_load(&service->thread.is_running) != 0)
        sg_store(&service->given_up, thread);
}

/* The two words pair with those of sg_service_thread_hold and sg_service_thread_await_rest: each side stores its own
 * before it reads the other's, so either the thread sees the fork or the fork sees the thread. */
void sg_service_thread_rest(struct sg_service_thread *service)
{
    sg_store(&service->is_working, 0u);
    if (sg_load(&forking) != 0)
        (void)sg_sys_futex(&service->is_working, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL);
}

void sg_service_thread_go_on(struct sg_service_thread *service)
{
    const struct timespec step = {0, 50000000};
    for (int i = 0;; i++) {
        sg_store(&service->is_working, 1u);
        uint32_t seen = sg_load(&forking);
        if (seen == 0 || i == 20) /* the C library may wait long in a fork, for a lock of the program */
            return;
        sg_service_thread_rest(service);
        (void)sg_sys_futex(&forking, FUTEX_WAIT_PRIVATE, seen, &step);
    }
}

void sg_service_thread_hold(void)
{
    sg_fetch_add(&forking, 1u);
}

void sg_service_thread_await_rest(struct sg_service_thread *service, unsigned timeout_ms)
{
    const struct timespec step = {0, 1000000};
    uint64_t until_ns = sg_clock_ns(CLOCK_MONOTONIC) + timeout_ms * UINT64_C(1000000);
    while (sg_load(&service->is_working) != 0 && sg_clock_ns(CLOCK_MONOTONIC) < until_ns)
        (void)sg_sys_futex(&service->is_working, FUTEX_WAIT_PRIVATE, 1, &step);
}

void sg_service_thread_let(void)
{
    if (sg_fetch_sub(&forking, 1u) == 1)
        (void)sg_sys_futex(&forking, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL);
}

uint32_t sg_service_thread_count(void)
{
    return sg_load(&running);
}

bool sg_service_thread_is_alone(void)
{
    return sg_own_process_is_left_to(sg_load(&running));
}

void sg_service_thread_atfork_child(struct sg_service_thread *service)
{
    sg_store(&running, 0u);
    sg_store(&forking, 0u);
    sg_store(&service->presence, (uint32_t)SG_SERVICE_THREAD_ABSENT);
    sg_store(&service->is_unwanted, 0u);
    sg_store(&service->is_working, 0u);
    sg_store(&service->not_before_ns, 0u);
    sg_raw_thread_atfork_child(&service->thread);
}
