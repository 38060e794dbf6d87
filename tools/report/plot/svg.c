/*
 * svg.c - see svg.h.
 */
#define _GNU_SOURCE
#include "report/plot/svg.h"

#include <stdint.h>
#include <string.h>

#include "common/xml_escape.h"
#include "common/text.h"

#define COLUMN \
    6.7 /* mean width of a character of DejaVu Sans, the widest usual font, at 11 px, measured over sentences */

void report_svg_text(FILE *stream, double x, double y, const char *attributes, const char *text)
{
    fprintf(stream, "<text x=\"%.1f\" y=\"%.1f\"%s%s>", x, y, attributes[0] ? " " : "", attributes);
    xml_escape_text(stream, text);
    fputs("</text>\n", stream);
}

void report_svg_title(FILE *stream, const char *text)
{
    fputs("<title>", stream);
    xml_escape_text(stream, text);
    fputs("</title>", stream);
}

/* Returns an estimate of the width: East Asian characters take two columns. */
double report_svg_width(const char *text)
{
    char *printable = text_printable(text, true);
    size_t left = strlen(printable), columns = 0;
    for (const char *p = printable; left > 0;) {
        uint32_t code;
        size_t length = text_utf8_next(p, left, &code);
        columns += code >= 0x1100 ? 2 : 1;
        p += length;
        left -= length;
    }
    return (double)columns * COLUMN;
}

char *report_svg_fit(const char *text, double width)
{
    char *cut = text_printable(text, true);
    size_t columns = width > 0 ? (size_t)(width / COLUMN) : 0;
    if (report_svg_width(cut) > width)
        text_shorten(cut, report_svg_width(cut) > (double)strlen(cut) * COLUMN ? columns / 2 : columns);
    if (report_svg_width(cut) > width || (columns < 5 && strcmp(cut, text) != 0))
        cut[0] = '\0';
    return cut;
}
