/*
 * watch.c - see watch.h: the loop.
 */
#include "report/watch/watch.h"

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "report/watch/terminal.h"
#include "common/bytes.h"
#include "common/tool.h"

/* Returns when the next sample is due. Samples missed while the program was stopped are skipped. */
static int64_t next_time(const struct watch *watch, int64_t due_ns)
{
    int64_t now_ns = tool_clock_ns(CLOCK_MONOTONIC), next_ns = due_ns + watch->interval_ns;
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
        is_on = watch_act(watch, event);
    }
    terminal_end();
}

/* Waits; a pipe closed by its reader ends the wait, and the next line ends the program. */
static void wait_for_pipe(int64_t deadline_ns)
{
    int64_t left_ns;
    while ((left_ns = deadline_ns - tool_clock_ns(CLOCK_MONOTONIC)) > 0) {
        struct pollfd reader = {.fd = STDOUT_FILENO, .events = 0};
        struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
        if (ppoll(&reader, 1, &left, NULL) > 0)
            return;
    }
}

static bool has_ended(const struct watch *watch)
{
    const struct model_job *job;
    size_t running = 0;
    DL_FOREACH (watch->model->jobs, job) {
        const struct model_process *process;
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
        watch->model->said_count = bytes_min(said, watch->model->complaint_count);
        model_say_complaints(watch->model);
        said = bytes_max(said, watch->model->said_count);
        watch_put_line(watch, is_first);
        if (fflush(stdout) != 0 || has_ended(watch))
            return;
        due_ns = next_time(watch, due_ns);
        wait_for_pipe(due_ns);
        watch_sample(watch);
    }
}

/* Returns whether the watch cannot start: the requested job or process does not exist or cannot be read. A machine on
 * which nothing runs yet can be watched. */
static bool has_nothing(const struct watch *watch)
{
    const struct model_scope *scope = watch->scope;
    bool is_asked_for = scope->pid != 0 || scope->job != NULL || scope->is_last;
    for (size_t i = 0; i < watch->model->directory_count; i++)
        if (model_directory_is_faulty(&watch->model->directories[i]))
            return true;
    return is_asked_for && watch->model->jobs == NULL;
}

struct model *report_watch(const struct model_scope *scope, int64_t interval_ns)
{
    struct watch watch = {.scope = scope, .interval_ns = interval_ns, .is_tree = true, .mark = tool_arena_mark()};
    watch_sample(&watch);
    if (has_nothing(&watch))
        return watch.model;
    if (terminal_can_draw()) {
        watch_look_back(&watch);
        watch_on_screen(&watch);
    } else {
        watch_by_lines(&watch);
    }
    watch_forget(&watch, INT64_MAX);
    free(watch.rows.key);
    return watch.model;
}
