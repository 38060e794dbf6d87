/*
 * chart.c - draws what a job held: a stack of its processes over time, with the limit as a line, refusals and phases.
 */
#include <inttypes.h>
#include <string.h>

#include "report/watch/terminal.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"
#include "report/watch/watch.h"

enum { ROWS_MAX = 8, PARTS_MAX = 6, FAR_TIMES = 4, COMMAND_COLUMNS = 24 };

/* A process, with what it held in each cell; the last part has no process: it is the rest of the job. */
struct part {
    const struct model_process *process;
    uint64_t *bytes;
};

struct chart {
    struct spark_axis axis;
    uint64_t *total_bytes; /* of each cell; SG_UNKNOWN: not recorded */
    uint64_t most_bytes, full_bytes, limit_bytes;
    size_t rows;
    struct part part[PARTS_MAX + 1];
    size_t count; /* with the rest, if there is any */
    bool has_rest;
};

/* ---- what is in it ----------------------------------------------------------------------------------------------- */

/* Takes a process among the parts if its peak is one of the highest; the highest comes first. */
static void add_process_part(struct chart *chart, const struct model_process *process)
{
    size_t at = chart->count;
    while (at > 0 && chart->part[at - 1].process->peak_bytes < process->peak_bytes)
        at--;
    if (at == PARTS_MAX)
        return;
    size_t moved = chart->count < PARTS_MAX ? chart->count++ - at : PARTS_MAX - 1 - at;
    memmove(&chart->part[at + 1], &chart->part[at], moved * sizeof chart->part[0]);
    chart->part[at].process = process;
}

/* Reads the figures of the parts. What they have beyond the sum of the job, which counts shared memory once, is cut. */
static void read_parts(struct chart *chart, const struct watch *watch)
{
    size_t cells = chart->axis.cells;
    uint64_t *left = tool_allocate(cells + 1, sizeof *left);
    for (size_t i = 0; i < cells; i++)
        left[i] = chart->total_bytes[i] == SG_UNKNOWN ? 0 : chart->total_bytes[i];
    for (size_t k = 0; k < chart->count; k++) {
        struct part *part = &chart->part[k];
        part->bytes = spark_values(watch_process_spark(watch, part->process), &chart->axis);
        for (size_t i = 0; i < cells; i++) {
            part->bytes[i] = part->bytes[i] == SG_UNKNOWN ? 0 : bytes_min(part->bytes[i], left[i]);
            left[i] -= part->bytes[i];
        }
    }
    for (size_t i = 0; i < cells; i++)
        chart->has_rest = chart->has_rest || left[i] > chart->full_bytes / (chart->rows * SPARK_LEVELS);
    chart->part[chart->count++] = (struct part){.bytes = left};
}

static void read_chart(struct chart *chart, const struct watch *watch, const struct model_job *job)
{
    const struct model_process *process;
    chart->total_bytes = spark_values(watch_spark(watch, job), &chart->axis);
    for (size_t i = 0; i < chart->axis.cells; i++)
        if (chart->total_bytes[i] != SG_UNKNOWN)
            chart->most_bytes = bytes_max(chart->most_bytes, chart->total_bytes[i]);
    chart->limit_bytes = job->limit_bytes;
    bool is_near = job->limit_bytes != SG_UNKNOWN && job->limit_bytes / FAR_TIMES <= chart->most_bytes;
    chart->full_bytes = bytes_max(1, is_near ? bytes_max(job->limit_bytes, chart->most_bytes) : chart->most_bytes);
    DL_FOREACH (job->processes, process)
        if (watch_process_spark(watch, process) != NULL)
            add_process_part(chart, process);
    read_parts(chart, watch);
}

/* ---- rows of cells ----------------------------------------------------------------------------------------------- */

static const char *shade_of(size_t part, const struct style *style)
{
    static const char *const blocks[] = {"█", "▓", "▒", "░"}, *const ascii[] = {"#", "%", "o", ":"};
    return style->is_utf8 ? blocks[part % 4] : ascii[part % 4];
}

