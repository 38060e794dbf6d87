/*
 * verdict.c - see verdict.h.
 *
 * A verdict has up to three parts: how the run ended, whether it was refused something or how near it came to that, and
 * which descendant ran unguarded. Sizes that would have been enough are rounded up.
 */
#include "model/verdict.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

#include "common/bytes.h"
#include "common/procfs.h"
#include "common/text.h"
#include "common/tool.h"
#include "model/model.h"
#include "model/timeline_reader.h"
#include "sparkguard_options.h"

const char *const model_verdict_code_name[] = {
    [MODEL_VERDICT_OK] = "ok",
    [MODEL_VERDICT_REFUSED_LIMIT] = "refused_limit",
    [MODEL_VERDICT_REFUSED_RESERVE] = "refused_reserve",
    [MODEL_VERDICT_REFUSED_DEVICE] = "refused_device",
    [MODEL_VERDICT_KILLED] = "killed",
    [MODEL_VERDICT_WATCHDOG] = "watchdog",
};

/* Sums and extremes over the processes of a run. */
struct run {
    const struct model_process *first;
    const struct model_process *victim; /* the process whose end is that of the run; NULL: nobody was killed */
    const struct model_witness *witness;
    const struct model_refusal *last; /* the last refusal */
    size_t count;
    size_t running_count;
    uint64_t peak_bytes;
    uint64_t limit_bytes;    /* SG_UNKNOWN: none */
    uint64_t headroom_bytes; /* least usable memory above the reserve at any time; SG_UNKNOWN: unknown */
    uint64_t missing_bytes;  /* largest part that a refused request lacked, of the last one's reason */
    uint64_t enough_bytes;   /* limit that every request refused for it would have kept; 0: unknown */
    uint64_t refused_count;
    size_t compared_count; /* refusals from which the two above were computed: a record keeps the last 64 */
    bool is_of_one_reason; /* all known refusals have the last one's reason */
    bool is_observing;
    bool is_guarding; /* a process decided by the kernel's figures */
};

/* ---- gathering --------------------------------------------------------------------------------------------------- */

/* Returns the rank of a process's end within the run; 0: its end does not matter. Programs end their helpers by SIGTERM
 * and the like, and nobody may have recorded the signal. So a process other than the first matters if a signal was
 * recorded that no program sends to its helpers, or if it held much of what the run held. */
static int rank_of_end(const struct run *run, const struct model_process *process)
{
    int number = process->signal;
    bool is_usual = number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGPIPE;
    if (process->watchdog_event != NULL)
        return 4;
    if (process->state != SG_STATE_KILLED)
        return 0;
    if (process == run->first)
        return 3;
    if (number != 0 && !is_usual)
        return 2;
    return process->live_bytes >= run->peak_bytes / 2 && process->live_bytes > 0 ? 1 : 0;
}

static void find_victim(struct run *run, const struct model_process *const *processes)
{
    int best = 0;
    for (size_t i = 0; i < run->count; i++) {
        int rank = rank_of_end(run, processes[i]);
        if (rank > best || (rank == best && rank > 0 && processes[i]->live_bytes > run->victim->live_bytes))
            run->victim = processes[i];
        best = rank > best ? rank : best;
    }
}

static void see_headroom(struct run *run, uint64_t usable_bytes, uint64_t reserve_bytes)
{
    if (usable_bytes != SG_UNKNOWN && reserve_bytes != SG_UNKNOWN)
        run->headroom_bytes = bytes_min(run->headroom_bytes, bytes_less(usable_bytes, reserve_bytes));
}

static void add_headroom_of(struct run *run, const struct model_process *process)
{
    char why[MODEL_WHY_CAPACITY];
    struct model_timeline timeline = {0};
    const struct sg_machine *machine = &process->machine;
    if (machine->time_ns > 0)
        see_headroom(run, machine->usable_bytes, machine->reserve_bytes);
    if (model_timeline_read(&timeline, process->segment_path, why) != MODEL_GOOD)
        return;
    for (size_t i = 0; i < timeline.count; i++)
        see_headroom(run, timeline.samples[i].usable_bytes, timeline.samples[i].reserve_bytes);
}

