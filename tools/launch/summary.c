/*
 * summary.c - the line at the start of a job, and the summary of this run at its end, one to eight lines on stderr. The
 * figures come from the model, as those of the report do.
 *
 * A job name may be used again: processes of other runs are left out.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/launch.h"
#include "common/command.h"
#include "common/procfs.h"
#include "model/model.h"
#include "observer/observe.h"
#include "sparkguard_abi.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

/* Sums and extremes over the processes of this run. */
struct outcome {
    const struct model_process *largest;
    const struct model_process *refused; /* the process with the last refusal */
    const struct model_process *ended;   /* the first process that its watchdog ended */
    const struct model_refusal *last;    /* the last refusal */
    size_t process_count;
    size_t ended_count;
    uint64_t peak_bytes;       /* highest sum over all processes at one time */
    uint64_t limit_peak_bytes; /* that sum with the resident MAP_NORESERVE memory of one process */
    uint64_t limit_bytes;
    uint64_t refused_count;
    uint64_t resident_bytes; /* largest recorded resident size; SG_UNKNOWN: a process recorded none */
    bool is_observing;
};

/* A launcher inside a job adds to its caller's run. There, and where the first process had ended, a process belongs to
 * this run if it did not begin before the launcher started it. */
bool launch_is_of_run(const struct launch *launch, const struct model_process *process)
{
    if (process->pid == (uint32_t)launch->child && process->start_ticks == launch->child_ticks)
        return true;
    if (launch->is_new_job && process->run_key != 0)
        return process->run_key == SG_RUN((uint64_t)launch->child, launch->child_ticks);
    return process->started_ns >= launch->started_ns;
}

void launch_take_resident(uint64_t *largest_bytes, const struct model_process *process)
{
    if (process->max_resident_mib == 0)
        *largest_bytes = SG_UNKNOWN;
    else if (*largest_bytes != SG_UNKNOWN)
        *largest_bytes = bytes_max(*largest_bytes, (uint64_t)process->max_resident_mib << 20);
}

static void count_process(struct outcome *outcome, const struct model_process *process)
{
    outcome->process_count++;
    outcome->is_observing = outcome->is_observing || process->is_observing;
    outcome->refused_count = bytes_add(outcome->refused_count, process->refused_count);
    outcome->limit_bytes = bytes_min(outcome->limit_bytes, process->limit_bytes);
    outcome->peak_bytes = bytes_max(outcome->peak_bytes, bytes_max(process->peak_bytes, process->job_peak_bytes));
    outcome->limit_peak_bytes = bytes_max(outcome->limit_peak_bytes, process->limit_peak_bytes);
    launch_take_resident(&outcome->resident_bytes, process);
    if (outcome->largest == NULL || process->peak_bytes > outcome->largest->peak_bytes)
        outcome->largest = process;
    if (process->watchdog_event != NULL && outcome->ended_count++ == 0)
        outcome->ended = process;
    if (process->refusal_count == 0)
        return;
    const struct model_refusal *last = &process->refusals[process->refusal_count - 1];
    if (outcome->last == NULL || last->time_ns >= outcome->last->time_ns) {
        outcome->last = last;
        outcome->refused = process;
    }
}

static void put_no_record(const struct launch *launch)
{
    const char *fault = launch_directory_fault(launch->directory);
    if (fault == NULL) {
        fputs("; nothing on record (small programs leave none)", stderr);
        return;
    }
    fprintf(stderr, "; nothing on record: %s: %s (SPARKGUARD_DIR)", text_printable(launch->directory, false), fault);
}

static void put_end(const struct launch *launch, bool has_record)
{
    fprintf(stderr, "sparkguard: job %s ran %s, ", launch->job, text_duration(tool_now_ns() - launch->started_ns));
    if (WIFSIGNALED(launch->wait_status))
        fprintf(stderr, "killed by %s", text_signal(WTERMSIG(launch->wait_status)));
    else
        fprintf(stderr, "exit status %d", WEXITSTATUS(launch->wait_status));
    if (!launch->is_guarded)
        fputs("; not guarded", stderr);
    else if (!has_record)
        put_no_record(launch);
    fputc('\n', stderr);
}

/* Prints the job's peak, its limit, and the composition of the largest process's peak. */
static void put_peak(const struct outcome *outcome)
{
    char *parts = model_peak_text(outcome->largest);
    const char *peak = text_size(outcome->peak_bytes), *limit = text_size(outcome->limit_bytes);
    if (outcome->limit_bytes == SG_UNKNOWN)
        fprintf(stderr, "sparkguard: peak %s", peak);
    else if (outcome->limit_peak_bytes <= outcome->peak_bytes)
        fprintf(stderr, "sparkguard: peak %s of the %s limit", peak, limit);
    else
        fprintf(stderr, "sparkguard: peak %s of the %s limit, MAP_NORESERVE mappings included; without them %s",
                text_size(outcome->limit_peak_bytes), limit, peak);
    if (outcome->process_count > 1)
        fprintf(stderr, "; the largest of %zu processes, %s: %s", outcome->process_count,
                model_process_name(outcome->largest), text_size(outcome->largest->peak_bytes));
    if (parts[0] != '\0')
        fprintf(stderr, outcome->process_count > 1 ? " (%s)" : ": %s", parts);
    fputc('\n', stderr);
}

