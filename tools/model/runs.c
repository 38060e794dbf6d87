/*
 * runs.c - tells the runs of a job apart. A name given by --job or SPARKGUARD_JOB may be used again.
 *
 * Two processes belong to one run if they name the same first process, or if their lifetimes overlap. The overlap joins
 * the ranks of a distributed job that were started by hand with one job name and one limit.
 */
#include "model/model.h"
#include "common/bytes.h"
#include "common/tool.h"

static int64_t lived_until_ns(const struct model_process *process)
{
    return process->state == SG_STATE_RUNNING ? INT64_MAX : process->last_seen_ns;
}

/* Returns the run of a process whose predecessors in the list have runs, or run_count if the process begins a run. */
static size_t run_of(const struct model_job *job, const struct model_process *process)
{
    const struct model_process *earlier;
    size_t run = job->run_count;
    DL_FOREACH (job->processes, earlier) {
        if (earlier == process)
            break;
        if (process->run_key != 0 && earlier->run_key == process->run_key)
            return earlier->run;
        if (lived_until_ns(earlier) >= process->started_ns)
            run = earlier->run;
    }
    return run;
}

static void add_to_run(struct model_run *run, const struct model_process *process)
{
    bool is_running = process->state == SG_STATE_RUNNING;
    run->process_count++;
    run->running_count += is_running;
    run->limit_bytes = bytes_min(run->limit_bytes, process->limit_bytes);
    run->refused_count = bytes_add(run->refused_count, process->refused_count);
    run->is_observing = run->is_observing || process->is_observing;
    run->peak_bytes = bytes_max(run->peak_bytes, model_job_peak(process));
    if (process->last_seen_ns > run->last_seen_ns)
        run->last_seen_ns = process->last_seen_ns;
}

void model_runs_fill(struct model_job *job)
{
    struct model_process *process;
    size_t count;
    DL_COUNT(job->processes, process, count);
    job->runs = tool_allocate(count, sizeof *job->runs);
    DL_FOREACH (job->processes, process) {
        process->run = run_of(job, process);
        if (process->run == job->run_count)
            job->runs[job->run_count++] = (struct model_run){
                .started_ns = process->started_ns, .first_pid = process->pid, .limit_bytes = SG_UNKNOWN};
        add_to_run(&job->runs[process->run], process);
    }
}
