/*
 * job.c - see draw.h: draws the bands of a job upon each other, its limit, its refusals, the rows of its processes and
 * the memory of the machine.
 */
#include "report/draw/draw.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "report/draw/svg.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

enum { STACK_HEIGHT = 230, MACHINE_HEIGHT = 90, CUT_WIDTH = 24 };

/* ---- areas --------------------------------------------------------------------------------------------------------- */

/* Returns the upper edge of the lowest `count` bands in a column. */
static double edge(const struct draw_field *field, const struct bands *bands, size_t count, size_t column)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum = bytes_add(sum, bands->band[i].cell[column].bytes);
    return draw_y(field, sum);
}

/* Draws the columns from `first` on as one area. Adjacent columns of one height make one step. */
static void put_area(const struct draw_field *field, const struct bands *bands, size_t band, size_t span, size_t first,
                     size_t count)
{
    size_t column = bands->span[span].first + first;
    double height = edge(field, bands, band + 1, column);
    fprintf(field->stream, "d=\"M%.1f %.1f", draw_bands_x(field, bands, span, first), height);
    for (size_t k = 1; k < count; k++) {
        double next = edge(field, bands, band + 1, column + k);
        if (next - height > 0.05 || height - next > 0.05)
            fprintf(field->stream, "H%.1fV%.1f", draw_bands_x(field, bands, span, first + k), height = next);
    }
    height = edge(field, bands, band, column + count - 1);
    fprintf(field->stream, "H%.1fV%.1f", draw_bands_x(field, bands, span, first + count), height);
    for (size_t k = count - 1; k-- > 0;) {
        double next = edge(field, bands, band, column + k);
        if (next - height > 0.05 || height - next > 0.05)
            fprintf(field->stream, "H%.1fV%.1f", draw_bands_x(field, bands, span, first + k + 1), height = next);
    }
    fprintf(field->stream, "H%.1fz\"", draw_bands_x(field, bands, span, first));
}

static void put_bands(const struct draw_field *field, const struct bands *bands)
{
    for (size_t i = 0; i < bands->band_count; i++)
        for (size_t s = 0; s < bands->span_count; s++)
            for (size_t k = 0, count; k < bands->span[s].count; k += count) {
                enum bands_record record = bands->band[i].cell[bands->span[s].first + k].record;
                count = draw_bands_alike(&bands->band[i], &bands->span[s], k);
                if (record == BANDS_ABSENT)
                    continue;
                fputs("<path ", field->stream);
                draw_bands_fill(field->stream, field->name, bands, i, record);
                fprintf(field->stream, " stroke=\"#555\" stroke-width=\"0.5\"%s ",
                        record == BANDS_RECORDED ? "" : " stroke-dasharray=\"3 2\"");
                put_area(field, bands, i, s, k, count);
                fputs("/>\n", field->stream);
            }
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

/* Returns the smallest limit of the runs in a span; SG_UNKNOWN: none. */
static uint64_t limit_of(const struct bands *bands, size_t span)
{
    const struct model_job *job = bands->job;
    uint64_t limit_bytes = SG_UNKNOWN;
    for (size_t i = 0; i < job->run_count; i++)
        if (job->runs[i].started_ns <= bands->span[span].end_ns &&
            job->runs[i].last_seen_ns >= bands->span[span].begin_ns)
            limit_bytes = bytes_min(limit_bytes, job->runs[i].limit_bytes);
    return limit_bytes;
}

/* Returns the largest limit that the scale should reach. */
static uint64_t largest_near_limit(const struct bands *bands, uint64_t most_bytes)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < bands->span_count; i++)
        largest = bytes_max(largest, draw_near_limit(limit_of(bands, i), most_bytes));
    return largest;
}

