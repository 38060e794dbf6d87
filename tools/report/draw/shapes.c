/*
 * shapes.c - the fills of the bands, and where their columns are in a drawing.
 */
#include "report/draw/draw.h"

/* The fills differ in colour and by their lines. The last two are those of several processes. */
static const struct {
    const char *ground, *lines;
} fills[BANDS_MAX] = {
    {"#c9d9ec", "M0 0"},         {"#f6d9b8", "M0 0l8 8M-2 6l4 4M6 -2l4 4"},
    {"#cde5c4", "M0 4h8"},       {"#e6d3e6", "M2 2h1M6 6h1"},
    {"#f6e7b4", "M4 0v8"},       {"#cfe8e2", "M0 4h8M4 0v8"},
    {"#f2c9c9", "M0 2h4M4 6h4"}, {"#d9d2c5", "M2 1v3M6 5v3"},
    {"#e8e8e8", "M4 4h1"},       {"#fff", "M0 0"},
};

void draw_pattern(FILE *stream, const char *name, const char *id, const char *ground, const char *lines,
                  const char *colour)
{
    fprintf(stream,
            "<pattern id=\"%s%s\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\"><rect width=\"8\" "
            "height=\"8\" fill=\"%s\"/><path d=\"%s\" stroke=\"%s\" stroke-width=\"0.8\"/></pattern>\n",
            name, id, ground, lines, colour);
}

void draw_bands_patterns(FILE *stream, const char *name, const struct bands *bands)
{
    char id[32];
    fputs("<defs>\n", stream);
    for (size_t i = 0; i < bands->band_count; i++) {
        snprintf(id, sizeof id, "band-%zu", i);
        draw_pattern(stream, name, id, fills[i].ground, fills[i].lines, "#666");
    }
    draw_pattern(stream, name, "gap", "#fff", "M0 8l8 -8M-2 2l4 -4M6 10l4 -4", "#888");
    fputs("</defs>\n", stream);
}

void draw_bands_fill(FILE *stream, const char *name, const struct bands *bands, size_t band, enum bands_record record)
{
    if (record == BANDS_RECORDED && bands->band[band].has_timeline)
        fprintf(stream, "fill=\"url(#%sband-%zu)\"", name, band);
    else
        fprintf(stream, "fill=\"url(#%sgap)\"", name);
}

double draw_bands_x(const struct draw_field *field, const struct bands *bands, size_t span, size_t column)
{
    const struct draw_piece *piece = &field->piece[span];
    return piece->left + (piece->right - piece->left) * (double)column / (double)bands->span[span].count;
}

size_t draw_bands_alike(const struct bands_band *band, const struct bands_span *span, size_t first)
{
    size_t k = first;
    while (k < span->count && band->cell[span->first + k].record == band->cell[span->first + first].record)
        k++;
    return k - first;
}