static void tell_refusals(const struct outcome *outcome)
{
    const struct model_refusal *last = outcome->last;
    if (outcome->refused_count == 0)
        return;
    fprintf(stderr, "sparkguard: %" PRIu64 " request%s %srefused", outcome->refused_count,
            outcome->refused_count == 1 ? "" : "s", outcome->is_observing ? "would have been " : "");
    if (last != NULL) {
        char *call = text_printable(last->call, false);
        fprintf(stderr, "; the last: %s of %s, %s %s (%s)", call, text_size(last->size_bytes),
                text_size(last->usable_bytes), model_headroom_word(last->reason), model_reason_name[last->reason]);
    }
    fputc('\n', stderr);
}

/* Prints the first process that its watchdog ended, and the number of further ones. */
static void put_ended(const struct outcome *outcome)
{
    if (outcome->ended == NULL)
        return;
    fprintf(stderr, "sparkguard: process %s", model_fate_text(outcome->ended, false));
    if (outcome->ended_count > 1)
        fprintf(stderr, "; %zu more by their own", outcome->ended_count - 1);
    fputc('\n', stderr);
}

uint64_t launch_oom_kills(void)
{
    const char *root = getenv("SPARKGUARD_SYSTEM_ROOT");
    char path[4096], text[16384];
    snprintf(path, sizeof path, "%s/proc/vmstat", root != NULL ? root : "");
    return procfs_read_text(path, text, sizeof text) > 0 ? procfs_number_after(text, "oom_kill") : SG_UNKNOWN;
}

/* Prints the number of the out-of-memory killer's victims if the program died of SIGKILL. The signal itself does not
 * tell its sender, and only the kernel's log names the victims. A shell reports SIGKILL as exit status 128 + 9. */
static void put_oom_kills(const struct launch *launch)
{
    bool is_killed = WIFSIGNALED(launch->wait_status) ? WTERMSIG(launch->wait_status) == SIGKILL
                                                      : WEXITSTATUS(launch->wait_status) == 128 + SIGKILL;
    uint64_t now = is_killed ? launch_oom_kills() : SG_UNKNOWN;
    if (now == SG_UNKNOWN || launch->oom_kills == SG_UNKNOWN || now <= launch->oom_kills)
        return;
    uint64_t count = now - launch->oom_kills;
    fprintf(stderr,
            "sparkguard: meanwhile the kernel's out-of-memory killer ended %" PRIu64
            " process%s of this machine; journalctl -k names %s\n",
            count, count == 1 ? "" : "es", count == 1 ? "it" : "them");
}

/* Resident sizes of unguarded processes. */
struct unguarded {
    uint64_t seen_bytes;    /* a process that a scan of /proc saw; 0: none */
    uint64_t unknown_bytes; /* a process that no scan saw and that left no record; 0: none */
};

/* Returns the resident size of a descendant that no scan saw and that exceeds every guarded process:
 * launch->children_bytes if it is LAUNCH_UNGUARDED_BYTES beyond `guarded_bytes`, the largest resident size of a guarded
 * process; else 0. The descendant ran unguarded, or has mapped files. */
static uint64_t unrecorded_bytes(const struct launch *launch, uint64_t guarded_bytes)
{
    return launch->children_bytes >= bytes_add(guarded_bytes, LAUNCH_UNGUARDED_BYTES) ? launch->children_bytes : 0;
}

/* The kernel reports the largest resident size of all descendants that were waited for. If that size exceeds every
 * guarded process, it belongs to an unguarded one: to the process that was seen, which may have grown since, or to one
 * that no scan saw. */
static struct unguarded find_unguarded(const struct launch *launch, const struct outcome *outcome)
{
    const struct launch_children *children = &launch->children;
    uint64_t seen_bytes = children->unguarded_bytes;
    uint64_t guarded_bytes = bytes_max(children->guarded_bytes, outcome->resident_bytes);
    uint64_t largest_bytes = outcome->resident_bytes != SG_UNKNOWN ? unrecorded_bytes(launch, guarded_bytes) : 0;
    struct unguarded none = {.seen_bytes = seen_bytes};
    if (!launch->is_guarded || largest_bytes == 0)
        return none;
    if (seen_bytes == 0 || largest_bytes >= seen_bytes + LAUNCH_UNGUARDED_BYTES)
        return (struct unguarded){seen_bytes, largest_bytes};
    return (struct unguarded){bytes_max(seen_bytes, largest_bytes), 0};
}