static enum style_colour colour_of_part(size_t part)
{
    static const enum style_colour colours[] = {STYLE_CYAN, STYLE_GREEN, STYLE_YELLOW};
    return colours[part % 3];
}

/* Returns the height of a value in eighths of a row. */
static size_t height_of(const struct chart *chart, uint64_t bytes)
{
    double part = (double)bytes / (double)chart->full_bytes;
    return (size_t)((part < 1 ? part : 1) * (double)(chart->rows * SPARK_LEVELS) + 0.5);
}

/* Returns the part of the stack that a cell has at a height. */
static size_t part_at(const struct chart *chart, size_t cell, size_t height)
{
    uint64_t sum_bytes = 0;
    for (size_t k = 0; k + 1 < chart->count; k++) {
        sum_bytes += chart->part[k].bytes[cell];
        if (height_of(chart, sum_bytes) > height)
            return k;
    }
    return chart->count - 1;
}

static void put_cell(const struct style *style, enum style_colour colour, const char *glyph)
{
    fprintf(style->stream, "%s%s%s", style_colour_on(style, colour), glyph, style_colour_off(style, colour));
}

/* Prints a row of the stack, 0 being the lowest. The limit is a line through what the stack leaves free. */
static void put_chart_row(const struct chart *chart, size_t row, const struct style *style)
{
    bool is_near = chart->limit_bytes <= chart->full_bytes;
    bool has_limit = is_near && (bytes_max(height_of(chart, chart->limit_bytes), 1) - 1) / SPARK_LEVELS == row;
    for (size_t i = 0; i < chart->axis.cells; i++) {
        bool is_known = chart->total_bytes[i] != SG_UNKNOWN;
        size_t height = is_known ? bytes_max(height_of(chart, chart->total_bytes[i]), 1) : 0;
        size_t below = row * SPARK_LEVELS, filled = bytes_min(bytes_less(height, below), SPARK_LEVELS);
        size_t part = filled > 0 ? part_at(chart, i, below + filled / 2) : 0;
        if (filled == SPARK_LEVELS)
            put_cell(style, colour_of_part(part), shade_of(part, style));
        else if (filled > 0)
            put_cell(style, colour_of_part(part), spark_glyph(filled, style->is_utf8));
        else if (has_limit)
            put_cell(style, STYLE_RED, style->is_utf8 ? "╌" : "-");
        else
            fputc(' ', style->stream);
    }
    fputc('\n', style->stream);
}

/* ---- marks below it ---------------------------------------------------------------------------------------------- */

/* A line of characters; "" is a blank. */
struct marks {
    char (*at)[5];
    size_t cells;
    bool has_any;
};

/* Writes a mark and as much of a text as fits before the next cell that is taken. */
static void put_mark(struct marks *marks, int64_t cell, const char *mark, const char *text, bool is_utf8)
{
    if (cell < 0 || cell >= (int64_t)marks->cells)
        return;
    char *printable = text_printable(text, is_utf8), *whole = text_format("%s%s", mark, printable);
    const char *at = whole;
    size_t left = strlen(whole);
    for (size_t i = (size_t)cell; left > 0 && i < marks->cells; i++) {
        uint32_t code;
        size_t length = text_utf8_next(at, left, &code);
        if (i > (size_t)cell && marks->at[i][0] != '\0')
            break;
        memcpy(marks->at[i], at, bytes_min(length, 4));
        at += length;
        left -= length;
    }
    marks->has_any = true;
}

static void end_marks(struct marks *marks, enum style_colour colour, const struct style *style)
{
    fputs(style_colour_on(style, colour), style->stream);
    for (size_t i = 0; marks->has_any && i < marks->cells; i++)
        fputs(marks->at[i][0] != '\0' ? marks->at[i] : " ", style->stream);
    fprintf(style->stream, "%s%s", style_colour_off(style, colour), marks->has_any ? "\n" : "");
}

