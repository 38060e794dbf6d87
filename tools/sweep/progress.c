/*
 * progress.c - shows the progress on stderr: on a terminal one line that is rewritten, otherwise a line for each run.
 */
#include <stdarg.h>
#include <stdio.h>

#include "sweep/sweep.h"
#include "common/text.h"

void sweep_progress_begin(struct sweep_progress *progress)
{
    *progress = (struct sweep_progress){.style = style_of(stderr)};
}

void sweep_progress_name(struct sweep_progress *progress, const struct sweep *sweep, const struct sweep_run *run)
{
    char *text = sweep_run_text(sweep, run);
    progress->title = text_format("[%zu/%zu] %s", (size_t)(run - sweep->run) + 1, sweep->run_count, text);
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
    struct style now = style_of(stderr); /* the terminal may have been resized */
    char *line = text_copy(text, SIZE_MAX);
    text_shorten(line, now.columns - 1);
    clear(progress);
    fprintf(stderr, "%s%s%s", style_colour_on(&progress->style, STYLE_DIM), line,
            style_colour_off(&progress->style, STYLE_DIM));
    fflush(stderr);
    progress->is_line_up = true;
}

/* Estimates the remaining time by the mean duration of the runs; -1 if there was none. */
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
    if (!progress->style.is_terminal)
        return;
    int64_t left_ns = remaining_ns(sweep, run, elapsed_ns);
    char *rest = left_ns < 0 ? text_copy("", 0) : text_format(", about %s left", text_duration(left_ns));
    sweep_progress_show(progress, text_format("%s: %s%s; %s held%s%s", progress->title, text_duration(elapsed_ns), rest,
                                              text_size(held_bytes), progress->expected != NULL ? " of" : "",
                                              progress->expected != NULL ? progress->expected : ""));
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

static enum style_colour colour_of(enum sweep_status status)
{
    return status == SWEEP_OK ? STYLE_GREEN : status >= SWEEP_TOO_LARGE ? STYLE_YELLOW : STYLE_RED;
}

void sweep_progress_end_of(struct sweep_progress *progress, const struct sweep *sweep, const struct sweep_run *run)
{
    const struct style *style = &progress->style;
    enum style_colour colour = colour_of(run->status);
    char *figures = run->status >= SWEEP_LOST
                        ? text_copy("", 0)
                        : text_format(", peak %s, room %s, %s", text_size(run->peak_bytes),
                                      text_size(run->headroom_bytes), text_duration(run->duration_ns));
    sweep_progress_name(progress, sweep, run);
    sweep_progress_say(progress, "%s: %s%s%s%s%s%s", progress->title, style_colour_on(style, colour),
                       sweep_status_name[run->status], style_colour_off(style, colour), figures,
                       run->note[0] != '\0' ? ": " : "", run->note);
}

void sweep_progress_end(struct sweep_progress *progress)
{
    clear(progress);
    if (progress->style.is_terminal)
        fputc('\n', stderr); /* the table follows */
    progress->title = progress->expected = NULL;
}
