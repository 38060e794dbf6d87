/*
 * machine.c - draws figures over time as lines of steps, and the machine's memory, which is below every drawing.
 */
#include "common/bytes.h"
#include "report/draw/draw.h"

void draw_steps(const struct draw_field *field, const struct draw_points *points, enum draw_figure figure,
                const char *attributes)
{
    uint64_t before = SG_UNKNOWN;
    fputs("<path fill=\"none\" d=\"", field->stream);
    for (size_t i = 0; i < points->count; i++) {
        const struct draw_point *point = &points->at[i];
        uint64_t bytes = point->figure[figure];
        bool is_last = i + 1 == points->count || point[1].x > point->end_x; /* the axis is cut behind it */
        if (bytes != before && before != SG_UNKNOWN)
            fprintf(field->stream, "H%.1f", point->x);
        if (bytes != SG_UNKNOWN && before == SG_UNKNOWN)
            fprintf(field->stream, "M%.1f %.1f", point->x, draw_y(field, bytes));
        else if (bytes != SG_UNKNOWN && bytes != before)
            fprintf(field->stream, "V%.1f", draw_y(field, bytes));
        if (bytes != SG_UNKNOWN && is_last)
            fprintf(field->stream, "H%.1f", point->end_x);
        before = is_last ? SG_UNKNOWN : bytes;
    }
    fprintf(field->stream, "\" %s/>\n", attributes);
}

uint64_t draw_highest(const struct draw_points *points, enum draw_figure figure)
{
    uint64_t most = 0;
    for (size_t i = 0; i < points->count; i++)
        if (points->at[i].figure[figure] != SG_UNKNOWN)
            most = bytes_max(most, points->at[i].figure[figure]);
    return most;
}

uint64_t draw_last(const struct draw_points *points, enum draw_figure figure)
{
    uint64_t last = SG_UNKNOWN;
    for (size_t i = 0; i < points->count; i++)
        last = points->at[i].figure[figure] != SG_UNKNOWN ? points->at[i].figure[figure] : last;
    return last;
}

static void put_gaps(const struct draw_field *field, const struct draw_points *points)
{
    for (size_t i = 0; i < points->count; i++) {
        const struct draw_point *first = &points->at[i];
        if (first->is_recorded)
            continue;
        while (i + 1 < points->count && !points->at[i + 1].is_recorded && points->at[i + 1].x <= points->at[i].end_x)
            i++;
        fprintf(field->stream,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"url(#%sgap)\" "
                "opacity=\"0.5\"/>\n",
                first->x, field->top, points->at[i].end_x - first->x, field->bottom - field->top, field->name);
    }
}

struct draw_field draw_machine(const struct draw_field *above, double top, double height,
                               const struct draw_points *points)
{
    static const char usable[] = "stroke=\"#000\" stroke-width=\"1.5\"";
    static const char reserve[] = "stroke=\"#a40\" stroke-width=\"1.5\" stroke-dasharray=\"8 3\"";
    static const char floor[] = "stroke=\"#b00\" stroke-width=\"1.5\" stroke-dasharray=\"2 2\"";
    struct draw_field field = *above;
    struct draw_legend legend = draw_legend_begin(&field, top + 12, "Memory of the machine");
    draw_legend_line(&legend, usable, "usable, in the end", draw_last(points, DRAW_USABLE));
    draw_legend_line(&legend, reserve, "reserve", draw_last(points, DRAW_RESERVE));
    draw_legend_line(&legend, floor, "floor", draw_last(points, DRAW_FLOOR));
    field.top = legend.y + 12;
    field.bottom = field.top + height;
    field.most_bytes = draw_scale_top(bytes_max(draw_highest(points, DRAW_USABLE), draw_highest(points, DRAW_RESERVE)));
    put_gaps(&field, points);
    draw_size_axis(&field);
    draw_steps(&field, points, DRAW_FLOOR, floor);
    draw_steps(&field, points, DRAW_RESERVE, reserve);
    draw_steps(&field, points, DRAW_USABLE, usable);
    return field;
}
