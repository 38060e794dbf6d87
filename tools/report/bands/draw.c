/*
 * draw.c - see bands.h: draws the bands of a job upon each other, its limit, its refusals, the rows of its processes and
 * the memory of the machine.
 */
#define _GNU_SOURCE
#include "report/bands/bands.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "report/plot/svg.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"
#include "common/xml_escape.h"

enum { STACK_HEIGHT = 230, MACHINE_HEIGHT = 90, CUT_WIDTH = 24, LINE_HEIGHT = 16 };

/* ---- areas --------------------------------------------------------------------------------------------------------- */

/* Returns the upper edge of the lowest `count` bands in a column. */
static double edge(const struct plot_field *field, const struct bands *bands, size_t count, size_t column)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum = bytes_add(sum, bands->band[i].cell[column].bytes);
    return plot_y(field, sum);
}

/* Draws the columns from `first` on as one area. Adjacent columns of one height make one step. */
static void put_area(const struct plot_field *field, const struct bands *bands, size_t band, size_t span, size_t first,
                     size_t count)
{
    size_t column = bands->span[span].first + first;
    double height = edge(field, bands, band + 1, column);
    fprintf(field->stream, "d=\"M%.1f %.1f", bands_x(field, bands, span, first), height);
    for (size_t k = 1; k < count; k++) {
        double next = edge(field, bands, band + 1, column + k);
        if (next - height > 0.05 || height - next > 0.05)
            fprintf(field->stream, "H%.1fV%.1f", bands_x(field, bands, span, first + k), height = next);
    }
    height = edge(field, bands, band, column + count - 1);
    fprintf(field->stream, "H%.1fV%.1f", bands_x(field, bands, span, first + count), height);
    for (size_t k = count - 1; k-- > 0;) {
        double next = edge(field, bands, band, column + k);
        if (next - height > 0.05 || height - next > 0.05)
            fprintf(field->stream, "H%.1fV%.1f", bands_x(field, bands, span, first + k + 1), height = next);
    }
    fprintf(field->stream, "H%.1fz\"", bands_x(field, bands, span, first));
}

static void put_bands(const struct plot_field *field, const struct bands *bands)
{
    for (size_t i = 0; i < bands->band_count; i++)
        for (size_t s = 0; s < bands->span_count; s++)
            for (size_t k = 0, count; k < bands->span[s].count; k += count) {
                enum bands_record record = bands->band[i].cell[bands->span[s].first + k].record;
                count = bands_alike(&bands->band[i], &bands->span[s], k);
                if (record == BANDS_ABSENT)
                    continue;
                fputs("<path ", field->stream);
                bands_fill(field->stream, field->name, bands, i, record);
                fprintf(field->stream, " stroke=\"#555\" stroke-width=\"0.5\"%s ",
                        record == BANDS_RECORDED ? "" : " stroke-dasharray=\"3 2\"");
                put_area(field, bands, i, s, k, count);
                fputs("/>\n", field->stream);
            }
}

/* ---- legends ----------------------------------------------------------------------------------------------------- */

/* A row of items that continues on the next line where there is no space. */
struct legend {
    const struct plot_field *field;
    double x, y;
};

static struct legend begin_legend(const struct plot_field *field, double y, const char *title)
{
    report_svg_text(field->stream, field->left, y, "font-weight=\"bold\"", title);
    return (struct legend){field, field->left + report_svg_width(title) * 1.15 + 20, y};
}

/* Makes space for a sample of 22 pixels and the words. Prints the words. */
static void put_item(struct legend *legend, const char *words)
{
    double width = 28 + report_svg_width(words) + 14;
    if (legend->x + width - 14 > legend->field->right) {
        legend->x = legend->field->left;
        legend->y += LINE_HEIGHT;
    }
    report_svg_text(legend->field->stream, legend->x + 28, legend->y, "", words);
    legend->x += width;
}

static void put_gap_item(struct legend *legend)
{
    static const char words[] = "not recorded";
    put_item(legend, words);
    fprintf(legend->field->stream,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"22\" height=\"12\" fill=\"url(#%sgap)\" stroke=\"#555\" "
            "stroke-dasharray=\"3 2\"/>\n",
            legend->x - 42 - report_svg_width(words), legend->y - 10, legend->field->name);
}

