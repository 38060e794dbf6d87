/*
 * service_thread.h - threads of the library's own in the program's process: the watchdog and the one that keeps the
 * history.
 *
 * The C library does not know of a helper (raw_thread.h), and nothing a helper does is counted as the program's. It
 * ends before fork, since Python warns about threads there, and before the process changes its credentials, which
 * the C library tells only the threads that it knows. It may be begun again a second later. It is none of the
 * program's threads: where only helpers are left it has to end, so that the process does (sg_service_thread_is_alone).
 */
#ifndef SG_PRELOAD_WATCH_SERVICE_THREAD_H
#define SG_PRELOAD_WATCH_SERVICE_THREAD_H

#include "base/atomics.h"
#include "admit/raw_thread.h"

#include <stdbool.h>
#include <stdint.h>

enum sg_service_thread_presence { SG_SERVICE_THREAD_ABSENT, SG_SERVICE_THREAD_RUNNING, SG_SERVICE_THREAD_LEAVING };

struct sg_service_thread {
    const char *name;       /* of the job that it does */
    void (*work)(void);     /* to return soon after it is no longer wanted */
    void (*wake)(void);     /* makes it look at once whether it is wanted */
    uint32_t presence;      /* (atomic) enum sg_service_thread_presence */
    uint32_t is_unwanted;   /* (atomic, futex) it is to end */
    uint64_t not_before_ns; /* (atomic) it has just been ended, or could not be started */
    uint32_t given_up;      /* (atomic) the thread that sg_service_thread_await has waited for in vain */
    struct sg_raw_thread thread;
};

static inline bool sg_service_thread_is_absent(const struct sg_service_thread *helper)
{
    return sg_load_relaxed(&helper->presence) == SG_SERVICE_THREAD_ABSENT;
}

static inline bool sg_service_thread_is_wanted(const struct sg_service_thread *helper)
{
    return sg_load(&helper->is_unwanted) == 0;
}

/* Whether one may be begun: not inside a hook or a fork, without a segment, or so soon again. */
bool sg_service_thread_is_due(const struct sg_service_thread *helper);

/* Begins it, if there is none. An event says that a thread could not be made. */
void sg_service_thread_begin(struct sg_service_thread *helper);

/* Asks it to end, and waits until the kernel counts it no more, `most_ms` at most: what it does may block. False:
 * there was none. */
bool sg_service_thread_stop(struct sg_service_thread *helper, unsigned most_ms);

/* After sg_service_thread_stop: waits for its end until then, but for each thread only once in vain. */
void sg_service_thread_await(struct sg_service_thread *helper, uint64_t until_ns);

/* In a helper: no thread of the program is left. Reads /proc. */
bool sg_service_thread_is_alone(void);

/* In a forked child there is none. */
void sg_service_thread_refork(struct sg_service_thread *helper);

#endif
