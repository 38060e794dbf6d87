/*
 * strips.c - draws phases and refusals: strips above a plot that name them, and lines through the plot.
 */
#include <inttypes.h>

#include "report/draw/draw.h"
#include "report/draw/svg.h"
#include "common/bytes.h"
#include "common/text.h"

enum {
    LINES_APART = 5,
    SCALE_APART = 6, /* space for the scale's highest number beside the field's upper edge */
};

static uint64_t phase_total(const struct model_process *process)
{
    return process->phase_count > 0 ? process->phases[process->phase_count - 1].sequence : 0;
}

static uint64_t refusal_total(const struct model_process *process)
{
    size_t count = process->refusal_count;
    return count > 0 ? bytes_max(process->refusals[count - 1].sequence, process->refused_count) : 0;
}

/* Returns whether the segment lost earlier phases or refusals; a row above the strips then says so. */
static bool is_cut(const struct model_process *process)
{
    return phase_total(process) > process->phase_count || refusal_total(process) > process->refusal_count;
}

double draw_strips_height(const struct model_process *process)
{
    int rows = is_cut(process) + (process->phase_count > 0) + (process->refusal_count > 0);
    return rows > 0 ? rows * DRAW_STRIP + SCALE_APART : 0;
}

static char *cut_text(uint64_t total, const char *what, size_t count)
{
    return total > count ? text_format("%" PRIu64 " %s, the last %zu marked", total, what, count) : text_copy("", 0);
}

static void put_cut(const struct draw_field *field, const struct model_process *process, double top)
{
    char *phases = cut_text(phase_total(process), "phases", process->phase_count);
    char *refusals = cut_text(refusal_total(process), process->is_observing ? "would be refused" : "refused",
                              process->refusal_count);
    char *both = text_format("%s%s%s", phases, phases[0] && refusals[0] ? "; " : "", refusals);
    svg_text(field->stream, field->left, top + 12, "", both);
}

/* Draws a line through the fields, and skips the legends between them. */
static void put_line_through(const struct draw_field *field, size_t count, double x, double top, const char *attributes)
{
    fprintf(field->stream, "<path d=\"M%.1f %.1fV%.1f", x, top, field->bottom);
    for (size_t i = 1; i < count; i++)
        fprintf(field->stream, "M%.1f %.1fV%.1f", x, field[i].top, field[i].bottom);
    fprintf(field->stream, "\" %s/>\n", attributes);
}

static void put_phase_title(FILE *stream, const struct model_phase *phase)
{
    svg_title(stream,
              text_format("phase %s, from %s: %s live in the end, %s at most", phase->name,
                          text_time_local(phase->time_ns), text_size(phase->live_bytes), text_size(phase->peak_bytes)));
}

static void put_refusal_title(FILE *stream, const struct model_refusal *refusal, bool is_observing)
{
    svg_title(stream, text_format("%s of %s %s %s at %s: %s; usable %s", refusal->call, text_size(refusal->size_bytes),
                                  model_domain_name[refusal->domain], is_observing ? "would be refused" : "refused",
                                  text_time_local(refusal->time_ns), model_reason_name[refusal->reason],
                                  text_size(refusal->usable_bytes)));
}

/* Draws each phase up to the next one, with its name if it fits, and a line if there is space between two. */
static void put_phase_strip(const struct draw_field *field, size_t count, const struct model_process *process,
                            double top)
{
    svg_text(field->stream, field->left - 8, top + 13, "text-anchor=\"end\"", "phase");
    for (size_t i = 0; i < process->phase_count; i++) {
        const struct model_phase *phase = &process->phases[i];
        double x = draw_x(field, phase->time_ns);
        double end = i + 1 < process->phase_count ? draw_x(field, phase[1].time_ns) : field->right;
        double width = end > x ? end - x : 0;
        fprintf(field->stream, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\" stroke=\"#999\">",
                x, top, width, DRAW_STRIP - 2, i % 2 == 0 ? "#f4f4f4" : "#e4e4e4");
        put_phase_title(field->stream, phase);
        fputs("</rect>\n", field->stream);
        if (width >= LINES_APART || i == 0)
            put_line_through(field, count, x, top + DRAW_STRIP - 2, "stroke=\"#777\" stroke-dasharray=\"8 4\"");
        char *name = svg_fit(phase->name, width - 8);
        if (name[0] != '\0')
            svg_text(field->stream, x + 4, top + 12, "", name);
    }
}

/* Prints call, size and reason to the right of the mark if there is space before the next mark, or to the left of the
 * last mark; otherwise the reason alone. Returns the end of the text. */
static double put_refusal_words(const struct draw_field *field, const struct model_refusal *refusal, double y,
                                double left, double right)
{
    double x = draw_x(field, refusal->time_ns);
    const char *reason = model_reason_name[refusal->reason];
    char *whole = text_format("%s %s, %s", refusal->call, text_size(refusal->size_bytes), reason);
    const char *words[] = {whole, reason};
    double end = 0;
    for (size_t i = 0; i < sizeof words / sizeof words[0] && end == 0; i++) {
        double width = svg_width(words[i]);
        if (x + 8 >= left && x + 8 + width <= right) {
            end = x + 8 + width;
            svg_text(field->stream, x + 8, y, "", words[i]);
        } else if (right >= field->right && x - 8 - width >= left) {
            end = x + 8;
            svg_text(field->stream, x - 8, y, "text-anchor=\"end\"", words[i]);
        }
    }
    return end > 0 ? end : left > x + 8 ? left : x + 8;
}

/* Draws the marks. A mark gets a line only at some distance from the last line: dense lines would hide the plot. */
static void put_refusal_strip(const struct draw_field *field, size_t count, const struct model_process *process,
                              double top)
{
    double taken = field->left, last_line = field->left - LINES_APART;
    svg_text(field->stream, field->left - 8, top + 13, "text-anchor=\"end\"",
             process->is_observing ? "observed" : "refused");
    for (size_t i = 0; i < process->refusal_count; i++) {
        const struct model_refusal *refusal = &process->refusals[i];
        bool is_last = i + 1 == process->refusal_count;
        double x = draw_x(field, refusal->time_ns);
        fprintf(field->stream, "<path d=\"M%.1f %.1fl-4 -9h8z\" fill=\"#b00\">", x, top + 13);
        put_refusal_title(field->stream, refusal, process->is_observing);
        fputs("</path>\n", field->stream);
        if (x - last_line >= LINES_APART) {
            put_line_through(field, count, x, top + 13, "stroke=\"#b00\" stroke-dasharray=\"1 3\"");
            last_line = x;
        }
        taken = put_refusal_words(field, refusal, top + 13, taken,
                                  is_last ? field->right : draw_x(field, refusal[1].time_ns) - 8);
    }
}

void draw_strips(const struct draw_field *field, size_t count, const struct model_process *process)
{
    double top = field->top - draw_strips_height(process);
    if (is_cut(process)) {
        put_cut(field, process, top);
        top += DRAW_STRIP;
    }
    if (process->phase_count > 0) {
        put_phase_strip(field, count, process, top);
        top += DRAW_STRIP;
    }
    if (process->refusal_count > 0)
        put_refusal_strip(field, count, process, top);
}
