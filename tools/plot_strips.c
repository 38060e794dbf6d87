/*
 * plot_strips.c - phases and refusals: strips above a plot that name them, and lines down through it.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "plot.h"
#include "svg.h"
#include "text.h"

enum {
    LINES_APART = 5,
    SCALE_APART = 6, /* the scale's highest number may stand beside the field's upper edge */
};

double plot_strips_height(const struct report_process *process)
{
    double height = (process->phase_count > 0 ? PLOT_STRIP : 0) + (process->refusal_count > 0 ? PLOT_STRIP : 0);
    return height > 0 ? height + SCALE_APART : 0;
}

/* Past the legend between the fields. */
static void put_line(const struct plot_field *field, const struct plot_field *below, double x, double top,
                     const char *attributes)
{
    fprintf(field->stream, "<path d=\"M%.1f %.1fV%.1fM%.1f %.1fV%.1f\" %s/>\n", x, top, field->bottom, x, below->top,
            below->bottom, attributes);
}

/* Each phase as far as the next one; its name where it fits, and a line where there is room between two. */
static void put_phases(const struct plot_field *field, const struct plot_field *below,
                       const struct report_process *process, double top)
{
    report_svg_text(field->stream, field->left - 8, top + 13, "text-anchor=\"end\"", "phase");
    for (size_t i = 0; i < process->phase_count; i++) {
        const struct report_phase *phase = &process->phases[i];
        double x = plot_x(field, phase->time_ns);
        double end = i + 1 < process->phase_count ? plot_x(field, phase[1].time_ns) : field->right;
        double width = end > x ? end - x : 0;
        fprintf(field->stream,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\" stroke=\"#999\"/>\n", x, top,
                width, PLOT_STRIP - 2, i % 2 == 0 ? "#f4f4f4" : "#e4e4e4");
        if (width >= LINES_APART || i == 0)
            put_line(field, below, x, top + PLOT_STRIP - 2, "stroke=\"#777\" stroke-dasharray=\"8 4\"");
        char *name = report_svg_fit(phase->name, width - 8);
        if (name[0] != '\0')
            report_svg_text(field->stream, x + 4, top + 12, "", name);
        free(name);
    }
}

/* The word stands right of its mark, where there is room before the next one; that of the last also left of it. */
static void put_refusals(const struct plot_field *field, const struct plot_field *below,
                         const struct report_process *process, double top)
{
    double taken = field->left;
    report_svg_text(field->stream, field->left - 8, top + 13, "text-anchor=\"end\"", "refused");
    for (size_t i = 0; i < process->refusal_count; i++) {
        const struct report_refusal *refusal = &process->refusals[i];
        double x = plot_x(field, refusal->time_ns);
        double next = i + 1 < process->refusal_count ? plot_x(field, refusal[1].time_ns) - 8 : field->right;
        char size[REPORT_SIZE_TEXT];
        char *word = report_text_format("%s %s", refusal->call, report_size_text(size, refusal->size_bytes));
        double width = report_svg_width(word);
        fprintf(field->stream, "<path d=\"M%.1f %.1fl-4 -9h8z\" fill=\"#b00\"/>\n", x, top + 13);
        put_line(field, below, x, top + 13, "stroke=\"#b00\" stroke-dasharray=\"1 3\"");
        if (x + 8 >= taken && x + 8 + width <= next) {
            report_svg_text(field->stream, x + 8, top + 13, "", word);
            taken = x + 8 + width;
        } else if (i + 1 == process->refusal_count && x - 8 - width >= taken) {
            report_svg_text(field->stream, x - 8, top + 13, "text-anchor=\"end\"", word);
        }
        taken = taken > x + 8 ? taken : x + 8;
        free(word);
    }
}

void plot_strips(const struct plot_field *field, const struct plot_field *below, const struct report_process *process)
{
    double top = field->top - plot_strips_height(process);
    if (process->phase_count > 0) {
        put_phases(field, below, process, top);
        top += PLOT_STRIP;
    }
    if (process->refusal_count > 0)
        put_refusals(field, below, process, top);
}
