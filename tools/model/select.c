/*
 * select.c - narrows a model to what was asked for. Sums stay those of the whole job.
 *
 *   nothing   jobs that run now, and the job that ended last
 *   --all     everything that the directory holds
 *   --job     one job
 *   --since   jobs that something is known of from a time on
 *   --last    of those left, the job that started last
 *   PID       of those left, one process: the youngest of that pid with all the programs that it became (the same
 *             start_ticks); with --all also earlier processes that had the number
 */
#include <string.h>

#include "model/model.h"

static void drop_job(struct report *report, struct report_job *job)
{
    DL_DELETE(report->jobs, job);
    report_job_free(job);
    report->hidden_jobs++;
}

static void keep_named(struct report *report, const char *name)
{
    struct report_job *job, *next;
    DL_FOREACH_SAFE (report->jobs, job, next)
        if (strcmp(job->name, name) != 0)
            drop_job(report, job);
}

static void keep_since(struct report *report, int64_t since_ns)
{
    struct report_job *job, *next;
    DL_FOREACH_SAFE (report->jobs, job, next)
        if (job->running_count == 0 && job->last_seen_ns < since_ns)
            drop_job(report, job);
}

static void keep_last(struct report *report)
{
    while (report->jobs != NULL && report->jobs->next != NULL)
        drop_job(report, report->jobs); /* jobs are sorted by their start */
}

static void keep_present(struct report *report)
{
    struct report_job *job, *next;
    const struct report_job *last = NULL;
    DL_FOREACH (report->jobs, job)
        if (job->running_count == 0 && (last == NULL || job->last_seen_ns >= last->last_seen_ns))
            last = job;
    DL_FOREACH_SAFE (report->jobs, job, next)
        if (job->running_count == 0 && job != last)
            drop_job(report, job);
}

/* The youngest process with the pid, over all jobs. */
static const struct report_process *find_youngest(const struct report *report, uint32_t pid)
{
    const struct report_process *youngest = NULL, *process;
    const struct report_job *job;
    DL_FOREACH (report->jobs, job)
        DL_FOREACH (job->processes, process)
            if (process->pid == pid && (youngest == NULL || process->started_ns >= youngest->started_ns))
                youngest = process;
    return youngest;
}

static void keep_pid(struct report *report, uint32_t pid, bool is_all)
{
    const struct report_process *youngest = find_youngest(report, pid);
    uint64_t start_ticks = youngest != NULL ? youngest->start_ticks : 0;
    struct report_job *job, *next_job;
    struct report_process *process, *next;
    DL_FOREACH_SAFE (report->jobs, job, next_job) {
        DL_FOREACH_SAFE (job->processes, process, next) {
            if (process->pid == pid && (is_all || process->start_ticks == start_ticks))
                continue;
            report->hidden_namesakes += process->pid == pid;
            DL_DELETE(job->processes, process);
            report_process_free(process);
        }
        if (job->processes == NULL)
            drop_job(report, job);
    }
}

bool report_scope_is_narrow(const struct report_scope *scope)
{
    return scope->pid != 0 || scope->job != NULL || scope->is_last || scope->since_ns != 0;
}

void report_select(struct report *report, const struct report_scope *scope)
{
    if (scope->job != NULL)
        keep_named(report, scope->job);
    if (scope->since_ns != 0)
        keep_since(report, scope->since_ns);
    if (scope->is_last)
        keep_last(report);
    if (scope->pid != 0)
        keep_pid(report, scope->pid, scope->is_all);
    else if (!report_scope_is_narrow(scope) && !scope->is_all)
        keep_present(report);
}
