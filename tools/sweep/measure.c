/*
 * measure.c - measures the machine and the job with the functions of sparkguard-report.
 *
 * The memory that a run needed is the job's peak plus unannounced memory, as the guard counted them. Predictions use
 * only this figure. The loss of headroom during the run also includes memory of other programs. It gives the headroom
 * that was left; if it is much larger than the need, another program took memory. A discrete GPU's memory is not the
 * machine's memory, so it is excluded from the need.
 */
#include <inttypes.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/procfs.h"
#include "sweep/sweep.h"
#include "sweep/fits/need.h"
#include "common/bytes.h"
#include "common/text.h"

/* A machine gains and loses this much without other programs: written-back file pages, page tables, daemons. */
#define OTHERS_LEAST (UINT64_C(256) << 20)

struct sweep_sample sweep_take_sample(const char *job, bool is_container)
{
    const struct model_scope scope = {.job = job, .wants_containers = is_container};
    struct model *model = model_build(&scope);
    struct sweep_sample sample = {fits_headroom_of(&model->machine), model->machine.ordinary_bytes,
                                  model->machine.reserve_bytes, 0};
    if (job != NULL && model->jobs != NULL)
        sample.held_bytes = model->jobs->live_bytes;
    return sample;
}

int64_t sweep_newest_start(const char *job)
{
    const struct model_scope scope = {.job = job, .wants_containers = true};
    const struct model *model = model_build(&scope);
    const struct model_job *each;
    const struct model_process *process;
    int64_t newest_ns = 0;
    DL_FOREACH (model->jobs, each)
        DL_FOREACH (each->processes, process)
            newest_ns = process->started_ns > newest_ns ? process->started_ns : newest_ns;
    return newest_ns;
}

/* The processes of one run, of all that the sweep's job has on record. */
struct sum {
    size_t process_count;
    uint64_t refused_count;
    uint64_t peak_bytes;    /* peak of the largest process */
    uint64_t machine_bytes; /* the part of the peak that is the machine's memory */
    uint64_t unaccounted_bytes;
    bool is_watchdogs, is_unguarded;
    const struct model_refusal *refusal; /* the last */
};

/* Returns whether a process is of this run. The processes of a container do not know the client's number: those are
 * meant that have begun since the run before. */
static bool is_of_run(const struct launch *launch, const struct model_process *process, const int64_t *newest_before_ns)
{
    return newest_before_ns != NULL ? process->started_ns > *newest_before_ns : launch_is_of_run(launch, process);
}

static void add_process(struct sum *sum, const struct model_process *process, int unified)
{
    uint64_t device = unified == 0 ? process->domain[SG_DOMAIN_DEVICE].at_peak_bytes : 0;
    sum->process_count++;
    sum->refused_count = bytes_add(sum->refused_count, process->refused_count);
    sum->peak_bytes = bytes_max(sum->peak_bytes, process->peak_bytes);
    sum->machine_bytes = bytes_max(sum->machine_bytes, bytes_less(process->peak_bytes, device));
    if (process->unaccounted_bytes != SG_UNKNOWN)
        sum->unaccounted_bytes = bytes_add(sum->unaccounted_bytes, process->unaccounted_bytes);
    sum->is_watchdogs = sum->is_watchdogs || process->watchdog != MODEL_NO_WATCHDOG;
    sum->is_unguarded = sum->is_unguarded || !process->is_guarding;
    for (size_t i = 0; i < process->refusal_count; i++)
        if (sum->refusal == NULL || process->refusals[i].time_ns >= sum->refusal->time_ns)
            sum->refusal = &process->refusals[i];
}

/* Containers of one job's name have a job each. */
static struct sum sum_run(const struct model *model, const struct launch *launch, const int64_t *newest_before_ns)
{
    struct sum sum = {.refusal = NULL};
    const struct model_job *each;
    const struct model_process *process;
    DL_FOREACH (model->jobs, each)
        DL_FOREACH (each->processes, process)
            if (is_of_run(launch, process, newest_before_ns))
                add_process(&sum, process, model->machine.unified);
    return sum;
}

static char *refusal_text(const struct sum *sum, int wait_status)
{
    const char *went_on = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0 ? "; it went on" : "";
    if (sum->refusal == NULL)
        return text_format("refused%s", went_on);
    return text_format("%s of %s refused (%s)%s", sum->refusal->call, text_size(sum->refusal->size_bytes),
                       model_reason_name[sum->refusal->reason], went_on);
}

