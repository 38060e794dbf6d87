/*
 * csv.c - see csv.h.
 */
#include "common/csv.h"

#include <inttypes.h>
#include <string.h>

#include "sparkguard_abi.h"

static void begin_cell(struct csv *csv)
{
    if (csv->has_cells)
        fputc(',', csv->stream);
    csv->has_cells = true;
}

void csv_text(struct csv *csv, const char *text)
{
    begin_cell(csv);
    if (text == NULL || strpbrk(text, "\",\n\r") == NULL) {
        fputs(text != NULL ? text : "", csv->stream);
        return;
    }
    fputc('"', csv->stream);
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
