/*
 * pressure.c - sparkguard_on_pressure() of include/sparkguard.h, and sparkguard_help() of sparkguard_abi.h: calls the
 * program's function on a thread of its own when another process's request cannot be met.
 *
 * The thread is an ordinary one of the C library, because the function is the program's: it may use thread-local
 * storage, allocate, and take locks of the program.
 */
#include "sparkguard.h"

#include "account/thread_record.h"
#include "admit/admission.h"
#include "admit/reclaim/trim.h"
#include "base/atomics.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "hooks/lifecycle.h"
#include "hooks/real.h"
#include "shared/givers.h"
#include "shared/own_entry.h"
#include "shared/segment.h"
#include "watch/giving.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

/* The entry may change when the registry's file is replaced; the thread looks for that so often. */
#define LOOK_NS UINT64_C(500000000)

/* A helper's function, and how long after it the last question counts as answered. Only the thread uses the latter. */
static uint64_t (*helper_function)(uint64_t, void *);
static uint64_t later_ns;

static void call_helper(uint64_t wanted_bytes, void *data)
{
    later_ns = helper_function(wanted_bytes, data);
}

static void *serve(void *ignored)
{
    (void)ignored;
    sg_self.is_giving = true;
    const struct sg_registry_entry *entry = sg_entry_own();
    uint32_t seen = sg_load(&entry->pressure_answered); /* others may have asked before this thread began */
    uint64_t answer_at_ns = 0;                          /* 0: all questions are answered */
    for (;;) {
        uint64_t bytes, now_ns = sg_clock_ns(CLOCK_MONOTONIC);
        if (entry != sg_entry_own()) { /* the questions of another entry have other numbers */
            entry = sg_entry_own();
            seen = sg_load(&entry->pressure_answered);
        }
        sg_giving_show();
        uint64_t left_ns = answer_at_ns > now_ns ? answer_at_ns - now_ns : 0;
        bool is_soon = answer_at_ns != 0 && left_ns < LOOK_NS;
        uint32_t asked = sg_giving_wait(seen, is_soon ? left_ns : LOOK_NS, &bytes);
        if (asked != seen) {
            seen = asked;
            (void)sg_trim_heap(bytes);
            sg_giving_call(bytes);
            answer_at_ns = sg_clock_ns(CLOCK_MONOTONIC) + later_ns;
        }
        if (answer_at_ns != 0 && sg_clock_ns(CLOCK_MONOTONIC) >= answer_at_ns) {
            sg_givers_answer(seen);
            answer_at_ns = 0;
        }
    }
    return NULL;
}

/* Blocks all signals in the new thread: those of the program are for its own threads. The thread never ends, so it is
 * not detached: each function of the C library that is imported here would cost each start a thousand instructions. */
static int make_thread(void)
{
    enum { MASK_BYTES = 8 }; /* of the kernel's signal set */
    pthread_t thread;
    const uint64_t all = UINT64_MAX;
    uint64_t before = 0;
    (void)sg_syscall(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&before, MASK_BYTES, 0, 0);
    int result = SG_REAL(pthread_create)(&thread, NULL, serve, NULL);
    (void)sg_syscall(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, MASK_BYTES, 0, 0);
    return -result;
}

SG_EXPORT int(sparkguard_on_pressure)(void (*callback)(uint64_t wanted_bytes, void *data), void *data)
{
    if (!sg_lifecycle_enter())
        return -ENOSYS;
    sg_admission_join();
    sg_giving_set(callback, data);
    if (callback == NULL || !sg_giving_begin_thread())
        return 0;
    int result = make_thread();
    if (result != 0) {
        sg_giving_note_no_thread();
        sg_giving_set(NULL, NULL);
    }
    return result;
}

SG_EXPORT int(sparkguard_help)(uint64_t (*function)(uint64_t wanted_bytes, void *data), void *data)
{
    helper_function = function;
    int result = (sparkguard_on_pressure)(call_helper, data);
    sg_entry_become_helper();
    if (result == 0)
        sg_segment_remove();
    return result;
}