/* Sets the status to the worst that happened: a run with a refusal is no maximum, even if the program continued. */
static void judge_run(struct sweep_run *run, const struct sum *sum, int wait_status)
{
    char *last = text_copy(run->note, SIZE_MAX); /* the last line of its output */
    run->exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
    run->signal = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
    if (run->status == SWEEP_TIMED_OUT || run->status == SWEEP_INTERRUPTED) {
        run->note[0] = '\0';
    } else if (sum->is_watchdogs) {
        run->status = SWEEP_KILLED;
        sweep_set_note(run, text_copy("ended by its watchdog", 64));
    } else if (run->refused_count > 0) {
        run->status = SWEEP_REFUSED;
        sweep_set_note(run, refusal_text(sum, wait_status));
    } else if (WIFSIGNALED(wait_status)) {
        run->status = SWEEP_KILLED;
        sweep_set_note(run, text_format("%s", text_signal(WTERMSIG(wait_status))));
    } else if (WEXITSTATUS(wait_status) != 0) {
        run->status = SWEEP_FAILED;
        sweep_set_note(run, text_format("exit status %d%s%s", WEXITSTATUS(wait_status), last[0] ? ": " : "", last));
    } else {
        run->status = SWEEP_OK;
        sweep_set_note(run, text_copy(sum->is_unguarded ? "part of it ran unguarded" : "", 64));
    }
}

/* Adds a note about memory that the machine lost beyond the job's need. */
static void note_others(struct sweep_run *run, uint64_t bytes)
{
    if (bytes < bytes_max(OTHERS_LEAST, run->needed_bytes / 8))
        return;
    sweep_set_note(run, text_format("%s%sthe machine lost %s more than the job took: another program", run->note,
                                    run->note[0] != '\0' ? "; " : "", text_size(bytes)));
}

void sweep_measure(struct sweep_run *run, const struct launch *launch, const int64_t *newest_before_ns,
                   uint64_t least_headroom, uint64_t most_held)
{
    const struct model_scope scope = {.directories = &launch->directory,
                                      .directory_count = 1,
                                      .job = launch->job,
                                      .job_hash = model_own_job(launch->job, true),
                                      .wants_containers = newest_before_ns != NULL};
    struct model *model = model_build(&scope);
    const struct sum sum = sum_run(model, launch, newest_before_ns);
    uint64_t lost = 0;
    run->peak_bytes = run->needed_bytes = run->headroom_bytes = SG_UNKNOWN;
    run->refused_count = 0;
    if (sum.process_count > 0) {
        run->refused_count = sum.refused_count;
        run->peak_bytes = bytes_max(sum.peak_bytes, most_held);
        lost = least_headroom != SG_UNKNOWN ? bytes_less(run->start_headroom_bytes, least_headroom) : 0;
        uint64_t counted = bytes_max(sum.machine_bytes, model->machine.unified == 0 ? 0 : most_held);
        run->needed_bytes = bytes_add(counted, sum.unaccounted_bytes);
        if (run->start_headroom_bytes != SG_UNKNOWN)
            run->headroom_bytes = bytes_less(run->start_headroom_bytes, bytes_max(run->needed_bytes, lost));
    }
    judge_run(run, &sum, launch->wait_status);
    if (run->needed_bytes != SG_UNKNOWN)
        note_others(run, bytes_less(lost, run->needed_bytes));
}

/* Returns whether a process is this one or an ancestor: a guarded shell that started the sweep is not in its way. */
static bool is_ancestor(uint32_t pid)
{
    struct procfs_stat stat;
    uint32_t at = (uint32_t)getpid();
    for (int depth = 0; depth < 64 && at > 1; depth++) {
        if (at == pid)
            return true;
        if (procfs_stat(at, &stat) != 0)
            return false;
        at = stat.parent_pid;
    }
    return false;
}

static char *process_text(const char *kind, uint32_t pid, const char *command, uint64_t bytes)
{
    char *printable = text_printable(command, false);
    text_shorten(printable, 40);
    return text_format("%s process %" PRIu32 " (%s) holds %s", kind, pid, printable, text_size(bytes));
}

char *sweep_in_the_way(const struct sweep *sweep)
{
    const struct model_scope scope = {.wants_unguarded = true};
    struct model *model = model_build(&scope);
    const struct model_job *job;
    const struct model_process *process;
    char *text = NULL;
    uint64_t large =
        sg_size_of(sweep->large, model->machine.ordinary_bytes != SG_UNKNOWN ? model->machine.ordinary_bytes : 0);
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            if (text == NULL && process->state == SG_STATE_RUNNING && process->live_bytes >= SWEEP_SMALL_BYTES &&
                !is_ancestor(process->pid))
                text = process_text("guarded", process->pid, process->command, process->live_bytes);
    for (size_t i = 0; text == NULL && i < model->unguarded_count; i++) {
        const struct model_unguarded *other = &model->unguarded[i];
        if (other->resident_bytes >= large && !is_ancestor(other->pid))
            text = process_text("unguarded", other->pid, other->command, other->resident_bytes);
    }
    return text != NULL ? text : text_copy("", 0);
}
