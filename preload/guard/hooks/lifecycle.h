/*
 * lifecycle.h - set-up, fork and end of the process.
 */
#ifndef SG_PRELOAD_HOOKS_LIFECYCLE_H
#define SG_PRELOAD_HOOKS_LIFECYCLE_H

#include "base/atomics.h"
#include "base/options.h"
#include "account/thread_record.h"

#include <stdbool.h>
#include <unistd.h>

/* Starts the bookkeeping of a forked child anew, as the handlers of fork do, in a child made by a raw clone(2). */
void sg_lifecycle_raw_fork(void);

/* Reads the options, once there is an environment. Where every call passes through (sanitizer.h), the library is
 * disabled. */
void sg_lifecycle_read_options(void);

/* Begins a slow path; every slow path calls this first. Returns false if the call must pass through unjudged and
 * uncounted. Any thread. */
static inline bool sg_lifecycle_enter(void)
{
    if (SG_UNLIKELY(!sg_options_are_read()))
        sg_lifecycle_read_options(); /* the constructor of another library runs before ours */
    if (SG_UNLIKELY(sg_options.is_disabled))
        return false;
    if (SG_UNLIKELY(sg_load_relaxed(&sg_wipe.is_armed) == 0 && !sg_thread_arm()))
        sg_lifecycle_raw_fork();
    return true;
}

/* Notes that the process ends by itself, with this exit code. Only the first call of a process has an effect. */
void sg_lifecycle_end(int exit_code);

/* Notes the status of quick_exit. This library's own quick_exit handler ends the record with it, after the program's
 * handlers. */
void sg_lifecycle_note_quick_exit(int status);

#endif
