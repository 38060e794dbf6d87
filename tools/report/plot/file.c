/*
 * file.c - chooses the process to draw, and writes the file.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>

#include "report/atomic_file.h"
#include "report/plot/plot.h"
#include "common/text.h"
#include "report/report.h"

struct choice {
    const struct model_process *process; /* NULL: none has a time line */
    struct model_timeline timeline;
    size_t others; /* number of other processes with a time line */
    bool has_complained;
};

enum model_verdict plot_timeline(struct model_timeline *timeline, const struct model_process *process)
{
    char why[MODEL_WHY_CAPACITY];
    enum model_verdict verdict = model_timeline_read(timeline, process->segment_path, why);
    if (verdict == MODEL_BAD) {
        char *path = text_printable(process->segment_path, false);
        fprintf(stderr, "sparkguard-report: %s: its time line: %s\n", path, why);
        free(path);
    }
    return verdict;
}

static void consider(struct choice *choice, const struct model_process *process)
{
    struct model_timeline timeline = {0};
    enum model_verdict verdict = plot_timeline(&timeline, process);
    choice->has_complained = choice->has_complained || verdict == MODEL_BAD;
    if (verdict != MODEL_GOOD)
        return;
    choice->others += choice->process != NULL;
    if (choice->process != NULL && process->peak_bytes < choice->process->peak_bytes) {
        free(timeline.samples);
        return;
    }
    free(choice->timeline.samples);
    choice->timeline = timeline;
    choice->process = process;
}

bool report_plot_may_write(const char *path)
{
    return report_output_may_write(path, ".svg");
}

static void draw(FILE *stream, void *content)
{
    const struct choice *choice = content;
    report_plot(stream, choice->process, &choice->timeline, NULL);
}

static void say_nothing_to_draw(const struct model_scope *scope)
{
    fputs("sparkguard-report: nothing to draw: ", stderr);
    if (scope->pid != 0)
        fprintf(stderr, "process %" PRIu32, scope->pid);
    else
        fputs("no process shown", stderr);
    fputs(scope->pid != 0 ? " has no time line" : " has a time line", stderr);
    fputs("; one begins with CUDA, 256 MiB, a phase or a refusal\n", stderr);
}

int report_plot_file(const struct model *model, const struct model_scope *scope, const char *path)
{
    struct choice choice = {0};
    const struct model_job *job;
    const struct model_process *process;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            consider(&choice, process);
    int status = choice.has_complained ? REPORT_UNTRUSTED : REPORT_NO_MATCH;
    if (choice.process != NULL) {
        plot_add_known(&choice.timeline, choice.process);
        status = report_output_write(path, "the drawing", draw, &choice);
        if (status == REPORT_SHOWN && choice.others > 0)
            fprintf(stderr, "sparkguard-report: drew process %" PRIu32 ", which held most of %zu\n",
                    choice.process->pid, choice.others + 1);
        if (status == REPORT_SHOWN && choice.has_complained)
            status = REPORT_UNTRUSTED;
    } else if (!choice.has_complained) {
        say_nothing_to_draw(scope);
    }
    free(choice.timeline.samples);
    return status;
}
