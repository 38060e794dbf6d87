/*
 * watchdog.c - see watchdog.h.
 */
#include "watch/watchdog.h"

#include "admit/admission.h"
#include "base/atomics.h"
#include "admit/check.h"
#include "watch/service_thread.h"
#include "watch/history.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/options.h"
#include "base/procfs.h"
#include "watch/own_process.h"
#include "watch/victim.h"
#include "admit/headroom.h"
#include "admit/reclaim/trim.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/segment.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/text.h"
#include "account/thread_record.h"
#include "account/tracker.h"
#include "account/timeline.h"
#include "shared/decision_lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define HOLDS_MUCH (UINT64_C(256) << 20)
#define FAMILY_LEAST (UINT64_C(32) << 20) /* smaller processes are in no large family */
#define STACK_BYTES (256 * 1024)
#define MEMLOCK_LEAST (UINT64_C(8) << 20) /* a program with a lower limit may need all of it */

/* Nothing takes memory faster than the GB10's driver, up to 45 GiB/s from free pages. The pause between two checks is
 * the time in which it could take all memory above the floor. */
#define FASTEST_BYTES_PER_MS ((UINT64_C(45) << 30) / 1000)
#define SHORTEST_NS UINT64_C(5000000)
#define LONGEST_NS UINT64_C(100000000)
#define SECOND_NS UINT64_C(1000000000)

/* When SIGKILL follows SIGTERM (libsparkguard(7), SPARKGUARD_WATCHDOG): after TERM_TO_KILL_NS, or earlier in the cases
 * of LAST_MOMENT_NS and BRINK_NS. Nothing else shortens the time that a program has to save its data. */
#define TERM_TO_KILL_NS (5 * SECOND_NS)
#define LAST_MOMENT_NS UINT64_C(250000000) /* less time is left at the rate of a continuous fall */
#define SURELY_NS (5 * SECOND_NS)          /* longest wait for service threads; one may wait for a disk (identity.c) */
#define BRINK_NS UINT64_C(100000000)       /* since SIGTERM, if less than an eighth of the floor is left */

/* ---- checking and acting ----------------------------------------------------------------------------------------- */

/* When this process, as the victim, was warned and sent SIGTERM; 0: not since the machine was last above the floor.
 * chosen_ns: when it was last seen to be the victim. Kept when the thread ends for a fork and starts again. */
static struct {
    uint64_t warned_ns, term_ns, chosen_ns;
} watch SG_AT_FORK;

static void describe(struct sg_text *text, const char *what, const struct sg_danger *danger)
{
    sg_text_add(text, what);
    sg_text_add(text, ": ");
    sg_text_add_size(text, danger->left_bytes);
    sg_text_add(text, " left of ");
    sg_text_add_size(text, danger->reserve_bytes);
    sg_text_add(text, " kept, this process holds ");
    sg_text_add_size(text, danger->holds_bytes);
}

static void report(const char *what, const struct sg_danger *danger)
{
    char line[320], event[112];
    struct sg_text text = sg_text_begin(line, sizeof line), short_text = sg_text_begin(event, sizeof event);
    describe(&short_text, what, danger);
    sg_segment_add_event(event);
    sg_text_add(&text, "sparkguard: ");
    describe(&text, what, danger);
    sg_text_add(&text, " (SPARKGUARD_WATCHDOG)");
    if (sg_segment_is_shared()) {
        sg_text_add(&text, "; see sparkguard-report ");
        sg_text_add_number(&text, sg_sys_getpid());
    }
    sg_log_line(line);
}

/* SIGKILL from itself does not end the first process of a PID namespace; exit_group does. */
static void end_process(const struct sg_danger *danger)
{
    report("watchdog: ended", danger);
    (void)sg_syscall(SYS_kill, sg_sys_getpid(), SIGKILL, 0, 0, 0, 0);
    (void)sg_syscall(SYS_exit_group, 137, 0, 0, 0, 0, 0);
}

/* Whether the program's time after SIGTERM is over. */
static bool is_time_over(const struct sg_danger *danger, uint64_t now)
{
    uint64_t waited = now - watch.term_ns;
    return waited >= TERM_TO_KILL_NS || danger->zero_in_ns < LAST_MOMENT_NS ||
           (danger->left_bytes < danger->floor_bytes / 8 && waited >= BRINK_NS);
}