static void add_process_to_run(struct run *run, const struct model_process *process)
{
    run->running_count += process->state == SG_STATE_RUNNING;
    run->is_observing = run->is_observing || process->is_observing;
    run->is_guarding = run->is_guarding || process->is_guarding;
    run->refused_count = bytes_add(run->refused_count, process->refused_count);
    run->limit_bytes = bytes_min(run->limit_bytes, process->limit_bytes);
    run->peak_bytes = bytes_max(run->peak_bytes, model_job_peak(process));
    for (size_t i = 0; i < process->refusal_count; i++)
        if (run->last == NULL || process->refusals[i].time_ns >= run->last->time_ns)
            run->last = &process->refusals[i];
    add_headroom_of(run, process);
}

/* Floor and reserve are one reason to users: the floor is a part of the reserve. */
static enum sg_reason reason_of(const struct model_refusal *refusal)
{
    return refusal->reason == SG_REASON_FLOOR ? SG_REASON_RESERVE : refusal->reason;
}

uint64_t model_missing_bytes(const struct model_process *process, const struct model_refusal *refusal)
{
    bool is_limit = refusal->reason == SG_REASON_LIMIT;
    uint64_t limit = process->limit_bytes, kept = is_limit ? 0 : refusal->kept_bytes;
    if (refusal->usable_bytes == SG_UNKNOWN || kept == SG_UNKNOWN || (is_limit && limit == SG_UNKNOWN))
        return SG_UNKNOWN;
    uint64_t missing = bytes_less(bytes_add(refusal->size_bytes, kept), refusal->usable_bytes);
    if (is_limit && refusal->usable_bytes == 0) /* it may have been over its limit, by its peak at most */
        missing = bytes_max(missing, bytes_less(bytes_add(process->peak_bytes, refusal->size_bytes), limit));
    return missing;
}

