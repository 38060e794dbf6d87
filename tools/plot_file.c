/*
 * plot_file.c - which process is drawn, and into which file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plot.h"
#include "text.h"

struct choice {
    const struct report_process *process; /* NULL: none has a time line */
    struct report_timeline timeline;
    size_t others; /* that have one too */
    bool has_complained;
};

static void consider(struct choice *choice, const struct report_process *process)
{
    struct report_timeline timeline = {0};
    char why[REPORT_WHY_ROOM];
    enum report_verdict verdict = report_timeline_read(&timeline, process->segment_path, why);
    if (verdict == REPORT_BAD) {
        char *path = report_text_printable(process->segment_path, false);
        fprintf(stderr, "sparkguard-report: %s: its time line: %s\n", path, why);
        free(path);
        choice->has_complained = true;
    }
    if (verdict != REPORT_GOOD)
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

/* A link counts as something else, and stays one. */
static bool is_no_regular_file(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0 && !S_ISREG(status.st_mode);
}

bool report_plot_may_write(const char *path)
{
    const size_t suffix = strlen(".svg"), length = strlen(path);
    bool is_drawing = length > suffix && strcmp(path + length - suffix, ".svg") == 0;
    return is_drawing || strcmp(path, "-") == 0 || is_no_regular_file(path);
}

/* Ends the stream: 0, or why it did not take everything. */
static int draw(const struct choice *choice, FILE *stream)
{
    if (stream == NULL)
        return errno;
    errno = 0;
    report_plot(stream, choice->process, &choice->timeline);
    int error = 0;
    if (fflush(stream) != 0 || ferror(stream) != 0)
        error = errno != 0 ? errno : EIO;
    return fclose(stream) != 0 && error == 0 ? errno : error;
}

/* Written beside itself, then renamed: whoever looks at the last drawing meanwhile, or after a failure, sees a whole one. */
static int replace_file(const struct choice *choice, const char *path)
{
    char *beside = report_text_format("%s.XXXXXX", path);
    mode_t mask = umask(0);
    umask(mask);
    int fd = mkostemp(beside, O_CLOEXEC);
    int error = fd < 0 ? errno : 0;
    if (fd >= 0) {
        (void)fchmod(fd, 0666 & ~mask);
        error = draw(choice, fdopen(fd, "w"));
        if (error == 0 && rename(beside, path) != 0)
            error = errno;
        if (error != 0)
            (void)unlink(beside);
    }
    free(beside);
    return error;
}

static int write_file(const struct choice *choice, const char *path)
{
    int error;
    if (strcmp(path, "-") == 0)
        error = draw(choice, stdout);
    else if (is_no_regular_file(path))
        error = draw(choice, fopen(path, "we"));
    else
        error = replace_file(choice, path);
    if (error == 0)
        return REPORT_SHOWN;
    fprintf(stderr, "sparkguard-report: cannot write %s: %s\n", strcmp(path, "-") == 0 ? "the drawing" : path,
            strerror(error));
    return REPORT_UNTRUSTED;
}

static void say_nothing_to_draw(const struct report_scope *scope)
{
    fputs("sparkguard-report: nothing to draw: ", stderr);
    if (scope->pid != 0)
        fprintf(stderr, "process %" PRIu32, scope->pid);
    else
        fputs("no process shown", stderr);
    fputs(scope->pid != 0 ? " has no time line" : " has a time line", stderr);
    fputs("; one begins with CUDA, 256 MiB, a phase or a refusal\n", stderr);
}

int report_plot_file(const struct report *report, const struct report_scope *scope, const char *path)
{
    struct choice choice = {0};
    const struct report_job *job;
    const struct report_process *process;
    DL_FOREACH (report->jobs, job)
        DL_FOREACH (job->processes, process)
            consider(&choice, process);
    int status = choice.has_complained ? REPORT_UNTRUSTED : REPORT_NO_MATCH;
    if (choice.process != NULL) {
        plot_add_known(&choice.timeline, choice.process);
        status = write_file(&choice, path);
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