static void act(const struct sg_danger *danger, uint64_t now)
{
    if (!danger->is_below_floor || !danger->is_ours) {
        if (watch.term_ns != 0 && !danger->is_below_floor)
            sg_segment_add_event("watchdog: let live: above the floor again");
        if (!danger->is_below_floor)
            watch.warned_ns = watch.term_ns = 0;
        return;
    }
    /* This process is the victim again, after another one was for long. Its earlier SIGTERM no longer counts. */
    if (now - watch.chosen_ns >= TERM_TO_KILL_NS)
        watch.term_ns = 0;
    watch.chosen_ns = now;
    if (sg_options.watchdog == SG_WATCHDOG_WARN || sg_options.mode_observe) {
        if (watch.warned_ns == 0)
            report("watchdog: warned", danger);
        watch.warned_ns = now;
    } else if (watch.term_ns == 0) {
        watch.term_ns = now;
        report("watchdog: sent SIGTERM", danger);
        (void)sg_syscall(SYS_kill, sg_sys_getpid(), SIGTERM, 0, 0, 0, 0);
    } else if (is_time_over(danger, now)) {
        end_process(danger);
    }
}

/* Checks the machine once and acts. Returns the pause until the next check, in ns. Does not wait for a long decision (a
 * large scan) to release the lock. */
