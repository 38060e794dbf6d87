/*
 * file.c - chooses the job or the process to draw, and writes the file.
 */
#include <inttypes.h>

#include "report/output.h"
#include "report/draw/draw.h"
#include "report/report.h"

struct choice {
    const struct model_process *process; /* NULL: none has a time line */
    struct model_timeline timeline;
    size_t others; /* number of other processes with a time line */
    bool has_complained;
};

static void consider(struct choice *choice, const struct model_process *process)
{
    struct model_timeline timeline = {0};
    enum model_verdict verdict = draw_timeline(&timeline, process);
    choice->has_complained = choice->has_complained || verdict == MODEL_BAD;
    if (verdict != MODEL_GOOD)
        return;
    choice->others += choice->process != NULL;
    if (choice->process != NULL && process->peak_bytes < choice->process->peak_bytes)
        return;
    choice->timeline = timeline;
    choice->process = process;
}

bool draw_may_write(const char *path)
{
    return report_output_may_write(path, ".svg");
}

static void put_process_drawing(FILE *stream, void *content)
{
    const struct choice *choice = content;
    draw_process(stream, choice->process, &choice->timeline, NULL);
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

static void put_job_drawing(FILE *stream, void *content)
{
    draw_job(stream, content, NULL);
}

/* Draws the job that started last: one name in several directories means several jobs. */
static int write_job(const struct model *model, const struct model_scope *scope, const char *path)
{
    struct bands *drawn = NULL;
    const struct model_job *job;
    bool has_complained = false;
    DL_FOREACH (model->jobs, job) {
        struct bands *bands = draw_bands_read(job, 0, BANDS_COLUMNS_MAX, &has_complained);
        drawn = bands != NULL ? bands : drawn;
    }
    int status = has_complained ? REPORT_UNTRUSTED : REPORT_NO_MATCH;
    if (drawn != NULL) {
        status = report_output_write(path, "the drawing", put_job_drawing, drawn);
        status = status == REPORT_SHOWN && has_complained ? REPORT_UNTRUSTED : status;
    } else if (!has_complained) {
        say_nothing_to_draw(scope);
    }
    return status;
}

int draw_file(const struct model *model, const struct model_scope *scope, const char *path)
{
    if (scope->pid == 0 && (scope->job != NULL || scope->is_last))
        return write_job(model, scope, path);
    struct choice choice = {0};
    const struct model_job *job;
    const struct model_process *process;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            consider(&choice, process);
    int status = choice.has_complained ? REPORT_UNTRUSTED : REPORT_NO_MATCH;
    if (choice.process != NULL) {
        draw_add_known(&choice.timeline, choice.process);
        status = report_output_write(path, "the drawing", put_process_drawing, &choice);
        if (status == REPORT_SHOWN && choice.others > 0)
            fprintf(stderr, "sparkguard-report: drew process %" PRIu32 ", which held most of %zu\n",
                    model_process_number(choice.process), choice.others + 1);
        if (status == REPORT_SHOWN && choice.has_complained)
            status = REPORT_UNTRUSTED;
    } else if (!choice.has_complained) {
        say_nothing_to_draw(scope);
    }
    return status;
}
