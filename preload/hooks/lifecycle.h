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

/* In a child made by a raw clone(2): begins a new life, as the handlers of fork do. */
void sg_lifecycle_raw_fork(void);

/* Every slow path begins here. False: pass through, nothing is judged or counted. */
static inline bool sg_lifecycle_enter(void)
{
    if (SG_UNLIKELY(!sg_options_are_read()))
        sg_options_read(environ); /* another library's constructor is ahead of ours */
    if (SG_UNLIKELY(sg_options.is_disabled))
        return false;
    if (SG_UNLIKELY(sg_load_relaxed(&sg_wipe.is_armed) == 0 && !sg_thread_arm()))
        sg_lifecycle_raw_fork();
    return true;
}

/* The process is about to end by itself. Once; later calls do nothing. */
void sg_lifecycle_end(int exit_code);

/* quick_exit was called with `status`: the end comes behind its handlers. */
void sg_lifecycle_note_quick_exit(int status);

#endif
