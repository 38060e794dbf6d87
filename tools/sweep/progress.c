/*
 * progress.c - what goes on, on stderr: on a terminal one line that is rewritten, elsewhere a line for each run.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sweep/sweep.h"
#include "common/text.h"

void sweep_progress_begin(struct sweep_progress *progress)
{
    *progress = (struct sweep_progress){.style = report_style_of(stderr)};
}

void sweep_progress_name(struct sweep_progress *progress, const struct sweep *sweep, const struct sweep_run *run)
{
    char *text = sweep_run_text(sweep, run);
    free(progress->title);
    progress->title = report_text_format("[%zu/%zu] %s", (size_t)(run - sweep->run) + 1, sweep->run_count, text);
    free(text);
}

static void clear(struct sweep_progress *progress)
{
    if (progress->is_line_up)
        fputs("\r\033[K", stderr);
    progress->is_line_up = false;
}

void sweep_progress_show(struct sweep_progress *progress, const char *text)
{
    if (!progress->style.is_terminal)
        return;
    struct report_style now = report_style_of(stderr); /* it may have been resized */
    char *line = report_text_copy(text, SIZE_MAX);
    report_text_shorten(line, now.columns - 1);
    clear(progress);
    fprintf(stderr, "%s%s%s", report_colour_on(&progress->style, REPORT_DIM), line,
            report_colour_off(&progress->style, REPORT_DIM));
    fflush(stderr);
    progress->is_line_up = true;
    free(line);
}

/* By the mean of what was measured; -1 where nothing was. */
static int64_t remaining_ns(const struct sweep *sweep, const struct sweep_run *run, int64_t elapsed_ns)
{
    int64_t sum_ns = 0, measured = 0, pending = 0;
    for (size_t i = 0; i < sweep->run_count; i++) {
        const struct sweep_run *other = &sweep->run[i];
        bool is_measured = other->status >= SWEEP_OK && other->status <= SWEEP_TIMED_OUT && other->duration_ns >= 0;
        sum_ns += is_measured ? other->duration_ns / 1000 : 0;
        measured += is_measured;
        pending += other != run && other->status == SWEEP_PENDING && sweep_find_wall(sweep, other) == NULL;
    }
    if (measured == 0)
        return -1;
    int64_t mean_ns = sum_ns / measured * 1000, rest_ns = mean_ns > elapsed_ns ? mean_ns - elapsed_ns : 0;
    return pending > 0 && mean_ns > INT64_MAX / 2 / pending ? -1 : rest_ns + mean_ns * pending;
}

void sweep_progress_run(struct sweep_progress *progress, const struct sweep *sweep, const struct sweep_run *run,
                        int64_t elapsed_ns, uint64_t held_bytes)
{
    char elapsed[REPORT_TIME_TEXT], left[REPORT_TIME_TEXT], held[REPORT_SIZE_TEXT];
    if (!progress->style.is_terminal)
        return;
    int64_t left_ns = remaining_ns(sweep, run, elapsed_ns);
    char *rest = left_ns < 0 ? report_text_copy("", 0)
                             : report_text_format(", about %s left", report_duration_text(left, left_ns));
    char *line = report_text_format("%s: %s%s; %s held%s%s", progress->title, report_duration_text(elapsed, elapsed_ns),
                                    rest, report_size_text(held, held_bytes), progress->expected != NULL ? " of" : "",
                                    progress->expected != NULL ? progress->expected : "");
    sweep_progress_show(progress, line);
    free(line);
    free(rest);
}

void sweep_progress_say(struct sweep_progress *progress, const char *format, ...)
{
    va_list arguments;
    clear(progress);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

static enum report_colour colour_of(enum sweep_status status)
{
    return status == SWEEP_OK ? REPORT_GREEN : status >= SWEEP_TOO_LARGE ? REPORT_YELLOW : REPORT_RED;
}

void sweep_progress_end_of(struct sweep_progress *progress, const struct sweep *sweep, const struct sweep_run *run)
{
    char peak[REPORT_SIZE_TEXT], headroom[REPORT_SIZE_TEXT], lasted[REPORT_TIME_TEXT];
    const struct report_style *style = &progress->style;
    enum report_colour colour = colour_of(run->status);
    char *figures = run->status >= SWEEP_LOST
                        ? report_text_copy("", 0)
                        : report_text_format(", peak %s, headroom %s, %s", report_size_text(peak, run->peak_bytes),
                                             report_size_text(headroom, run->headroom_bytes),
                                             report_duration_text(lasted, run->duration_ns));
    sweep_progress_name(progress, sweep, run);
    sweep_progress_say(progress, "%s: %s%s%s%s%s%s", progress->title, report_colour_on(style, colour),
                       sweep_status_name[run->status], report_colour_off(style, colour), figures,
                       run->note[0] != '\0' ? ": " : "", run->note);
    free(figures);
}

void sweep_progress_end(struct sweep_progress *progress)
{
    clear(progress);
    if (progress->style.is_terminal)
        fputc('\n', stderr); /* the table follows */
    free(progress->title);
    free(progress->expected);
    progress->title = progress->expected = NULL;
}
