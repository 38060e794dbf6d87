/*
 * svg.h - prints the elements of a drawing: shapes by their attributes, and escaped texts.
 *
 * Lengths are pixels of the drawing, which a viewer may scale.
 */
#ifndef SG_TOOLS_REPORT_DRAW_SVG_H
#define SG_TOOLS_REPORT_DRAW_SVG_H

#include <stdio.h>

/* Prints a text, escaped; characters that XML does not allow are spelt out. `attributes` are not escaped. */
void svg_text(FILE *stream, double x, double y, const char *attributes, const char *text);

/* Prints the tooltip of the enclosing shape, escaped. */
void svg_title(FILE *stream, const char *text);

/* Returns the approximate width of a text in the small size, without font data. */
double svg_width(const char *text);

/* Returns the text cut to about that width, "" if too little would be left. */
char *svg_fit(const char *text, double width);

#endif
