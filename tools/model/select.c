/*
 * select.c - narrows a model to the scope. The sums of a job still cover the whole job.
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

static void drop_job(struct model *model, struct model_job *job)
{
    DL_DELETE(model->jobs, job);
    model->hidden_jobs++;
}

static void keep_named(struct model *model, const char *name, uint64_t hash)
{
    struct model_job *job, *next;
    DL_FOREACH_SAFE (model->jobs, job, next)
        if (strcmp(job->name, name) != 0 || (hash != 0 && job->hash != 0 && job->hash != hash))
            drop_job(model, job);
}

static void keep_since(struct model *model, int64_t since_ns)
{
    struct model_job *job, *next;
    DL_FOREACH_SAFE (model->jobs, job, next)
        if (job->running_count == 0 && job->last_seen_ns < since_ns)
            drop_job(model, job);
}

static void keep_last(struct model *model)
{
    while (model->jobs != NULL && model->jobs->next != NULL)
        drop_job(model, model->jobs); /* jobs are sorted by their start */
}

static void keep_present(struct model *model)
{
    struct model_job *job, *next;
    const struct model_job *last = NULL;
    DL_FOREACH (model->jobs, job)
        if (job->running_count == 0 && (last == NULL || job->last_seen_ns >= last->last_seen_ns))
            last = job;
    DL_FOREACH_SAFE (model->jobs, job, next)
        if (job->running_count == 0 && job != last)
            drop_job(model, job);
}

/* Returns whether a process has a PID: its number in this namespace if `is_here`, else that in its own. */
static bool has_pid(const struct model_process *process, uint32_t pid, bool is_here)
{
    return is_here ? model_process_number(process) == pid : process->pid == pid;
}

/* Returns the youngest process with the PID, over all jobs. */
static const struct model_process *find_youngest(const struct model *model, uint32_t pid, bool is_here)
{
    const struct model_process *youngest = NULL, *process;
    const struct model_job *job;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            if (has_pid(process, pid, is_here) && (youngest == NULL || process->started_ns >= youngest->started_ns))
                youngest = process;
    return youngest;
}

static void keep_pid(struct model *model, uint32_t pid, bool is_all)
{
    const struct model_process *youngest = find_youngest(model, pid, true);
    bool is_here = youngest != NULL; /* else the PID is the one that a container's messages name */
    if (!is_here)
        youngest = find_youngest(model, pid, false);
    uint64_t start_ticks = youngest != NULL ? youngest->start_ticks : 0;
    struct model_job *job, *next_job;
    struct model_process *process, *next;
    DL_FOREACH_SAFE (model->jobs, job, next_job) {
        DL_FOREACH_SAFE (job->processes, process, next) {
            bool is_one = has_pid(process, pid, is_here);
            if (is_one && (is_all || process->start_ticks == start_ticks))
                continue;
            model->hidden_namesakes += is_one;
            DL_DELETE(job->processes, process);
        }
        if (job->processes == NULL)
            drop_job(model, job);
    }
}

bool model_scope_is_narrow(const struct model_scope *scope)
{
    return scope->pid != 0 || scope->job != NULL || scope->is_last || scope->since_ns != 0;
}

void model_select(struct model *model, const struct model_scope *scope)
{
    if (scope->job != NULL)
        keep_named(model, scope->job, scope->job_hash);
    if (scope->since_ns != 0)
        keep_since(model, scope->since_ns);
    if (scope->is_last)
        keep_last(model);
    if (!model_scope_is_narrow(scope) && !scope->is_all)
        keep_present(model);
}

void model_select_process(struct model *model, const struct model_scope *scope)
{
    if (scope->pid != 0)
        keep_pid(model, scope->pid, scope->is_all);
}
