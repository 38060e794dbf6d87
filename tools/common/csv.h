/*
 * csv.h - writes comma-separated values with the quoting of RFC 4180. Unlike there, a row ends with "\n".
 */
#ifndef SG_TOOLS_COMMON_CSV_H
#define SG_TOOLS_COMMON_CSV_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct csv {
    FILE *stream;
    bool has_cells; /* the current row has cells */
};

/* Writes a cell with a text, unchanged but for quoting, and for "'" before a text that a spreadsheet would take for a
 * formula. NULL makes an empty cell. */
void csv_text(struct csv *csv, const char *text);
/* Writes a cell with a decimal number. SG_UNKNOWN makes an empty cell. */
void csv_number(struct csv *csv, uint64_t number);
void csv_end_row(struct csv *csv);

#endif
