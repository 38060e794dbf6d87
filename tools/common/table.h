/*
 * table.h - tables and trees in the terminal: a thin layer over libsmartcols that knows our colours and columns.
 */
#ifndef SG_TOOLS_COMMON_TABLE_H
#define SG_TOOLS_COMMON_TABLE_H

#include <libsmartcols/libsmartcols.h>
#include <stdint.h>

#include "common/style.h"

enum report_column_kind {
    REPORT_NUMBERS, /* to the right */
    REPORT_WORDS,   /* to the left */
    REPORT_TREE,    /* to the left, with branches, cut where the terminal ends */
    REPORT_CUT,     /* to the left, cut where the terminal ends */
};

struct report_column {
    const char *heading;
    enum report_column_kind kind;
};

struct report_table {
    struct libscols_table *table;
    struct libscols_line *line; /* the last one added */
    size_t cell;                /* the next to fill of it */
    const struct report_style *style;
};

void report_table_begin(struct report_table *table, const struct report_style *style,
                        const struct report_column *columns, size_t count);
/* A new line under `parent` (NULL: at the top); returns it, for children. */
struct libscols_line *report_table_line(struct report_table *table, struct libscols_line *parent);
/* The next cell of the line; the text is copied and must be printable. */
void report_table_cell(struct report_table *table, const char *text, enum report_colour colour);
void report_table_bytes(struct report_table *table, uint64_t bytes);
void report_table_count(struct report_table *table, uint64_t count, enum report_colour colour_if_any);
void report_table_text(struct report_table *table, const char *raw_text);
/* The same for a command line, without its program's directories and behind a printable prefix; where no terminal cuts the column, it is shortened. */
void report_table_command(struct report_table *table, const char *prefix, const char *raw_text);
/* Prints and frees. */
void report_table_end(struct report_table *table);

#endif
