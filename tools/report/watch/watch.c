/*
 * watch.c - see watch.h: the samples, what is known of each process over time, and the loop.
 */
#define _GNU_SOURCE
#include "report/watch/watch.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "report/watch/terminal.h"
#include "common/text.h"

/* How long a process that has ended stays in the list, beyond one interval. */
#define LINGER_NS INT64_C(10000000000)

/* ---- samples ----------------------------------------------------------------------------------------------------- */

static struct watch_trace *find(const struct watch *watch, const struct watch_key *key)
{
    struct watch_trace *trace;
    HASH_FIND(hh, watch->traces, key, sizeof *key, trace);
    return trace;
}

static struct watch_key key_of_job(const struct report_job *job)
{
    struct watch_key key = {.pid = 0};
    snprintf(key.job, sizeof key.job, "%s", job->name);
    return key;
}

static struct watch_key key_of_process(const struct report_process *process)
{
    return (struct watch_key){.pid = process->pid, .start_ticks = process->start_ticks};
}

static void note(struct watch *watch, struct watch_key key, uint64_t live_bytes)
{
    struct watch_trace *trace = find(watch, &key);
    if (trace == NULL) {
        trace = report_allocate(1, sizeof *trace);
        trace->key = key;
        HASH_ADD(hh, watch->traces, key, sizeof trace->key, trace);
    }
    watch_trend_add(&trace->live, watch->sampled_ns, live_bytes);
    trace->seen_ns = watch->sampled_ns;
}

/* Puts those that are remembered into a new table; the order of the old one outlives it. */
static void forget(struct watch *watch, int64_t before_ns)
{
    struct watch_trace *trace = watch->traces, *next;
    HASH_CLEAR(hh, watch->traces);
    for (; trace != NULL; trace = next) {
        next = trace->hh.next;
        if (trace->seen_ns < before_ns)
            free(trace);
        else
            HASH_ADD(hh, watch->traces, key, sizeof trace->key, trace);
    }
}

void watch_sample(struct watch *watch)
{
    const struct report_job *job;
    const struct report_process *process;
    if (watch->report != NULL)
        report_free(watch->report);
    watch->report = report_build(watch->scope);
    watch->sampled_ns = terminal_clock_ns();
    const struct report_machine *machine = &watch->report->machine;
    watch_trend_add(&watch->usable, watch->sampled_ns, machine->usable_bytes);
    for (int i = 0; i < SG_DEVICE_ROOM; i++)
        watch_trend_add(&watch->device[i], watch->sampled_ns,
                        machine->device[i].is_known ? machine->device[i].live_bytes : SG_UNKNOWN);
    DL_FOREACH (watch->report->jobs, job) {
        if (job->running_count > 0)
            note(watch, key_of_job(job), job->live_bytes);
        DL_FOREACH (job->processes, process)
            if (process->state == SG_STATE_RUNNING)
                note(watch, key_of_process(process), process->live_bytes);
    }
    forget(watch, watch->sampled_ns - watch->interval_ns - LINGER_NS);
}

bool watch_is_shown(const struct watch *watch, const struct report_process *process)
{
    struct watch_key key = key_of_process(process);
    if (process->state == SG_STATE_RUNNING || watch->scope->pid != 0 || watch->scope->is_all)
        return true;
    const struct watch_trace *trace = find(watch, &key);
    return process->state != SG_STATE_REPLACED && trace != NULL && trace->seen_ns != watch->sampled_ns;
}

/* ---- figures ----------------------------------------------------------------------------------------------------- */

static int64_t rate_of(const struct watch *watch, struct watch_key key)
{
    const struct watch_trace *trace = find(watch, &key);
    bool is_running = trace != NULL && trace->seen_ns == watch->sampled_ns;
    return is_running ? watch_trend_rate(&trace->live) : WATCH_NO_RATE;
}

int64_t watch_process_rate(const struct watch *watch, const struct report_process *process)
{
    return process->state == SG_STATE_RUNNING ? rate_of(watch, key_of_process(process)) : WATCH_NO_RATE;
}

int64_t watch_job_rate(const struct watch *watch, const struct report_job *job)
{
    return rate_of(watch, key_of_job(job));
}

int64_t watch_machine_wall_ns(const struct watch *watch, uint64_t left_bytes)
{
    uint64_t usable_bytes = watch->report->machine.usable_bytes;
    int64_t rate = watch_trend_rate(&watch->usable);
    if (usable_bytes == SG_UNKNOWN || left_bytes == SG_UNKNOWN || rate == WATCH_NO_RATE)
        return WATCH_NEVER;
    return watch_time_to(report_less(usable_bytes, left_bytes), -rate);
}

static bool uses_device(const struct report_job *job, int device)
{
    const struct report_process *process;
    DL_FOREACH (job->processes, process)
        if (process->state == SG_STATE_RUNNING && process->device[device].is_known == 1 &&
            process->device[device].live_bytes > 0)
            return true;
    return false;
}

/* What programs without the guard hold of a device is not known: it may be met sooner. */
static int64_t device_wall_ns(const struct watch *watch, int device)
{
    const struct report_device *own = &watch->report->machine.device[device];
    if (watch->report->machine.unified != 0 || own->total_bytes == SG_UNKNOWN || own->reserve_bytes == SG_UNKNOWN)
        return WATCH_NEVER;
    uint64_t most_bytes = report_less(own->total_bytes, own->reserve_bytes);
    return watch_time_to(report_less(most_bytes, own->live_bytes), watch_trend_rate(&watch->device[device]));
}

