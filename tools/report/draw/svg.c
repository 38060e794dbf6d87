/*
 * svg.c - see svg.h.
 */
#include "report/draw/svg.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/xml_escape.h"
#include "common/text.h"
#include "common/tool.h"
#include "report/draw/draw.h"

enum { WIDTH = 960, LEFT = 84, RIGHT = 916 };

#define COLUMN \
    6.7 /* mean width of a character of DejaVu Sans, the widest usual font, at 11 px, measured over sentences */

void svg_text(FILE *stream, double x, double y, const char *attributes, const char *text)
{
    fprintf(stream, "<text x=\"%.1f\" y=\"%.1f\"%s%s>", x, y, attributes[0] ? " " : "", attributes);
    xml_escape_text(stream, text);
    fputs("</text>\n", stream);
}

void svg_title(FILE *stream, const char *text)
{
    fputs("<title>", stream);
    xml_escape_text(stream, text);
    fputs("</title>", stream);
}

/* Returns an estimate of the width: East Asian characters take two columns. */
double svg_width(const char *text)
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

char *svg_fit(const char *text, double width)
{
    char *cut = text_printable(text, true);
    size_t columns = width > 0 ? (size_t)(width / COLUMN) : 0;
    if (svg_width(cut) > width)
        text_shorten(cut, svg_width(cut) > (double)strlen(cut) * COLUMN ? columns / 2 : columns);
    if (svg_width(cut) > width || (columns < 5 && strcmp(cut, text) != 0))
        cut[0] = '\0';
    return cut;
}

struct draw_field draw_sheet_begin(struct draw_sheet *sheet, const char *name)
{
    *sheet = (struct draw_sheet){.name = name};
    sheet->body = open_memstream(&sheet->text, &sheet->length);
    if (sheet->body == NULL)
        tool_end_without_memory();
    return (struct draw_field){.stream = sheet->body, .name = name != NULL ? name : "", .left = LEFT, .right = RIGHT};
}

void draw_sheet_end(struct draw_sheet *sheet, FILE *stream, double height, const char *title, const char *description)
{
    fclose(sheet->body);
    fprintf(stream,
            "%s<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d %.0f\" "
            "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"11\" fill=\"#111\" role=\"img\">",
            sheet->name == NULL ? "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" : "", WIDTH, height, WIDTH, height);
    svg_title(stream, title);
    fputs("<desc>", stream);
    xml_escape_text(stream, description);
    fputs("</desc>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n", stream);
    fwrite(sheet->text, 1, sheet->length, stream);
    fputs("</svg>\n", stream);
    free(sheet->text);
}