static void put_line_item(struct legend *legend, const char *attributes, const char *words, uint64_t bytes)
{
    char size[TEXT_SIZE_CAPACITY];
    char *text = bytes != SG_UNKNOWN ? text_format("%s %s", words, text_size(size, bytes)) : text_format("%s", words);
    put_item(legend, text);
    fprintf(legend->field->stream, "<path d=\"M%.1f %.1fh22\" fill=\"none\" %s/>\n",
            legend->x - 42 - report_svg_width(text), legend->y - 4, attributes);
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

static const char limit_line[] = "stroke=\"#b00\" stroke-width=\"1.5\" stroke-dasharray=\"12 3\"";

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

/* Returns the largest limit that the scale should reach: those far above the bytes would make the bands flat. */
static uint64_t largest_near_limit(const struct bands *bands, uint64_t most_bytes)
{
    enum { NEAR_TIMES = 4 };
    uint64_t largest = 0;
    for (size_t i = 0; i < bands->span_count; i++) {
        uint64_t limit_bytes = limit_of(bands, i);
        if (limit_bytes != SG_UNKNOWN && limit_bytes / NEAR_TIMES <= most_bytes)
            largest = bytes_max(largest, limit_bytes);
    }
    return largest;
}

static void put_limits(const struct plot_field *field, const struct bands *bands)
{
    static const char words_style[] =
        "text-anchor=\"end\" fill=\"#b00\" paint-order=\"stroke\" stroke=\"#fff\" stroke-width=\"3\"";
    for (size_t i = 0; i < bands->span_count; i++) {
        const struct plot_piece *piece = &field->piece[i];
        uint64_t limit_bytes = limit_of(bands, i);
        char size[TEXT_SIZE_CAPACITY];
        if (limit_bytes == SG_UNKNOWN)
            continue;
        bool is_inside = limit_bytes <= field->most_bytes;
        double y = is_inside ? plot_y(field, limit_bytes) : field->top;
        if (is_inside)
            fprintf(field->stream, "<path d=\"M%.1f %.1fH%.1f\" fill=\"none\" %s/>\n", piece->left, y, piece->right,
                    limit_line);
        char *words = text_format("limit %s%s", text_size(size, limit_bytes), is_inside ? "" : ", above this scale");
        char *shown = report_svg_fit(words, piece->right - piece->left - 6);
        report_svg_text(field->stream, piece->right - 3, y - 4 < field->top + 10 ? y + 13 : y - 4, words_style, shown);
    }
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

typedef uint64_t figure_of(const struct bands_column *column);

static uint64_t usable_of(const struct bands_column *column)
{
    return column->usable_bytes;
}

static uint64_t reserve_of(const struct bands_column *column)
{
    return column->reserve_bytes;
}

static uint64_t floor_of(const struct bands_column *column)
{
    return column->floor_bytes;
}

static void put_steps(const struct plot_field *field, const struct bands *bands, figure_of *figure,
                      const char *attributes)
{
    fputs("<path fill=\"none\" d=\"", field->stream);
    for (size_t s = 0; s < bands->span_count; s++) {
        const struct bands_span *span = &bands->span[s];
        uint64_t before = SG_UNKNOWN;
        for (size_t k = 0; k <= span->count; k++) {
            uint64_t bytes = k < span->count ? figure(&bands->column[span->first + k]) : SG_UNKNOWN;
            double x = bands_x(field, bands, s, k);
            if (bytes == before)
                continue;
            if (before != SG_UNKNOWN)
                fprintf(field->stream, "H%.1f", x);
            if (bytes != SG_UNKNOWN && before == SG_UNKNOWN)
                fprintf(field->stream, "M%.1f %.1f", x, plot_y(field, bytes));
            else if (bytes != SG_UNKNOWN)
                fprintf(field->stream, "V%.1f", plot_y(field, bytes));
            before = bytes;
        }
    }
    fprintf(field->stream, "\" %s/>\n", attributes);
}

static void put_machine_gaps(const struct plot_field *field, const struct bands *bands)
{
    for (size_t s = 0; s < bands->span_count; s++) {
        const struct bands_span *span = &bands->span[s];
        for (size_t k = 0; k < span->count; k++) {
            size_t first = k;
            while (k < span->count && !bands->column[span->first + k].is_recorded)
                k++;
            double x = bands_x(field, bands, s, first);
            if (k > first)
                fprintf(field->stream,
                        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"url(#%sgap)\" "
                        "opacity=\"0.5\"/>\n",
                        x, field->top, bands_x(field, bands, s, k) - x, field->bottom - field->top, field->name);
        }
    }
}

static uint64_t highest(const struct bands *bands, figure_of *figure)
{
    uint64_t most = 0;
    for (size_t i = 0; i < bands->column_count; i++) {
        uint64_t bytes = figure(&bands->column[i]);
        most = bytes != SG_UNKNOWN && bytes > most ? bytes : most;
    }
    return most;
}

static uint64_t last_known(const struct bands *bands, figure_of *figure)
{
    uint64_t last = SG_UNKNOWN;
    for (size_t i = 0; i < bands->column_count; i++)
        last = figure(&bands->column[i]) != SG_UNKNOWN ? figure(&bands->column[i]) : last;
    return last;
}

/* Draws the machine below `top`. Returns the field, whose bottom is that of the drawing. */
static struct plot_field put_machine(const struct plot_field *stack, const struct bands *bands, double top)
{
    static const char usable[] = "stroke=\"#000\" stroke-width=\"1.5\"";
    static const char reserve[] = "stroke=\"#a40\" stroke-width=\"1.5\" stroke-dasharray=\"8 3\"";
    static const char floor[] = "stroke=\"#b00\" stroke-width=\"1.5\" stroke-dasharray=\"2 2\"";
    struct plot_field field = *stack;
    struct legend legend = begin_legend(&field, top + 12, "Memory of the machine");
    put_line_item(&legend, usable, "usable, in the end", last_known(bands, usable_of));
    put_line_item(&legend, reserve, "reserve", last_known(bands, reserve_of));
    put_line_item(&legend, floor, "floor", last_known(bands, floor_of));
    field.top = legend.y + 12;
    field.bottom = field.top + MACHINE_HEIGHT;
    field.most_bytes = plot_scale_top(bytes_max(highest(bands, usable_of), highest(bands, reserve_of)));
    put_machine_gaps(&field, bands);
    plot_size_axis(&field);
    put_steps(&field, bands, floor_of, floor);
    put_steps(&field, bands, reserve_of, reserve);
    put_steps(&field, bands, usable_of, usable);
    return field;
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
    char peak[TEXT_SIZE_CAPACITY], limit[TEXT_SIZE_CAPACITY], lasted[TEXT_TIME_CAPACITY];
    int64_t until_ns = bands->span[bands->span_count - 1].end_ns;
    char *bound = job->limit_bytes == SG_UNKNOWN ? text_copy("", 0)
                                                 : text_format(" of the %s limit", text_size(limit, job->limit_bytes));
    char *runs = job->run_count > 1 ? text_format(" in %zu runs", job->run_count) : text_copy("", 0);
    return text_format("%zu process%s%s, %s; peak %s%s; %" PRIu64 " request%s %s", job->process_count,
                       job->process_count == 1 ? "" : "es", runs,
                       job->running_count > 0 ? "running" : text_duration(lasted, until_ns - bands->span[0].begin_ns),
                       text_size(peak, job->peak_bytes), bound, job->refused_count, job->refused_count == 1 ? "" : "s",
                       is_observing ? "would be refused" : "refused");
}

char *bands_describe(const struct bands *bands)
{
    char begin[TEXT_TIME_CAPACITY], end[TEXT_TIME_CAPACITY];
    char *summary = summary_of(bands, false);
    return text_format("Each process is a band, the largest at the bottom, from %s to %s. %s. Hatched parts were "
                       "not recorded. The figures are in the tables of the job and of its processes.",
                       text_time_local(begin, bands->span[0].begin_ns),
                       text_time_local(end, bands->span[bands->span_count - 1].end_ns), summary);
}

/* Prints what is not drawn, and how long nothing ran between two spans. */
static double put_titles(const struct plot_field *field, const struct bands *bands, bool is_observing)
{
    double left = 24, width = field->right - left, y = 48;
    char *title = text_format("Job %s", bands->job->name[0] ? bands->job->name : "-");
    char *name = report_svg_fit(title, width / 1.6), *summary = summary_of(bands, is_observing);
    report_svg_text(field->stream, left, 28, "font-size=\"16\" font-weight=\"bold\"", name);
    for (const char *rest = summary; *rest != '\0'; y += LINE_HEIGHT) { /* wraps after a semicolon */
        size_t length = strlen(rest);
        while (report_svg_width(rest) * (double)length / (double)strlen(rest) * 12 / 11 > width) {
            const char *mark = memrchr(rest, ';', length - 1);
            if (mark == NULL)
                break;
            length = (size_t)(mark - rest) + 1;
        }
        char *line = text_copy(rest, length);
        report_svg_text(field->stream, left, y, "font-size=\"12\"", line);
        rest += length;
        rest += strspn(rest, " ");
    }
    if (bands->earlier_spans > 0) {
        char *words = text_format("%zu earlier runs are not drawn", bands->earlier_spans);
        report_svg_text(field->stream, left, y, "", words);
        y += LINE_HEIGHT;
    }
    return y;
}

/* Clears the field between two spans. The field of the bands also says how long nothing ran. */
static void put_cuts(const struct plot_field *field, const struct bands *bands, bool has_words)
{
    for (size_t i = 0; i + 1 < bands->span_count; i++) {
        char lasted[TEXT_TIME_CAPACITY], turned[96];
        double x = field->piece[i].right, middle = (field->top + field->bottom) / 2;
        fprintf(field->stream, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" fill=\"#fff\"/>\n", x,
                field->top - 1, CUT_WIDTH, field->bottom - field->top + 2);
        if (!has_words)
            continue;
        snprintf(turned, sizeof turned, "text-anchor=\"middle\" fill=\"#666\" transform=\"rotate(-90 %.1f %.1f)\"",
                 x + CUT_WIDTH / 2.0 + 4, middle);
        char *words = text_format("nothing ran for %s",
                                  text_duration(lasted, bands->span[i + 1].begin_ns - bands->span[i].end_ns));
        report_svg_text(field->stream, x + CUT_WIDTH / 2.0 + 4, middle, turned, words);
    }
}

static void divide_axis(const struct bands *bands, struct plot_field *field, struct plot_piece piece[BANDS_SPANS_MAX])
{
    double at = field->left, width = field->right - at - (double)CUT_WIDTH * (double)(bands->span_count - 1);
    for (size_t i = 0; i < bands->span_count; i++) {
        const struct bands_span *span = &bands->span[i];
        double share = width * (double)span->count / (double)bands->column_count;
        piece[i] = (struct plot_piece){span->begin_ns, span->end_ns, at, at + share};
        at += share + CUT_WIDTH;
    }
    field->piece = piece;
    field->piece_count = bands->span_count;
    field->begin_ns = piece[0].begin_ns;
    field->end_ns = piece[field->piece_count - 1].end_ns;
}

/* Draws everything below the head of the file. Returns the height. */
static double put_all(struct plot_field *stack, const struct bands *bands)
{
    struct model_process marks = {0};
    gather_refusals(bands, &marks);
    double y = put_titles(stack, bands, marks.is_observing);
    struct legend legend = begin_legend(stack, y + 10, "Live bytes by process");
    put_gap_item(&legend);
    stack->top = legend.y + 12 + plot_strips_height(&marks);
    stack->bottom = stack->top + STACK_HEIGHT;
    uint64_t most_bytes = 0;
    for (size_t i = 0; i < bands->column_count; i++)
        most_bytes = bytes_max(most_bytes, bands->column[i].live_bytes);
    stack->most_bytes = plot_scale_top(bytes_max(most_bytes, largest_near_limit(bands, most_bytes)));
    plot_size_axis(stack);
    put_bands(stack, bands);
    y = bands_lanes(stack, bands, stack->bottom + 14);
    struct plot_field machine = put_machine(stack, bands, y + 8);
    put_cuts(stack, bands, true);
    put_cuts(&machine, bands, false);
    const struct plot_field fields[] = {*stack, machine};
    plot_strips(fields, 2, &marks);
    put_limits(stack, bands);
    plot_time_axis(&machine, machine.bottom);
    return machine.bottom + 52;
}

void bands_draw(FILE *stream, const struct bands *bands, int width, const char *name)
{
    struct plot_piece piece[BANDS_SPANS_MAX] = {{0}};
    struct plot_field stack = {.name = name != NULL ? name : "",
                               .left = width == BANDS_WIDTH ? 84 : 66,
                               .right = width == BANDS_WIDTH ? width - 44 : width - 12};
    char *body = NULL, *sentence = bands_describe(bands);
    size_t length = 0;
    stack.stream = open_memstream(&body, &length);
    if (stack.stream == NULL)
        tool_end_without_memory();
    divide_axis(bands, &stack, piece);
    double height = put_all(&stack, bands);
    fclose(stack.stream);
    fprintf(stream,
            "%s<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d %.0f\" "
            "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"11\" fill=\"#111\" role=\"img\">",
            name == NULL ? "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" : "", width, height, width, height);
    char *title = text_format("Memory of job %s over time", bands->job->name[0] ? bands->job->name : "-");
    report_svg_title(stream, title);
    fputs("<desc>", stream);
    xml_escape_text(stream, sentence);
    fputs("</desc>\n", stream);
    bands_put_patterns(stream, stack.name, bands);
    fputs("<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n", stream);
    fwrite(body, 1, length, stream);
    free(body);
    fputs("</svg>\n", stream);
}
