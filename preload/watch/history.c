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
#include "base/syscall.h"
#include "base/text.h"

#include <linux/futex.h>

#define MS_NS UINT64_C(1000000)
#define FIRST_NS (1000 * MS_NS)  /* most processes are short, and saved once, at their end */
#define PERIOD_NS (4000 * MS_NS) /* leaves a second for the disk */
#define LOOK_NS (1000 * MS_NS)   /* at whether the program is still there */
#define SLOW_NS (500 * MS_NS)    /* a disk that takes longer is not waited for the next time */
#define PATIENCE_MS 100          /* of a process that ends */
#define FORK_PATIENCE_MS 50

static struct {
    uint32_t bell;           /* (atomic, futex) changes when the helper is to look */
    uint32_t asked;          /* (atomic) how often somebody wanted the record saved at once */
    uint32_t answered;       /* (atomic, futex) and how often it was */
    uint64_t busy_ns;        /* (atomic) since when it has been saving, 0: it is not */
    uint64_t due_ns;         /* the next regular save; outlives a helper that made way for a fork */
    uint32_t has_complained; /* (atomic) the record says why it could not be kept: once */
} history;

static uint32_t is_impossible; /* (atomic) the kernel has no close_range: nor will it have for a child */

static void ring(void)
{
    sg_fetch_add(&history.bell, 1u);
    (void)sg_sys_futex(&history.bell, FUTEX_WAKE_PRIVATE, 1, NULL);
}

static void complain(const char *reason)
{
    char event[112];
    struct sg_text text = sg_text_begin(event, sizeof event);
    if (sg_exchange(&history.has_complained, 1u) != 0)
        return;
    sg_text_add(&text, "history: not kept");
    sg_text_add(&text, reason);
    sg_segment_add_event(event);
}

/* A thread that waits for the disk keeps all memory of a process that was killed: where memory is short, none may. */
static bool is_memory_short(void)
{
    const struct sg_machine *machine = &sg_own->machine;
    return machine->time_ns != 0 && machine->usable_bytes < machine->reserve_bytes;
}

static void save(bool is_durable)
{
    uint32_t asked = sg_load(&history.asked);
    sg_store(&history.busy_ns, sg_clock_ns(CLOCK_MONOTONIC));
    long result = sg_history_save(is_durable);
    sg_store(&history.busy_ns, 0u);
    if (result != 0)
        complain(sg_directory_error_text(result));
    sg_store(&history.answered, asked);
    (void)sg_sys_futex(&history.answered, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL);
}

static struct sg_service_thread keeper;

static void wait_for_bell(uint32_t heard, uint64_t now)
{
    uint64_t left = history.due_ns > now ? history.due_ns - now : LOOK_NS; /* it is due, and memory is short */
    const struct timespec timeout = {0, (long)(left < LOOK_NS ? left : LOOK_NS - 1)};
    if (sg_load(&history.asked) == sg_load(&history.answered) && sg_service_thread_is_wanted(&keeper))
        (void)sg_sys_futex(&history.bell, FUTEX_WAIT_PRIVATE, heard, &timeout);
}

static void work(void)
{
    /* In one step, so that no file of the program's is kept open by us, not even for a moment. */
    long result = sg_syscall(SYS_close_range, 0, UINT32_MAX, 2 /* CLOSE_RANGE_UNSHARE, Linux 5.9 */, 0, 0, 0);
    if (result != 0) {
        sg_store(&is_impossible, 1u);
        complain(": the kernel has no close_range");
    }
    bool is_slow = false;
    if (history.due_ns == 0)
        history.due_ns = sg_clock_ns(CLOCK_MONOTONIC) + FIRST_NS;
    while (result == 0 && sg_service_thread_is_wanted(&keeper)) {
        sg_store(&sg_own->seen_time_ns, (int64_t)sg_clock_ns(CLOCK_REALTIME));
        sg_segment_write_through();
        uint32_t heard = sg_load(&history.bell);
        uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
        bool is_due = now >= history.due_ns && !is_memory_short();
        if (is_due || sg_load(&history.asked) != sg_load(&history.answered)) {
            save(is_due && !is_slow);
            uint64_t took = sg_clock_ns(CLOCK_MONOTONIC) - now;
            is_slow = took >= SLOW_NS && !is_slow;
            if (is_due)
                history.due_ns = now + (PERIOD_NS > 10 * took ? PERIOD_NS : 10 * took);
        }
        wait_for_bell(heard, now);
        if (sg_service_thread_is_alone())
            break;
    }
}

static struct sg_service_thread keeper = {.name = "history", .work = work, .wake = ring};

static bool is_wanted(void)
{
    if (sg_options.is_history_off || sg_load_relaxed(&is_impossible) != 0 || !sg_segment_is_evidence())
        return false;
    if (sg_options.history[0] == '\0' && sg_load_relaxed(&history.has_complained) == 0)
        complain(": HOME is not set");
    return sg_options.history[0] != '\0';
}

void sg_history_consider(void)
{
    if (SG_UNLIKELY(sg_service_thread_is_absent(&keeper) && is_wanted() && sg_service_thread_is_due(&keeper)))
        sg_service_thread_begin(&keeper);
}

void sg_history_end(bool may_begin)
{
    const struct timespec step = {0, (long)(10 * MS_NS)};
    if (!sg_segment_is_own() || !is_wanted())
        return;
    if (may_begin)
        sg_service_thread_begin(&keeper);
    uint64_t busy_ns = sg_load(&history.busy_ns), begun_ns = sg_clock_ns(CLOCK_MONOTONIC);
    bool is_stuck = busy_ns != 0 && begun_ns - busy_ns >= PATIENCE_MS * MS_NS;
    if (is_stuck || sg_load(&keeper.presence) != SG_SERVICE_THREAD_RUNNING)
        return;
    uint32_t asked = sg_fetch_add(&history.asked, 1u) + 1;
    ring();
    for (uint32_t answered = sg_load(&history.answered);
         (int32_t)(answered - asked) < 0 && sg_clock_ns(CLOCK_MONOTONIC) - begun_ns < PATIENCE_MS * MS_NS;
         answered = sg_load(&history.answered))
        (void)sg_sys_futex(&history.answered, FUTEX_WAIT_PRIVATE, answered, &step);
}

void sg_history_await(uint64_t until_ns)
{
    sg_service_thread_await(&keeper, until_ns);
}

bool sg_history_stop(void)
{
    uint64_t busy_ns = sg_load(&history.busy_ns);
    bool is_stuck = busy_ns != 0 && sg_clock_ns(CLOCK_MONOTONIC) - busy_ns >= FORK_PATIENCE_MS * MS_NS;
    return sg_service_thread_stop(&keeper, is_stuck ? 0 : FORK_PATIENCE_MS);
}

void sg_history_refork(void)
{
    sg_service_thread_refork(&keeper);
    history = (__typeof__(history)){0};
    sg_history_forget();
}