/* Prints a mark for each refused request of the last run, with its reason if there is space. The last ones are
 * written first. */
static void put_refusal_marks(const struct chart *chart, const struct model_job *job, int64_t shift_ns,
                              const struct style *style)
{
    struct marks marks = {.cells = chart->axis.cells};
    const struct model_process *process;
    marks.at = tool_allocate(marks.cells, sizeof *marks.at);
    DL_FOREACH (job->processes, process)
        for (size_t i = process->run + 1 == job->run_count ? process->refusal_count : 0; i-- > 0;) {
            const struct model_refusal *refusal = &process->refusals[i];
            put_mark(&marks, spark_cell(&chart->axis, refusal->time_ns - shift_ns), style->is_utf8 ? "▲" : "^",
                     model_reason_name[refusal->reason], style->is_utf8);
        }
    end_marks(&marks, STYLE_RED, style);
}

/* Prints the phases of the largest process that has any. The last ones are written first. */
static void put_phase_marks(const struct chart *chart, int64_t shift_ns, const struct style *style)
{
    struct marks marks = {.cells = chart->axis.cells};
    size_t k = 0;
    while (k + 1 < chart->count && chart->part[k].process->phase_count == 0)
        k++;
    if (k + 1 == chart->count)
        return;
    const struct model_process *process = chart->part[k].process;
    marks.at = tool_allocate(marks.cells, sizeof *marks.at);
    for (size_t i = process->phase_count; i-- > 0;)
        put_mark(&marks, spark_cell(&chart->axis, process->phases[i].time_ns - shift_ns), style->is_utf8 ? "▏" : "|",
                 process->phases[i].name, style->is_utf8);
    end_marks(&marks, STYLE_PLAIN, style);
}

/* Prints which shade is which process; of a single one there is nothing to tell. */
static void put_legend(const struct chart *chart, const struct style *style)
{
    size_t column = 0, count = chart->has_rest ? chart->count : chart->count - 1;
    for (size_t k = 0; count > 1 && k < count; k++) {
        const struct model_process *process = chart->part[k].process;
        char *command = text_printable(process != NULL ? text_command(process->command) : "others", style->is_utf8);
        text_shorten(command, COMMAND_COLUMNS);
        char *piece = process != NULL ? text_format("%s %" PRIu32 " %s", shade_of(k, style), process->pid, command)
                                      : text_format("%s %s", shade_of(k, style), command);
        style_flow(style, &column, "  ", colour_of_part(k), piece);
    }
    if (column > 0)
        fputc('\n', style->stream);
}

void watch_put_chart(const struct watch *watch, const struct model_job *job, const struct style *style)
{
    const struct spark *spark = watch_spark(watch, job);
    struct chart chart = {.rows = bytes_min(ROWS_MAX, terminal_rows() / 5)};
    int64_t shift_ns = tool_now_ns() - tool_clock_ns(CLOCK_MONOTONIC);
    if (spark == NULL || chart.rows == 0)
        return;
    chart.axis = spark_axis_of(spark, watch->sampled_ns, style->columns - 1);
    read_chart(&chart, watch, job);
    bool has_limit = job->limit_bytes != SG_UNKNOWN;
    fprintf(style->stream, "%slive, up to %s%s%s, over %s; blank: not recorded%s\n", style_colour_on(style, STYLE_BOLD),
            text_size(chart.most_bytes), has_limit ? ", limit " : "", has_limit ? text_size(job->limit_bytes) : "",
            watch_wall_text(chart.axis.step_ns * (int64_t)chart.axis.cells), style_colour_off(style, STYLE_BOLD));
    for (size_t row = chart.rows; row-- > 0;)
        put_chart_row(&chart, row, style);
    put_refusal_marks(&chart, job, shift_ns, style);
    put_phase_marks(&chart, shift_ns, style);
    put_legend(&chart, style);
}