static uint64_t check_machine(void)
{
    struct sg_lock_state lock;
    struct sg_danger danger;
    if (!sg_lock_acquire_within(&sg_decision_lock, &lock, SHORTEST_NS))
        return SHORTEST_NS;
    sg_check_join();
    sg_victim_publish();
    sg_headroom_scan_if_due();
    sg_victim_refresh(&danger);
    sg_lock_release(&sg_decision_lock, &lock);
    uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
    act(&danger, now);
    uint64_t above = danger.left_bytes > danger.floor_bytes ? danger.left_bytes - danger.floor_bytes : 0;
    uint64_t pause = above / FASTEST_BYTES_PER_MS * 1000000;
    return pause < SHORTEST_NS ? SHORTEST_NS : pause > LONGEST_NS ? LONGEST_NS : pause;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static void lock_range(uintptr_t begin, uintptr_t end)
{
    if (begin < end)
        (void)sg_syscall(SYS_mlock, (long)begin, (long)(end - begin), 0, 0, 0, 0);
}

static void lock_memory(void)
{
    extern const char __ehdr_start[] __attribute__((visibility("hidden")));
    extern const char _end[] __attribute__((visibility("hidden")));
    struct rlimit limit = {0, 0};
    char here;
    if (sg_syscall(SYS_prlimit64, 0, RLIMIT_MEMLOCK, 0, (long)&limit, 0, 0) != 0 || limit.rlim_cur < MEMLOCK_LEAST)
        return;
    uintptr_t stack = ((uintptr_t)&here - STACK_BYTES / 4) & ~(uintptr_t)(SG_PAGE_MAX - 1);
    lock_range(stack, (uintptr_t)&here);
    lock_range((uintptr_t)&sg_self, (uintptr_t)(&sg_self + 1));
    uintptr_t library = (uintptr_t)__ehdr_start;
    uintptr_t mapping = (uintptr_t)&sg_segment_mapping; /* the rest after struct sg_segment is mostly unused: skip it */
    uintptr_t end = (uintptr_t)_end;
    uintptr_t used = mapping + sizeof(struct sg_segment), after = mapping + sizeof sg_segment_mapping;
    lock_range(library, mapping < end ? used : end);
    if (mapping < end)
        lock_range(after, end);
    const struct sg_timeline *line = sg_timeline_current(); /* each snapshot writes a sample */
    if (line != NULL)
        lock_range((uintptr_t)line, (uintptr_t)(line + 1));
}

static struct sg_service_thread watchdog;

static void work(void)
{
    uint64_t checked_ns = 0;
    lock_memory();
    sg_fetch_or(&sg_own->slot.flags, (uint32_t)SG_SLOT_WATCHED);
    while (sg_service_thread_is_wanted(&watchdog)) {
        uint32_t called = sg_load(&sg_entry_registry()->call);
        uint64_t pause = check_machine(), now = sg_clock_ns(CLOCK_MONOTONIC);
        const struct timespec timeout = {0, (long)pause};
        sg_trim_answer();
        if (now - checked_ns >= SECOND_NS) {
            checked_ns = now;
            sg_trim_show();
            if (sg_service_thread_is_alone())
                break;
        }
        if (!sg_service_thread_is_wanted(&watchdog))
            break;
        sg_service_thread_rest(&watchdog);
        (void)sg_sys_futex(&sg_entry_registry()->call, FUTEX_WAIT, called, &timeout);
        sg_service_thread_go_on(&watchdog);
    }
    sg_fetch_and(&sg_own->slot.flags, ~(uint32_t)SG_SLOT_WATCHED);
    sg_store(&sg_entry_own()->watched_ns, 0);
}

static struct sg_service_thread watchdog = {.name = "watchdog", .work = work, .wake = sg_peers_call};

/* This process and the children that it has forked, or those of its parent, may hold HOLDS_MUCH together: each may copy
 * all that it inherits, without any request. */
static bool is_large_family SG_AT_FORK;

/* Of MAP_NORESERVE memory, and of a file that is mapped to be copied, what is mapped counts: it becomes resident
 * without a call. */
static bool needs_watchdog(void)
{
    return is_large_family || sg_load_relaxed(&sg_tracker_maps.open_bytes) >= HOLDS_MUCH ||
           (sg_load_relaxed(&sg_own->slot.flags) & SG_SLOT_CUDA) != 0 ||
           sg_load_relaxed(&sg_own->slot.granted_bytes) >= HOLDS_MUCH;
}

void sg_watchdog_consider(void)
{
    sg_history_consider(); /* the history thread starts at the same places */
    if (SG_LIKELY(!needs_watchdog() || !sg_service_thread_is_absent(&watchdog)))
        return;
    if (sg_self.layers == 0 && sg_self.is_forking == 0)
        sg_timeline_begin();
    if (sg_options.watchdog != SG_WATCHDOG_OFF && sg_service_thread_is_due(&watchdog))
        sg_service_thread_begin(&watchdog);
}

void sg_watchdog_begin_child(void)
{
    if (!needs_watchdog() || sg_options.watchdog == SG_WATCHDOG_OFF || sg_self.layers != 0)
        return;
    sg_admission_join();
    sg_watchdog_consider();
}

/* Whether this process and its children, with the one that it is about to fork, may hold much. Small processes are not
 * asked: they fork fast. */
static void note_family(void)
{
    uint64_t mapped = sg_load_relaxed(&sg_own->slot.granted_bytes) + sg_load_relaxed(&sg_tracker_maps.open_bytes);
    is_large_family = false;
    if (mapped < FAMILY_LEAST || needs_watchdog())
        return;
    uint64_t anonymous = sg_procfs_anonymous_bytes(0);
    is_large_family = anonymous >= FAMILY_LEAST && anonymous * (sg_own_process_children() + 2u) >= HOLDS_MUCH;
}

void sg_watchdog_hold_helpers(void)
{
    note_family();
    sg_service_thread_hold();
    sg_service_thread_await_rest(&watchdog, 200);
    sg_history_await_rest();
}

void sg_watchdog_let_helpers(void)
{
    sg_service_thread_let();
}

void sg_watchdog_resume_helpers(void)
{
    if (sg_self.layers != 0 || sg_self.is_forking != 0 || !sg_segment_is_own())
        return;
    if (needs_watchdog() && sg_options.watchdog != SG_WATCHDOG_OFF)
        sg_service_thread_begin(&watchdog);
    sg_history_resume();
}

bool sg_watchdog_end_helpers(void)
{
    bool was_watched = sg_service_thread_stop(&watchdog, 200);
    return sg_history_stop() || was_watched;
}

void sg_watchdog_end_helpers_surely(void)
{
    (void)sg_watchdog_end_helpers();
    uint64_t until_ns = sg_clock_ns(CLOCK_MONOTONIC) + SURELY_NS;
    sg_service_thread_await(&watchdog, until_ns);
    sg_history_await(until_ns);
}

void sg_watchdog_atfork_child(void)
{
    sg_service_thread_atfork_child(&watchdog);
    watch.warned_ns = watch.term_ns = 0;
}
