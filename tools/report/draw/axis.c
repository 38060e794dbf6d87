/*
 * axis.c - maps times and bytes to positions in a field of a plot, and draws its scales.
 */
#include <inttypes.h>
#include <string.h>

#include "report/draw/draw.h"
#include "report/draw/svg.h"
#include "common/text.h"

static double place(const struct draw_piece *piece, int64_t time_ns)
{
    double part = (double)(time_ns - piece->begin_ns) / (double)(piece->end_ns - piece->begin_ns);
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    return piece->left + part * (piece->right - piece->left);
}

double draw_x(const struct draw_field *field, int64_t time_ns)
{
    const struct draw_piece whole = {field->begin_ns, field->end_ns, field->left, field->right};
    size_t i = 0;
    while (i + 1 < field->piece_count && time_ns > field->piece[i].end_ns)
        i++;
    return place(field->piece != NULL ? &field->piece[i] : &whole, time_ns);
}

double draw_y(const struct draw_field *field, uint64_t bytes)
{
    double part = (double)bytes / (double)field->most_bytes;
    part = part > 1 ? 1 : part;
    return field->bottom - part * (field->bottom - field->top);
}

uint64_t draw_scale_top(uint64_t bytes)
{
    return bytes < 4096 ? 4096 : bytes + bytes / 16;
}

uint64_t draw_near_limit(uint64_t limit_bytes, uint64_t most_bytes)
{
    enum { NEAR_TIMES = 4 };
    return limit_bytes != SG_UNKNOWN && limit_bytes / NEAR_TIMES <= most_bytes ? limit_bytes : 0;
}

void draw_limit(const struct draw_field *field, double left, double right, uint64_t limit_bytes)
{
    static const char words_style[] =
        "text-anchor=\"end\" fill=\"#b00\" paint-order=\"stroke\" stroke=\"#fff\" stroke-width=\"3\"";
    if (limit_bytes == SG_UNKNOWN)
        return;
    bool is_inside = limit_bytes <= field->most_bytes;
    double y = is_inside ? draw_y(field, limit_bytes) : field->top;
    if (is_inside)
        fprintf(field->stream,
                "<path d=\"M%.1f %.1fH%.1f\" fill=\"none\" stroke=\"#b00\" stroke-width=\"1.5\" "
                "stroke-dasharray=\"12 3\"/>\n",
                left, y, right);
    char *words = text_format("limit %s%s", text_size(limit_bytes), is_inside ? "" : ", above this scale");
    char *shown = svg_fit(words, right - left - 6);
    svg_text(field->stream, right - 3, y - 4 < field->top + 10 ? y + 13 : y - 4, words_style, shown);
}

/* Formats "16 GiB" instead of "16.0 GiB". */
static const char *name_size(uint64_t bytes)
{
    char *text = text_size(bytes), *tenth = strstr(text, ".0 ");
    if (tenth != NULL)
        memmove(tenth, tenth + 2, strlen(tenth + 2) + 1);
    return text;
}

/* Steps are powers of two, which are round numbers in KiB, MiB and GiB. */
void draw_size_axis(const struct draw_field *field)
{
    enum { LINES_MAX = 5 };
    uint64_t step = 1;
    while (field->most_bytes / step > LINES_MAX)
        step *= 2;
    for (uint64_t bytes = 0; bytes <= field->most_bytes; bytes += step) {
        double y = draw_y(field, bytes);
        fprintf(field->stream, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"%s\"/>\n", field->left, y, field->right,
                bytes == 0 ? "#333" : "#ddd");
        svg_text(field->stream, field->left - 8, y + 4, "text-anchor=\"end\"", bytes == 0 ? "0" : name_size(bytes));
    }
}

#define SECOND_NS INT64_C(1000000000)
#define MINUTE_NS (60 * SECOND_NS)
#define HOUR_NS (60 * MINUTE_NS)
#define DAY_NS (24 * HOUR_NS)

