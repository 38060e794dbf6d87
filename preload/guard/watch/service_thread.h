/*
 * service_thread.h - service threads: the library's own threads in the program's process, the watchdog and the history
 * thread.
 *
 * The C library does not know of them (raw_thread.h), and the library counts nothing that they do as the program's. A
 * service thread ends before fork, because Python warns about threads there. It also ends before the process changes
 * its credentials, because the C library changes those only of the threads that it knows. It may start again a second
 * later. When only service threads are left, they must end, or the process would not (sg_service_thread_is_alone).
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

/* On a service thread: whether no thread of the program is left. Reads /proc. */
bool sg_service_thread_is_alone(void);

/* In a forked child there is no service thread. */
void sg_service_thread_atfork_child(struct sg_service_thread *service);

#endif
