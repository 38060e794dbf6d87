/*
 * launch_summary.c - what the job came to, in one to five lines on stderr; the figures are the report's own.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "launch.h"
#include "render.h"
#include "report.h"
#include "text.h"

static void put_end(const struct launch *launch, bool has_record)
{
    char lasted[REPORT_TIME_TEXT], signal_text[REPORT_TIME_TEXT];
    fprintf(stderr, "sparkguard: job %s ran %s, ", launch->job,
            report_duration_text(lasted, report_now_ns() - launch->started_ns));
    if (WIFSIGNALED(launch->wait_status))
        fprintf(stderr, "killed by %s", report_signal_text(signal_text, WTERMSIG(launch->wait_status)));
    else
        fprintf(stderr, "exit status %d", WEXITSTATUS(launch->wait_status));
    if (!launch->is_guarded)
        fputs("; not guarded", stderr);
    else if (!has_record)
        fputs("; nothing on record (small programs leave none)", stderr);
    fputc('\n', stderr);
}

static void put_peak(const struct report_job *job, const struct report_process *largest)
{
    char size[REPORT_SIZE_TEXT];
    char *parts = report_peak_text(largest);
    fprintf(stderr, "sparkguard: peak %s%s%s", report_size_text(size, largest->peak_bytes), parts[0] ? ": " : "",
            parts);
    if (job->process_count > 1)
        fprintf(stderr, " (process %" PRIu32 ", the largest of %zu)", largest->pid, job->process_count);
    fputc('\n', stderr);
    free(parts);
}

static void put_refusals(const struct report_job *job, const struct report_refusal *last, bool is_observing)
{
    char size[REPORT_SIZE_TEXT], left[REPORT_SIZE_TEXT];
    if (job->refused_count == 0)
        return;
    fprintf(stderr, "sparkguard: %" PRIu64 " request%s %srefused", job->refused_count,
            job->refused_count == 1 ? "" : "s", is_observing ? "would have been " : "");
    if (last != NULL) {
        char *call = report_text_printable(last->call, false);
        fprintf(stderr, "; the last: %s of %s, %s %s (%s)", call, report_size_text(size, last->size_bytes),
                report_size_text(left, last->usable_bytes), report_room_word(last->reason),
                report_reason_name[last->reason]);
        free(call);
    }
    fputc('\n', stderr);
}

/* The first that its watchdog ended, and how many more. */
static const struct report_process *put_fates(const struct report_job *job)
{
    const struct report_process *process, *first = NULL;
    size_t count = 0;
    DL_FOREACH (job->processes, process)
        if (process->fate != NULL && count++ == 0)
            first = process;
    if (first == NULL)
        return NULL;
    char *text = report_fate_text(first, false);
    fprintf(stderr, "sparkguard: process %s", text);
    free(text);
    if (count > 1)
        fprintf(stderr, "; %zu more by theirs", count - 1);
    fputc('\n', stderr);
    return first;
}

static void put_job(const struct report_job *job)
{
    const struct report_process *process, *largest = job->processes, *refused = NULL;
    const struct report_refusal *last = NULL;
    bool is_observing = false;
    if (largest == NULL)
        return;
    DL_FOREACH (job->processes, process) {
        is_observing = is_observing || process->is_observing;
        if (process->peak_bytes > largest->peak_bytes)
            largest = process;
        if (process->refusal_count == 0)
            continue;
        const struct report_refusal *its_last = &process->refusals[process->refusal_count - 1];
        if (last == NULL || its_last->time_ns >= last->time_ns) {
            last = its_last;
            refused = process;
        }
    }
    put_peak(job, largest);
    put_refusals(job, last, is_observing);
    const struct report_process *asked = put_fates(job);
    if (asked == NULL)
        asked = refused != NULL ? refused : largest;
    fprintf(stderr, "sparkguard: see sparkguard-report %" PRIu32 "\n", asked->pid);
}

void launch_summarize(const struct launch *launch)
{
    const struct report_scope scope = {.directories = &launch->directory, .directory_count = 1, .job = launch->job};
    struct report *report = report_build(&scope);
    bool has_record = report->jobs != NULL && report->jobs->processes != NULL;
    put_end(launch, has_record);
    if (has_record)
        put_job(report->jobs);
    report_free(report);
}