static int64_t choose_step(int64_t span_ns, int64_t steps_max)
{
    static const int64_t round_ns[] = {
        SECOND_NS / 1000, SECOND_NS / 500, SECOND_NS / 200, SECOND_NS / 100, SECOND_NS / 50, SECOND_NS / 20,
        SECOND_NS / 10,   SECOND_NS / 5,   SECOND_NS / 2,   SECOND_NS,       2 * SECOND_NS,  5 * SECOND_NS,
        10 * SECOND_NS,   15 * SECOND_NS,  30 * SECOND_NS,  MINUTE_NS,       2 * MINUTE_NS,  5 * MINUTE_NS,
        10 * MINUTE_NS,   15 * MINUTE_NS,  30 * MINUTE_NS,  HOUR_NS,         2 * HOUR_NS,    3 * HOUR_NS,
        6 * HOUR_NS,      12 * HOUR_NS,    DAY_NS,          2 * DAY_NS,
    };
    for (size_t i = 0; i < sizeof round_ns / sizeof round_ns[0]; i++)
        if (span_ns / round_ns[i] <= steps_max)
            return round_ns[i];
    return (span_ns / steps_max / DAY_NS + 1) * DAY_NS;
}

/* Formats "200 ms", "1.5 s", "40 s", "1 min 30 s", "2 h 30 min" or "3 d 12 h", without parts that are zero. */
static char *name_time(int64_t time_ns, int64_t step_ns)
{
    int64_t seconds = time_ns / SECOND_NS, minutes = time_ns / MINUTE_NS, hours = time_ns / HOUR_NS;
    const char *unit[2] = {"d", "h"};
    int64_t part[2] = {time_ns / DAY_NS, hours % 24};
    if (time_ns == 0)
        return text_format("0");
    if (step_ns < SECOND_NS)
        return seconds == 0 ? text_format("%" PRId64 " ms", time_ns / 1000000)
                            : text_format("%g s", (double)time_ns / 1e9);
    if (minutes == 0)
        return text_format("%" PRId64 " s", seconds);
    if (hours == 0)
        part[0] = minutes, part[1] = seconds % 60, unit[0] = "min", unit[1] = "s";
    else if (time_ns < DAY_NS)
        part[0] = hours, part[1] = minutes % 60, unit[0] = "h", unit[1] = "min";
    if (part[1] == 0)
        return text_format("%" PRId64 " %s", part[0], unit[0]);
    return text_format("%" PRId64 " %s %" PRId64 " %s", part[0], unit[0], part[1], unit[1]);
}

/* Prints when the piece begins, as far as there is space. */
static void put_begin(FILE *stream, const struct draw_piece *piece, double y)
{
    const char *started = text_time_local(piece->begin_ns);
    const char *words[] = {text_format("time since %s", started), started, text_clock_local(piece->begin_ns)};
    enum { COUNT = sizeof words / sizeof words[0] };
    size_t shown = 0;
    while (shown < COUNT && svg_width(words[shown]) > piece->right - piece->left)
        shown++;
    if (shown < COUNT)
        svg_text(stream, (piece->left + piece->right) / 2, y, "text-anchor=\"middle\"", words[shown]);
}

static void put_axis_piece(FILE *stream, const struct draw_piece *piece, double lowest)
{
    enum { STEP_WIDTH = 90, STEPS_MAX = 9 };
    int64_t steps_max = (int64_t)((piece->right - piece->left) / STEP_WIDTH), span_ns = piece->end_ns - piece->begin_ns;
    steps_max = steps_max < 1 ? 1 : steps_max > STEPS_MAX ? STEPS_MAX : steps_max;
    int64_t step_ns = choose_step(span_ns, steps_max);
    for (int64_t at_ns = 0; at_ns <= span_ns; at_ns += step_ns) {
        double x = place(piece, piece->begin_ns + at_ns);
        char *name = name_time(at_ns, step_ns);
        fprintf(stream, "<path d=\"M%.1f %.1fv5\" stroke=\"#333\"/>\n", x, lowest);
        svg_text(stream, x, lowest + 18, "text-anchor=\"middle\"", name);
    }
    put_begin(stream, piece, lowest + 38);
}

void draw_time_axis(const struct draw_field *field, double lowest)
{
    const struct draw_piece whole = {field->begin_ns, field->end_ns, field->left, field->right};
    for (size_t i = 0; i < field->piece_count; i++)
        put_axis_piece(field->stream, &field->piece[i], lowest);
    if (field->piece == NULL)
        put_axis_piece(field->stream, &whole, lowest);
}