static void put_limits(const struct draw_field *field, const struct bands *bands)
{
    for (size_t i = 0; i < bands->span_count; i++)
        draw_limit(field, field->piece[i].left, field->piece[i].right, limit_of(bands, i));
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

static struct draw_points points_of(const struct draw_field *field, const struct bands *bands)
{
    struct draw_points points = {tool_allocate(bands->column_count, sizeof *points.at), bands->column_count};
    for (size_t s = 0; s < bands->span_count; s++)
        for (size_t k = 0; k < bands->span[s].count; k++) {
            const struct bands_column *column = &bands->column[bands->span[s].first + k];
            points.at[bands->span[s].first + k] = (struct draw_point){
                draw_bands_x(field, bands, s, k),
                draw_bands_x(field, bands, s, k + 1),
                column->is_recorded,
                {[DRAW_USABLE] = column->usable_bytes, column->reserve_bytes, column->floor_bytes, SG_UNKNOWN}};
        }
    return points;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static int compare_refusals(const void *a, const void *b)
{
    const struct model_refusal *first = a, *second = b;
    return (first->time_ns > second->time_ns) - (first->time_ns < second->time_ns);
}

/* Fills the last refusals of all processes, as if one process had them. */
static void gather_refusals(const struct bands *bands, struct model_process *marks)
{
    const struct model_process *process;
    size_t capacity = 0, count = 0;
    DL_FOREACH (bands->job->processes, process)
        capacity += process->refusal_count;
    marks->is_observing = true;
    struct model_refusal *all = tool_allocate(capacity, sizeof *all);
    DL_FOREACH (bands->job->processes, process) {
        marks->is_observing = marks->is_observing && process->is_observing;
        marks->refused_count = bytes_add(marks->refused_count, process->refused_count);
        for (size_t i = 0; i < process->refusal_count; i++)
            if (process->refusals[i].time_ns >= bands->span[0].begin_ns)
                all[count++] = process->refusals[i];
    }
    qsort(all, count, sizeof *all, compare_refusals);
    size_t left_out = count > SG_REFUSAL_CAPACITY ? count - SG_REFUSAL_CAPACITY : 0;
    memmove(all, all + left_out, (count - left_out) * sizeof *all);
    marks->refusals = all;
    marks->refusal_count = count - left_out;
    for (size_t i = 0; i < marks->refusal_count; i++)
        all[i].sequence = i + 1;
}

/* ---- the drawing ------------------------------------------------------------------------------------------------- */

static char *summary_of(const struct bands *bands, bool is_observing)
{
    const struct model_job *job = bands->job;
    int64_t until_ns = bands->span[bands->span_count - 1].end_ns;
    char *bound = job->limit_bytes == SG_UNKNOWN ? text_copy("", 0)
                                                 : text_format(" of the %s limit", text_size(job->limit_bytes));
    char *runs = job->run_count > 1 ? text_format(" in %zu runs", job->run_count) : text_copy("", 0);
    return text_format("%zu process%s%s, %s; peak %s%s; %" PRIu64 " request%s %s", job->process_count,
                       job->process_count == 1 ? "" : "es", runs,
                       job->running_count > 0 ? "running" : text_duration(until_ns - bands->span[0].begin_ns),
                       text_size(job->peak_bytes), bound, job->refused_count, job->refused_count == 1 ? "" : "s",
                       is_observing ? "would be refused" : "refused");
}

char *draw_bands_describe(const struct bands *bands)
{
    return text_format("Each process is a band, the largest at the bottom, from %s to %s. %s. Hatched parts were "
                       "not recorded. The figures are in the tables of the job and of its processes.",
                       text_time_local(bands->span[0].begin_ns),
                       text_time_local(bands->span[bands->span_count - 1].end_ns), summary_of(bands, false));
}

/* Prints what is not drawn, and how long nothing ran between two spans. */
static double put_titles(const struct draw_field *field, const struct bands *bands, bool is_observing)
{
    double left = 24, width = field->right - left, y = 48;
    char *title = text_format("Job %s", bands->job->name[0] ? bands->job->name : "-");
    char *name = svg_fit(title, width / 1.6), *summary = summary_of(bands, is_observing);
    svg_text(field->stream, left, 28, "font-size=\"16\" font-weight=\"bold\"", name);
    for (const char *rest = summary; *rest != '\0'; y += DRAW_LINE) { /* wraps after a semicolon */
        size_t length = strlen(rest);
        while (svg_width(rest) * (double)length / (double)strlen(rest) * 12 / 11 > width) {
            const char *mark = memrchr(rest, ';', length - 1);
            if (mark == NULL)
                break;
            length = (size_t)(mark - rest) + 1;
        }
        svg_text(field->stream, left, y, "font-size=\"12\"", text_copy(rest, length));
        rest += length;
        rest += strspn(rest, " ");
    }
    if (bands->earlier_spans > 0) {
        svg_text(field->stream, left, y, "", text_format("%zu earlier runs are not drawn", bands->earlier_spans));
        y += DRAW_LINE;
    }
    return y;
}

/* Clears the field between two spans. The field of the bands also says how long nothing ran. */
static void put_cuts(const struct draw_field *field, const struct bands *bands, bool has_words)
{
    for (size_t i = 0; i + 1 < bands->span_count; i++) {
        char turned[96];
        double x = field->piece[i].right, middle = (field->top + field->bottom) / 2;
        fprintf(field->stream, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" fill=\"#fff\"/>\n", x,
                field->top - 1, CUT_WIDTH, field->bottom - field->top + 2);
        if (!has_words)
            continue;
        snprintf(turned, sizeof turned, "text-anchor=\"middle\" fill=\"#666\" transform=\"rotate(-90 %.1f %.1f)\"",
                 x + CUT_WIDTH / 2.0 + 4, middle);
        svg_text(field->stream, x + CUT_WIDTH / 2.0 + 4, middle, turned,
                 text_format("nothing ran for %s", text_duration(bands->span[i + 1].begin_ns - bands->span[i].end_ns)));
    }
}

static void divide_axis(const struct bands *bands, struct draw_field *field, struct draw_piece piece[BANDS_SPANS_MAX])
{
    double at = field->left, width = field->right - at - (double)CUT_WIDTH * (double)(bands->span_count - 1);
    for (size_t i = 0; i < bands->span_count; i++) {
        const struct bands_span *span = &bands->span[i];
        double share = width * (double)span->count / (double)bands->column_count;
        piece[i] = (struct draw_piece){span->begin_ns, span->end_ns, at, at + share};
        at += share + CUT_WIDTH;
    }
    field->piece = piece;
    field->piece_count = bands->span_count;
    field->begin_ns = piece[0].begin_ns;
    field->end_ns = piece[field->piece_count - 1].end_ns;
}

/* Draws everything below the head of the file. Returns the height. */
static double put_all(struct draw_field *stack, const struct bands *bands)
{
    struct model_process marks = {0};
    gather_refusals(bands, &marks);
    double y = put_titles(stack, bands, marks.is_observing);
    struct draw_legend legend = draw_legend_begin(stack, y + 10, "Live bytes by process");
    draw_legend_area(&legend, "gap", " stroke-dasharray=\"3 2\"", "not recorded");
    stack->top = legend.y + 12 + draw_strips_height(&marks);
    stack->bottom = stack->top + STACK_HEIGHT;
    uint64_t most_bytes = 0;
    for (size_t i = 0; i < bands->column_count; i++)
        most_bytes = bytes_max(most_bytes, bands->column[i].live_bytes);
    stack->most_bytes = draw_scale_top(bytes_max(most_bytes, largest_near_limit(bands, most_bytes)));
    draw_size_axis(stack);
    put_bands(stack, bands);
    y = draw_bands_lanes(stack, bands, stack->bottom + 14);
    const struct draw_points points = points_of(stack, bands);
    struct draw_field machine = draw_machine(stack, y + 8, MACHINE_HEIGHT, &points);
    put_cuts(stack, bands, true);
    put_cuts(&machine, bands, false);
    const struct draw_field fields[] = {*stack, machine};
    draw_strips(fields, 2, &marks);
    put_limits(stack, bands);
    draw_time_axis(&machine, machine.bottom);
    return machine.bottom + 52;
}

void draw_job(FILE *stream, const struct bands *bands, const char *name)
{
    struct draw_piece piece[BANDS_SPANS_MAX] = {{0}};
    struct draw_sheet sheet;
    struct draw_field stack = draw_sheet_begin(&sheet, name);
    draw_bands_patterns(stack.stream, stack.name, bands);
    divide_axis(bands, &stack, piece);
    double height = put_all(&stack, bands);
    draw_sheet_end(&sheet, stream, height,
                   text_format("Memory of job %s over time", bands->job->name[0] ? bands->job->name : "-"),
                   draw_bands_describe(bands));
}
