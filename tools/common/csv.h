/*
 * csv.h - rows of comma-separated values, quoted as RFC 4180 has it; a row ends with a newline alone.
 */
#ifndef SG_TOOLS_COMMON_CSV_H
#define SG_TOOLS_COMMON_CSV_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct csv {
    FILE *stream;
    bool has_cells; /* in this row */
};

/* The text as it is; NULL: an empty cell. */
void csv_text(struct csv *csv, const char *text);
/* A plain number; SG_UNKNOWN: an empty cell. */
void csv_number(struct csv *csv, uint64_t number);
void csv_end_row(struct csv *csv);

#endif
