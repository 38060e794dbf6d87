/*
 * service_thread.h - service threads: the library's own threads in the program's process, the watchdog and the history
 * thread.
 *
 * The C library does not know of them (raw_thread.h), and the library counts nothing that they do as the program's. A
 * service thread rests during a fork. It ends before the process changes its credentials, because the C library changes
 * those only of the threads that it knows, and may start again a second later. When only service threads are left, they
 * must end, or the process would not (sg_service_thread_is_alone).
 *
 * Any thread may call these functions, except where noted.
 */
#ifndef SG_PRELOAD_WATCH_SERVICE_THREAD_H
#define SG_PRELOAD_WATCH_SERVICE_THREAD_H

#include "base/atomics.h"
#include "admit/reclaim/raw_thread.h"

#include <stdbool.h>
#include <stdint.h>

enum sg_service_thread_presence { SG_SERVICE_THREAD_ABSENT, SG_SERVICE_THREAD_RUNNING, SG_SERVICE_THREAD_LEAVING };

struct sg_service_thread {
    const char *name;       /* for the event that the thread could not be made */
    void (*work)(void);     /* runs on the thread; returns soon after sg_service_thread_is_wanted is false */
    void (*wake)(void);     /* makes `work` check at once whether it is still wanted */
    uint32_t presence;      /* (atomic) enum sg_service_thread_presence */
    uint32_t is_unwanted;   /* (atomic, futex) the thread is asked to end */
    uint64_t not_before_ns; /* (atomic, CLOCK_MONOTONIC) no start before: it has just ended, or could not be made */
    uint32_t is_working;    /* (atomic, futex) it is neither at rest nor ended: no fork should happen now */
    uint32_t given_up;      /* (atomic) id of a thread whose end sg_service_thread_await did not see in time */
    struct sg_raw_thread thread;
};

static inline bool sg_service_thread_is_absent(const struct sg_service_thread *service)
{
    return sg_load_relaxed(&service->presence) == SG_SERVICE_THREAD_ABSENT;
}

static inline bool sg_service_thread_is_wanted(const struct sg_service_thread *service)
{
    return sg_load(&service->is_unwanted) == 0;
}

/* Whether the thread may be started now: not inside a hook or a fork, not without a segment, and not before
 * not_before_ns. */
bool sg_service_thread_is_due(const struct sg_service_thread *service);

/* Starts the thread, if there is none. On failure, adds an event to the record; the next start may be 10 s later. */
void sg_service_thread_begin(struct sg_service_thread *service);

/* Asks the thread to end, and waits until the kernel has removed it, `timeout_ms` at most, because its work may block.
 * False: there was no thread. */
bool sg_service_thread_stop(struct sg_service_thread *service, unsigned timeout_ms);

/* After sg_service_thread_stop: waits for the thread's end until `until_ns` (CLOCK_MONOTONIC). A thread that did not
 * end in time once is not waited for again. */
void sg_service_thread_await(struct sg_service_thread *service, uint64_t until_ns);

/* On the service thread, around a wait of its work: a fork may happen meanwhile. go_on waits while one is under way, a
 * second at most. */
void sg_service_thread_rest(struct sg_service_thread *service);
void sg_service_thread_go_on(struct sg_service_thread *service);

/* Around a fork: from hold to let, service threads at rest stay there. await_rest waits until the thread is at rest or
 * has ended, `timeout_ms` at most. So a child inherits nothing half done of it, and no file that it has open. */
void sg_service_thread_hold(void);
void sg_service_thread_await_rest(struct sg_service_thread *service, unsigned timeout_ms);
void sg_service_thread_let(void);

/* The number of service threads now. Any thread. */
uint32_t sg_service_thread_count(void);

/* On a service thread: whether no thread of the program is left. Reads /proc. */
bool sg_service_thread_is_alone(void);

/* In a forked child there is no service thread. */
void sg_service_thread_atfork_child(struct sg_service_thread *service);

#endif