static int64_t nearer(int64_t one_ns, int64_t other_ns)
{
    if (one_ns == WATCH_NEVER || other_ns == WATCH_NEVER)
        return one_ns == WATCH_NEVER ? other_ns : one_ns;
    return one_ns < other_ns ? one_ns : other_ns;
}

int64_t watch_wall_ns(const struct watch *watch, const struct report_job *job, int64_t rate)
{
    if (rate == WATCH_NO_RATE || rate <= 0)
        return WATCH_NEVER;
    int64_t wall_ns = watch_machine_wall_ns(watch, watch->report->machine.reserve_bytes);
    if (job->limit_bytes != SG_UNKNOWN)
        wall_ns =
            nearer(wall_ns, watch_time_to(report_less(job->limit_bytes, job->live_bytes), watch_job_rate(watch, job)));
    for (int i = 0; i < SG_DEVICE_ROOM; i++)
        if (uses_device(job, i))
            wall_ns = nearer(wall_ns, device_wall_ns(watch, i));
    return wall_ns;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

static void scroll(struct watch *watch, size_t up, size_t down)
{
    watch->scroll = report_less(watch->scroll, up) + down; /* watch_draw() knows where the list ends */
}

/* False where the key ends the watch. */
static bool act(struct watch *watch, int key)
{
    static const struct {
        int key;
        enum watch_sort sort;
    } sorts[] = {
        {'l', WATCH_BY_LIVE}, {'p', WATCH_BY_PEAK}, {'r', WATCH_BY_RATE}, {'x', WATCH_BY_REFUSED}, {'n', WATCH_BY_PID},
    };
    for (size_t i = 0; i < sizeof sorts / sizeof sorts[0]; i++)
        if (key == sorts[i].key)
            watch->sort = sorts[i].sort;
    if (key == 't')
        watch->is_tree = !watch->is_tree;
    else if (key == TERMINAL_UP || key == TERMINAL_PAGE_UP)
        scroll(watch, key == TERMINAL_UP ? 1 : watch->page, 0);
    else if (key == TERMINAL_DOWN || key == TERMINAL_PAGE_DOWN)
        scroll(watch, 0, key == TERMINAL_DOWN ? 1 : watch->page);
    else if (key == TERMINAL_HOME)
        watch->scroll = 0;
    else if (key == TERMINAL_END)
        watch->scroll = SIZE_MAX / 2;
    return key != 'q' && key != TERMINAL_GONE;
}

/* When the next sample is due; what was missed, while stopped or asleep, is not made up for. */
static int64_t next_time(const struct watch *watch, int64_t due_ns)
{
    int64_t now_ns = terminal_clock_ns(), next_ns = due_ns + watch->interval_ns;
    return next_ns > now_ns ? next_ns : now_ns + watch->interval_ns;
}

static void watch_on_screen(struct watch *watch)
{
    int64_t due_ns = next_time(watch, watch->sampled_ns);
    terminal_begin();
    for (bool is_on = true; is_on && !ferror(stdout);) {
        watch_draw(watch);
        int event = terminal_wait(due_ns);
        if (event == TERMINAL_NOTHING) {
            watch_sample(watch);
            due_ns = next_time(watch, due_ns);
        }
        is_on = act(watch, event);
    }
    terminal_end();
}

/* A pipe whose reader has gone away ends the wait: the next line ends us. */
static void wait_for_pipe(int64_t deadline_ns)
{
    int64_t left_ns;
    while ((left_ns = deadline_ns - terminal_clock_ns()) > 0) {
        struct pollfd reader = {.fd = STDOUT_FILENO, .events = 0};
        struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
        if (ppoll(&reader, 1, &left, NULL) > 0)
            return;
    }
}

static bool has_ended(const struct watch *watch)
{
    const struct report_job *job;
    size_t running = 0;
    DL_FOREACH (watch->report->jobs, job) {
        const struct report_process *process;
        DL_FOREACH (job->processes, process)
            running += process->state == SG_STATE_RUNNING;
    }
    return watch->scope->pid != 0 && running == 0;
}

static void watch_by_lines(struct watch *watch)
{
    int64_t due_ns = watch->sampled_ns;
    size_t said = 0;
    for (bool is_first = true;; is_first = false) {
        watch->report->said_count = report_min(said, watch->report->complaint_count);
        report_say_complaints(watch->report);
        said = report_max(said, watch->report->said_count);
        watch_put_line(watch, is_first);
        if (fflush(stdout) != 0 || has_ended(watch))
            return;
        due_ns = next_time(watch, due_ns);
        wait_for_pipe(due_ns);
        watch_sample(watch);
    }
}

/* What can be said at once: what was asked for is not there, or cannot be read. That nothing runs yet is worth watching. */
static bool has_nothing(const struct watch *watch)
{
    const struct report_scope *scope = watch->scope;
    bool is_asked_for = scope->pid != 0 || scope->job != NULL || scope->is_last;
    for (size_t i = 0; i < watch->report->directory_count; i++)
        if (report_directory_is_faulty(&watch->report->directories[i]))
            return true;
    return is_asked_for && watch->report->jobs == NULL;
}

struct report *report_watch(const struct report_scope *scope, int64_t interval_ns)
{
    struct watch watch = {.scope = scope, .interval_ns = interval_ns, .is_tree = true};
    watch_sample(&watch);
    if (has_nothing(&watch))
        return watch.report;
    if (terminal_can_draw())
        watch_on_screen(&watch);
    else
        watch_by_lines(&watch);
    forget(&watch, INT64_MAX);
    return watch.report;
}