/* Finds out what would have been enough for the refusals that have the last one's reason. */
static void take_refusals(struct run *run, const struct model_process *process)
{
    for (size_t i = 0; i < process->refusal_count; i++) {
        const struct model_refusal *refusal = &process->refusals[i];
        if (reason_of(refusal) != reason_of(run->last)) {
            run->is_of_one_reason = false;
            continue;
        }
        bool is_limit = refusal->reason == SG_REASON_LIMIT;
        uint64_t limit = process->limit_bytes, missing = model_missing_bytes(process, refusal);
        if (missing == SG_UNKNOWN)
            continue;
        run->compared_count++;
        if (process->is_observing && is_limit &&
            run->peak_bytes > limit) /* nothing was refused: the peak is the need */
            missing = run->peak_bytes - limit;
        run->missing_bytes = bytes_max(run->missing_bytes, missing);
        if (is_limit)
            run->enough_bytes = bytes_max(run->enough_bytes, bytes_add(limit, missing));
    }
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

static bool is_oom_victim(const struct model_process *victim)
{
    int64_t until_ns = victim->ended_ns > 0 ? victim->ended_ns : INT64_MAX;
    return victim->oom == SG_OOM_NAMED || model_kernel_log_names(victim->pid, victim->last_seen_ns, until_ns);
}

static char *end_by_signal(const struct run *run, const struct model_process *victim, const char *held)
{
    bool may_be_oom = victim->signal == 0 || victim->signal == SIGKILL;
    if (victim->is_cut_off)
        return text_format("still ran when the machine stopped, held %s", held);
    if (may_be_oom && is_oom_victim(victim))
        return text_format("killed by the kernel's OOM killer, held %s", held);
    if (may_be_oom && (victim->oom == SG_OOM_LIKELY || run->witness->oom_kills > 0))
        return text_format("killed by SIGKILL, probably from the kernel's OOM killer, held %s", held);
    if (victim->signal == 0)
        return text_format("killed (signal not recorded), held %s", held);
    return text_format("killed by %s, held %s", text_signal(victim->signal), held);
}

/* Returns how the run ended; NULL if nothing special. */
static char *end_of_victim(const struct run *run)
{
    const struct model_process *victim = run->victim;
    if (victim == NULL)
        return NULL;
    const char *held = text_size(victim->live_bytes);
    char *words = victim->watchdog_event != NULL
                      ? text_format("%s by the watchdog, held %s",
                                    victim->state == SG_STATE_EXITED ? "told to end" : "ended", held)
                      : end_by_signal(run, victim, held);
    if (run->count == 1)
        return words;
    return text_format("process %" PRIu32 " %s", victim->pid, words);
}

/* Returns "refused 3 times for its limit". */
static char *refusals_of(const struct run *run)
{
    static const char *const reasons[] = {[SG_REASON_RESERVE] = "for the reserve",
                                          [SG_REASON_LIMIT] = "for its limit",
                                          [SG_REASON_FLOOR] = "for the reserve",
                                          [SG_REASON_DEVICE] = "for the device's memory"};
    char count[48] = "once";
    if (run->refused_count > 1)
        snprintf(count, sizeof count, "%" PRIu64 " times", run->refused_count);
    return text_format("%srefused %s%s%s", run->is_observing ? "would have been " : "", count,
                       run->last == NULL       ? ""
                       : run->is_of_one_reason ? " "
                                               : ", the last ",
                       run->last == NULL ? "" : reasons[run->last->reason]);
}

/* Returns "; a limit of 14.0 GiB would have been enough for that", or "" where that is unknown. The program may ask for
 * more once it gets so far, so this is no advice for the whole run. */
static char *enough_of(const struct run *run)
{
    char size[16], what[64];
    if (run->missing_bytes == 0)
        return text_copy("", 0);
    if (run->is_observing && run->enough_bytes != 0 && run->enough_bytes == run->peak_bytes)
        snprintf(what, sizeof what, "this run");
    else if (run->refused_count > run->compared_count && run->compared_count == 1)
        snprintf(what, sizeof what, "the last request");
    else if (run->refused_count > run->compared_count)
        snprintf(what, sizeof what, "each of the last %zu such requests", run->compared_count);
    else
        snprintf(what, sizeof what, run->refused_count > 1 ? "each of these requests" : "this request");
    if (run->enough_bytes != 0) {
        sg_format_limit_up(size, run->enough_bytes, run->limit_bytes);
        return text_format("; a limit of %s would have been enough for %s", size, what);
    }
    sg_format_size_up(size, run->missing_bytes);
    return text_format("; %s more of the %s memory would have been enough for %s", size,
                       run->last->reason == SG_REASON_DEVICE ? "device's" : "usable", what);
}

/* Returns how near the run came to a refusal: "at its tightest 2.8 GiB of room were left". The limit is compared with
 * the peak, the machine by its least headroom. */
static char *least_of(const struct run *run)
{
    uint64_t of_limit = bytes_less(run->limit_bytes, run->peak_bytes);
    bool is_limit = run->limit_bytes != SG_UNKNOWN && of_limit < run->headroom_bytes;
    if (is_limit && run->peak_bytes > run->limit_bytes) /* memory that no call announced */
        return text_format("had a peak of %s, above its limit of %s", text_size(run->peak_bytes),
                           text_size(run->limit_bytes));
    if (!is_limit && run->headroom_bytes == SG_UNKNOWN)
        return text_format("had a peak of %s", text_size(run->peak_bytes));
    return text_format("at its tightest %s of %s were left%s", text_size(is_limit ? of_limit : run->headroom_bytes),
                       is_limit ? "room in its limit" : "room", run->running_count > 0 ? " so far" : "");
}

/* Returns the verdict on a run that nobody killed. */
static char *words_of_survivor(const struct run *run)
{
    char status[48] = "";
    bool is_running = run->running_count > 0;
    if (!is_running && run->first->exit_code > 0)
        snprintf(status, sizeof status, "exit status %d", run->first->exit_code);
    if (!run->is_guarding)
        return text_format(is_running ? "still running, but not guarded" : "ran, but was not guarded");
    char *middle = run->refused_count > 0 ? refusals_of(run) : least_of(run), *enough = enough_of(run), *words;
    if (run->refused_count > 0)
        words = text_format("%s%s%s%s%s", is_running ? "still running, " : "", middle, status[0] ? ", ended with " : "",
                            status, enough);
    else
        words = text_format("%s%s%s%s", status, status[0] ? ", " : "", is_running ? "still running, " : "", middle);
    return words;
}

static char *words_of(const struct run *run)
{
    char *end = end_of_victim(run);
    if (end == NULL)
        return words_of_survivor(run);
    if (run->refused_count == 0)
        return end;
    return text_format("%s; %s", end, refusals_of(run));
}

static char *with_unguarded(char *words, const struct model_witness *witness)
{
    if (witness->unguarded_bytes == 0)
        return words;
    return text_format("%s; child %" PRIu32 " (%s) is not guarded, held %s", words, witness->unguarded_pid,
                       witness->unguarded_name, text_size(witness->unguarded_bytes));
}

static enum model_verdict_code code_of(const struct run *run)
{
    static const enum model_verdict_code of_reason[] = {
        [SG_REASON_RESERVE] = MODEL_VERDICT_REFUSED_RESERVE,
        [SG_REASON_LIMIT] = MODEL_VERDICT_REFUSED_LIMIT,
        [SG_REASON_FLOOR] = MODEL_VERDICT_REFUSED_RESERVE,
        [SG_REASON_DEVICE] = MODEL_VERDICT_REFUSED_DEVICE,
    };
    if (run->victim != NULL)
        return run->victim->watchdog_event != NULL ? MODEL_VERDICT_WATCHDOG : MODEL_VERDICT_KILLED;
    if (run->refused_count == 0)
        return MODEL_VERDICT_OK;
    if (run->last != NULL)
        return of_reason[run->last->reason];
    return run->limit_bytes != SG_UNKNOWN ? MODEL_VERDICT_REFUSED_LIMIT : MODEL_VERDICT_REFUSED_RESERVE;
}

struct model_job_verdict model_judge(const struct model_process *const *processes, size_t count,
                                     const struct model_witness *witness)
{
    struct run run = {.first = processes[0],
                      .witness = witness,
                      .count = count,
                      .limit_bytes = SG_UNKNOWN,
                      .headroom_bytes = SG_UNKNOWN,
                      .is_of_one_reason = true};
    for (size_t i = 0; i < count; i++)
        add_process_to_run(&run, processes[i]);
    for (size_t i = 0; i < count && run.last != NULL; i++)
        take_refusals(&run, processes[i]);
    find_victim(&run, processes);
    return (struct model_job_verdict){code_of(&run), with_unguarded(words_of(&run), witness)};
}

/* ---- all runs of a model ------------------------------------------------------------------------------------------ */

/* Returns whether a process descends from one of these, as far as its parents live. */
static bool is_descendant(uint32_t pid, const struct model_process *const *processes, size_t count)
{
    enum { GENERATIONS_MAX = 64 };
    struct procfs_stat stat;
    for (int i = 0; i < GENERATIONS_MAX && pid > 1 && procfs_stat(pid, &stat) == 0; i++) {
        for (size_t j = 0; j < count; j++)
            if (processes[j]->state == SG_STATE_RUNNING && model_process_number(processes[j]) == pid &&
                processes[j]->start_ticks == stat.start_ticks)
                return true;
        pid = stat.parent_pid;
    }
    return false;
}

static void see_unguarded(struct model_witness *witness, const struct model *model,
                          const struct model_process *const *processes, size_t count)
{
    for (size_t i = 0; i < model->unguarded_count; i++) {
        const struct model_unguarded *unguarded = &model->unguarded[i];
        if (!is_descendant(unguarded->pid, processes, count))
            continue;
        /* sorted by this: the first is the largest */
        witness->unguarded_bytes = model_unguarded_bytes(model, unguarded);
        witness->unguarded_pid = unguarded->pid;
        witness->unguarded_name = unguarded->command;
        return;
    }
}

void model_verdicts_fill(struct model *model)
{
    struct model_job *job;
    DL_FOREACH (model->jobs, job) {
        /* NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers */
        const struct model_process *process, **of_run = tool_allocate(job->process_count, sizeof *of_run);
        for (size_t i = 0; i < job->run_count; i++) {
            struct model_witness witness = {0};
            size_t count = 0;
            DL_FOREACH (job->processes, process)
                if (process->run == i)
                    of_run[count++] = process;
            if (job->runs[i].running_count > 0)
                see_unguarded(&witness, model, of_run, count);
            job->runs[i].verdict = model_judge(of_run, count, &witness);
        }
    }
}
