/*
 * helper.h - threads of the library's own in the program's process: the watchdog and the one that keeps the history.
 *
 * A helper is detached, has a small stack and all signals blocked, and nothing it does is counted as the program's. It ends
 * before fork, since Python warns about threads there, and may be begun again a second later. It is none of the program's
 * threads: where only helpers are left it has to end, so that the process does (sg_helper_is_alone).
 */
#ifndef SG_HELPER_H
#define SG_HELPER_H

#include "atomics.h"

#include <stdbool.h>
#include <stdint.h>

enum sg_helper_presence { SG_HELPER_ABSENT, SG_HELPER_STARTING, SG_HELPER_RUNNING, SG_HELPER_LEAVING };

struct sg_helper {
    const char *name;       /* of the job that it does */
    void (*work)(void);     /* to return soon after it is no longer wanted */
    void (*wake)(void);     /* makes it look at once whether it is wanted */
    uint32_t presence;      /* (atomic, futex) enum sg_helper_presence */
    uint32_t is_unwanted;   /* (atomic, futex) it is to end */
    uint64_t not_before_ns; /* (atomic) it has just been ended, or could not be started */
};

static inline bool sg_helper_is_absent(const struct sg_helper *helper)
{
    return sg_load_relaxed(&helper->presence) == SG_HELPER_ABSENT;
}

static inline bool sg_helper_is_wanted(const struct sg_helper *helper)
{
    return sg_load(&helper->is_unwanted) == 0;
}

/* Once, from the constructor: learns how much of a thread's stack static TLS takes, which glibc lays out there. It refuses only
 * what leaves less than 2 KiB, and that is too little. */
void sg_helper_prepare(void);

/* Whether one may be begun: not inside a hook or a fork, without a segment, or so soon again. */
bool sg_helper_is_due(const struct sg_helper *helper);

/* Begins it, if there is none. Leaves errno alone. An event says that a thread could not be made. */
void sg_helper_begin(struct sg_helper *helper);

/* Asks it to end, and waits until it does nothing any more, `most_ms` at most: what it does may block. False: there was none
 * for a second, so that the kernel counts none either. The thread's own end is not waited for: it takes the libc's locks and the
 * allocator's, which whoever forks may hold. */
bool sg_helper_stop(struct sg_helper *helper, unsigned most_ms);

/* In a helper: no thread of the program is left. Reads /proc. */
bool sg_helper_is_alone(void);

/* In a forked child there is none. */
void sg_helper_refork(struct sg_helper *helper);

#endif
