/*
 * legend.c - draws legends: a row of samples with words beside them.
 */
#include "common/text.h"
#include "report/draw/draw.h"
#include "report/draw/svg.h"

enum { SAMPLE_WIDTH = 22, WORDS_LEFT = 28, ITEMS_APART = 14 };

struct draw_legend draw_legend_begin(const struct draw_field *field, double y, const char *title)
{
    svg_text(field->stream, field->left, y, "font-weight=\"bold\"", title);
    return (struct draw_legend){field, field->left + svg_width(title) * 1.15 + 20, y};
}

double draw_legend_item(struct draw_legend *legend, const char *words)
{
    double width = WORDS_LEFT + svg_width(words), x;
    if (legend->x + width > legend->field->right) {
        legend->x = legend->field->left;
        legend->y += DRAW_LINE;
    }
    x = legend->x;
    svg_text(legend->field->stream, x + WORDS_LEFT, legend->y, "", words);
    legend->x += width + ITEMS_APART;
    return x;
}

void draw_legend_area(struct draw_legend *legend, const char *fill, const char *attributes, const char *words)
{
    double x = draw_legend_item(legend, words);
    fprintf(legend->field->stream,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"12\" fill=\"url(#%s%s)\" stroke=\"#555\"%s/>\n", x,
            legend->y - 10, SAMPLE_WIDTH, legend->field->name, fill, attributes);
}

void draw_legend_line(struct draw_legend *legend, const char *attributes, const char *words, uint64_t bytes)
{
    double x = draw_legend_item(legend, bytes != SG_UNKNOWN ? text_format("%s %s", words, text_size(bytes)) : words);
    fprintf(legend->field->stream, "<path d=\"M%.1f %.1fh%d\" fill=\"none\" %s/>\n", x, legend->y - 4, SAMPLE_WIDTH,
            attributes);
}
