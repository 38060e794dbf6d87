/*
 * history.c - see history.h.
 */
#include "watch/history.h"

#include "base/atomics.h"
#include "base/directory.h"
#include "watch/service_thread.h"
#include "watch/history_file.h"
#include "base/options.h"
#include "shared/segment.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/text.h"

#include <linux/futex.h>

#define MS_NS UINT64_C(1000000)
#define FIRST_NS (1000 * MS_NS)  /* most processes are short, and are saved once, at their end */
#define PERIOD_NS (4000 * MS_NS) /* copies are at most 5 s old, with a second for the disk */
#define LOOK_NS (1000 * MS_NS)   /* how often to check whether the program's threads have ended */
#define SLOW_NS (500 * MS_NS)    /* if a save takes longer, the next one does not wait for the disk */
#define PATIENCE_MS 100          /* longest wait at the process's end */
#define FORK_PATIENCE_MS 50      /* longest wait before a fork */

static struct {
    uint32_t wake_count;           /* (atomic, futex) changes to wake the history thread */
    uint32_t asked;                /* (atomic) number of requests to save the record at once */
    uint32_t answered;             /* (atomic, futex) number of requests that are done */
    uint64_t busy_ns;              /* (atomic) when the save under way began; 0: none */
    uint64_t due_ns;               /* the next regular save; kept when the thread ends for a fork and starts again */
    uint32_t has_recorded_failure; /* (atomic) the event that says why there is no history was added; once only */
} history SG_AT_FORK;

static uint32_t is_impossible; /* (atomic) the kernel has no close_range; kept in a child */

static void wake(void)
{
    sg_fetch_add(&history.wake_count, 1u);
    (void)sg_sys_futex(&history.wake_count, FUTEX_WAKE_PRIVATE, 1, NULL);
}

static void record_failure(const char *reason)
{
    char event[112];
    struct sg_text text = sg_text_begin(event, sizeof event);
    if (sg_exchange(&history.has_recorded_failure, 1u) != 0)
        return;
    sg_text_add(&text, "history: not kept");
    sg_text_add(&text, reason);
    sg_segment_add_event(event);
}

/* A thread that waits for the disk keeps all memory of a killed process from being freed. So there is no regular save
 * while memory is short. Old figures say nothing: a process without a watchdog and without requests takes no others. */
static bool is_memory_short(void)
{
    const struct sg_machine *machine = &sg_own->machine;
    int64_t age_ns = (int64_t)sg_clock_ns(CLOCK_REALTIME) - machine->time_ns;
    return age_ns >= 0 && age_ns < (int64_t)PERIOD_NS && machine->usable_bytes < machine->reserve_bytes;
}

static void save(bool is_durable)
{
    uint32_t asked = sg_load(&history.asked);
    sg_store(&history.busy_ns, sg_clock_ns(CLOCK_MONOTONIC));
    long result = sg_history_save(is_durable);
    sg_store(&history.busy_ns, 0u);
    if (result != 0)
        record_failure(sg_directory_error_text(result));
    sg_store(&history.answered, asked);
    (void)sg_sys_futex(&history.answered, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL);
}

static struct sg_service_thread service;

static void wait_for_work(uint32_t seen, uint64_t now)
{
    uint64_t left = history.due_ns > now ? history.due_ns - now : LOOK_NS; /* due, but postponed: memory is short */
    const struct timespec timeout = {0, (long)(left < LOOK_NS ? left : LOOK_NS - 1)};
    if (sg_load(&history.asked) != sg_load(&history.answered) || !sg_service_thread_is_wanted(&service))
        return;
    sg_service_thread_rest(&service);
    (void)sg_sys_futex(&history.wake_count, FUTEX_WAIT_PRIVATE, seen, &timeout);
    sg_service_thread_go_on(&service);
}