#define NOT_REACHED "because LD_PRELOAD did not reach it (env -i, sudo, su, a static program)"

static void tell_unguarded(const struct launch *launch, const struct unguarded *unguarded)
{
    if (unguarded->seen_bytes != 0) {
        char *name = text_printable(launch->children.unguarded_name, false);
        fprintf(stderr, "sparkguard: process %" PRIu32 " (%s) held %s resident and ran unguarded, " NOT_REACHED "\n",
                launch->children.unguarded_pid, name, text_size(unguarded->seen_bytes));
        if (launch->children.unguarded_advice != NULL)
            fprintf(stderr, "sparkguard: %s %s\n", name, launch->children.unguarded_advice);
    }
    if (unguarded->unknown_bytes != 0)
        fprintf(stderr,
                "sparkguard: a child held %s resident and left no record: either it mapped files, or it ran "
                "unguarded, " NOT_REACHED "\n",
                text_size(unguarded->unknown_bytes));
}

/* Prints the verdict on this run, as the report does for the whole job. */
static void tell_verdict(const struct launch *launch, const struct model *model, size_t count)
{
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers */
    const struct model_process *process, **of_run = tool_allocate(count, sizeof *of_run);
    const struct model_job *job;
    uint64_t now = launch_oom_kills();
    struct model_witness witness = {0};
    if (now != SG_UNKNOWN && launch->oom_kills != SG_UNKNOWN && now > launch->oom_kills)
        witness.oom_kills = now - launch->oom_kills;
    count = 0;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            if (launch_is_of_run(launch, process))
                of_run[count++] = process;
    struct model_job_verdict verdict = model_judge(of_run, count, &witness);
    fprintf(stderr, "sparkguard: %s\n", text_printable(verdict.text, false));
}

/* The command that shows a process, as it can be typed: with the directory, where an option named it. */
static void put_command(const struct launch *launch, uint32_t pid)
{
    char *command = command_of_tool("sparkguard-report");
    const char *directory = launch->value[SG_OPTION_DIR];
    fprintf(stderr, "sparkguard: see %s %s%s%s%" PRIu32 "\n", command, directory != NULL ? "--dir '" : "",
            text_printable(directory != NULL ? directory : "", false), directory != NULL ? "' " : "", pid);
}

void launch_summarize(const struct launch *launch)
{
    const struct model_scope scope = {.directories = &launch->directory,
                                      .directory_count = 1,
                                      .job = launch->job,
                                      .job_hash = model_own_job(launch->job, launch->is_new_job)};
    struct model *model = model_build(&scope);
    struct outcome outcome = {.limit_bytes = SG_UNKNOWN};
    const struct model_job *job;
    const struct model_process *process;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            if (launch_is_of_run(launch, process))
                count_process(&outcome, process);
    const struct unguarded unguarded = find_unguarded(launch, &outcome);
    put_end(launch, outcome.process_count > 0 || unguarded.seen_bytes != 0 || unguarded.unknown_bytes != 0);
    if (outcome.process_count > 0) {
        tell_verdict(launch, model, outcome.process_count);
        put_peak(&outcome);
        tell_refusals(&outcome);
        put_ended(&outcome);
    }
    put_oom_kills(launch);
    tell_unguarded(launch, &unguarded);
    if (outcome.process_count > 0) {
        const struct model_process *asked = outcome.ended != NULL     ? outcome.ended
                                            : outcome.refused != NULL ? outcome.refused
                                                                      : outcome.largest;
        put_command(launch, asked->pid);
    }
}

/* Observes what a process of the job could have now. */
static struct sg_observation observe(const struct launch *launch)
{
    struct sg_observation seen;
    const struct sg_observer observer = {.job = model_own_job(launch->job, launch->is_new_job)};
    char *path = text_format("%s/" SG_REGISTRY_NAME, launch->directory);
    int registry = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    sg_observe(registry, &observer, &seen);
    if (registry >= 0)
        close(registry);
    return seen;
}

char *launch_start_text(const struct launch *launch)
{
    if (launch->is_quiet || !launch->is_new_job || !launch->is_guarded || isatty(STDERR_FILENO) != 1)
        return NULL;
    const struct sg_observation seen = observe(launch);
    const char *mode = getenv(sg_option_table[SG_OPTION_MODE].variable);
    const char *what = mode != NULL && strcmp(mode, "observe") == 0 ? "observed, nothing is refused" : "guarded";
    if (!seen.is_known)
        return text_format("sparkguard: %s (sparkguard-report)\n", what);
    return text_format("sparkguard: %s; %s may be taken, %s stay free (sparkguard-report)\n", what,
                       text_size(bytes_min(seen.host_bytes, seen.left_bytes)),
                       text_size(model_tightest(&seen)->reserve_bytes));
}
