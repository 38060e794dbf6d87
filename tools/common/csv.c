/*
 * csv.c - see csv.h.
 */
#include "common/csv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "sparkguard_abi.h"

static void begin_cell(struct csv *csv)
{
    if (csv->has_cells)
        fputc(',', csv->stream);
    csv->has_cells = true;
}

/* Returns whether a spreadsheet would take a text for a formula. A number with a sign is none. */
static bool is_formula(const char *text)
{
    char *end;
    if (text[0] == '\0' || strchr("=+-@\t\r", text[0]) == NULL)
        return false;
    (void)strtod(text, &end);
    return *end != '\0' || end == text || text[strspn(text, "+-.eE0123456789")] != '\0';
}

void csv_text(struct csv *csv, const char *text)
{
    begin_cell(csv);
    bool is_marked = text != NULL && is_formula(text);
    if (text == NULL || (!is_marked && strpbrk(text, "\",\n\r") == NULL)) {
        fputs(text != NULL ? text : "", csv->stream);
        return;
    }
    fputs(is_marked ? "\"'" : "\"", csv->stream);
    for (; *text != '\0'; text++) {
        if (*text == '"')
            fputc('"', csv->stream);
        fputc(*text, csv->stream);
    }
    fputc('"', csv->stream);
}

void csv_number(struct csv *csv, uint64_t number)
{
    begin_cell(csv);
    if (number != SG_UNKNOWN)
        fprintf(csv->stream, "%" PRIu64, number);
}

void csv_end_row(struct csv *csv)
{
    fputc('\n', csv->stream);
    csv->has_cells = false;
}