static void work(void)
{
    /* Unshares the table of descriptors and closes all in one step, so that this thread never keeps a file of the
     * program open. */
    long result = sg_syscall(SYS_close_range, 0, UINT32_MAX, 2 /* CLOSE_RANGE_UNSHARE, Linux 5.9 */, 0, 0, 0);
    if (result != 0) {
        sg_store(&is_impossible, 1u);
        record_failure(": the kernel has no close_range");
    }
    bool is_slow = false;
    if (history.due_ns == 0)
        history.due_ns = sg_clock_ns(CLOCK_MONOTONIC) + FIRST_NS;
    while (result == 0 && sg_service_thread_is_wanted(&service)) {
        sg_store(&sg_own->seen_time_ns, (int64_t)sg_clock_ns(CLOCK_REALTIME));
        sg_segment_write_through();
        uint32_t seen = sg_load(&history.wake_count);
        uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
        bool is_due = now >= history.due_ns && !is_memory_short();
        if (is_due || sg_load(&history.asked) != sg_load(&history.answered)) {
            save(is_due && !is_slow);
            uint64_t elapsed = sg_clock_ns(CLOCK_MONOTONIC) - now;
            is_slow = elapsed >= SLOW_NS && !is_slow;
            if (is_due)
                history.due_ns = now + (PERIOD_NS > 10 * elapsed ? PERIOD_NS : 10 * elapsed);
        }
        wait_for_work(seen, now);
        if (sg_service_thread_is_alone())
            break;
    }
}

static struct sg_service_thread service = {.name = "history", .work = work, .wake = wake};

static bool is_wanted(void)
{
    if (sg_options.is_history_off || sg_load_relaxed(&is_impossible) != 0 || !sg_segment_is_evidence())
        return false;
    if (sg_options.history[0] == '\0' && sg_load_relaxed(&history.has_recorded_failure) == 0)
        record_failure(": HOME is not set");
    return sg_options.history[0] != '\0';
}

void sg_history_consider(void)
{
    if (SG_UNLIKELY(sg_service_thread_is_absent(&service) && is_wanted() && sg_service_thread_is_due(&service)))
        sg_service_thread_begin(&service);
}

void sg_history_ask(void)
{
    if (!sg_segment_is_own() || !is_wanted() || sg_load(&service.presence) != SG_SERVICE_THREAD_RUNNING)
        return;
    sg_fetch_add(&history.asked, 1u);
    wake();
}

void sg_history_end(bool may_begin)
{
    const struct timespec step = {0, (long)(10 * MS_NS)};
    if (!sg_segment_is_own() || !is_wanted())
        return;
    if (may_begin)
        sg_service_thread_begin(&service);
    uint64_t busy_ns = sg_load(&history.busy_ns), begun_ns = sg_clock_ns(CLOCK_MONOTONIC);
    bool is_stuck = busy_ns != 0 && begun_ns - busy_ns >= PATIENCE_MS * MS_NS;
    if (is_stuck || sg_load(&service.presence) != SG_SERVICE_THREAD_RUNNING)
        return;
    uint32_t asked = sg_fetch_add(&history.asked, 1u) + 1;
    wake();
    for (uint32_t answered = sg_load(&history.answered);
         (int32_t)(answered - asked) < 0 && sg_clock_ns(CLOCK_MONOTONIC) - begun_ns < PATIENCE_MS * MS_NS;
         answered = sg_load(&history.answered))
        (void)sg_sys_futex(&history.answered, FUTEX_WAIT_PRIVATE, answered, &step);
}

void sg_history_await(uint64_t until_ns)
{
    sg_service_thread_await(&service, until_ns);
}

/* How long a fork waits for this thread: not at all for one that waits for a slow disk. */
static unsigned patience_ms(void)
{
    uint64_t busy_ns = sg_load(&history.busy_ns);
    bool is_stuck = busy_ns != 0 && sg_clock_ns(CLOCK_MONOTONIC) - busy_ns >= FORK_PATIENCE_MS * MS_NS;
    return is_stuck ? 0 : FORK_PATIENCE_MS;
}

bool sg_history_stop(void)
{
    return sg_service_thread_stop(&service, patience_ms());
}

void sg_history_await_rest(void)
{
    sg_service_thread_await_rest(&service, patience_ms());
}

void sg_history_resume(void)
{
    if (is_wanted())
        sg_service_thread_begin(&service);
}

void sg_history_atfork_child(void)
{
    sg_service_thread_atfork_child(&service);
    history = (__typeof__(history)){0};
    sg_history_forget();
}
