/*
 * svg.h - what a drawing is put together from: shapes by their attributes, texts that cannot break out of them.
 *
 * Lengths are pixels of the drawing, which a viewer may scale.
 */
#ifndef SG_TOOLS_REPORT_PLOT_SVG_H
#define SG_TOOLS_REPORT_PLOT_SVG_H

#include <stddef.h>
#include <stdio.h>

/* A text, escaped; what XML cannot hold is spelt out. `attributes` are the caller's own words. */
void report_svg_text(FILE *stream, double x, double y, const char *attributes, const char *text);

/* What a browser shows of the shape that it stands in, escaped as well. */
void report_svg_title(FILE *stream, const char *text);

/* About how wide a text is in the small size: no font is at hand. */
double report_svg_width(const char *text);

/* The text cut to about that width, "" where nothing worth reading is left. The caller frees. */
char *report_svg_fit(const char *text, double width);

#endif
