/*
 * table.h - tables and trees in the terminal: a thin layer over libsmartcols that knows our colours and columns.
 */
#ifndef SG_TOOLS_COMMON_TABLE_H
#define SG_TOOLS_COMMON_TABLE_H

#include <libsmartcols/libsmartcols.h>
#include <stdint.h>

#include "common/style.h"

enum table_column_kind {
    TABLE_NUMBERS, /* to the right */
    TABLE_WORDS,   /* to the left */
    TABLE_TREE,    /* to the left, with branches, cut where the terminal ends */
    TABLE_CUT,     /* to the left, cut where the terminal ends */
};

struct table_column {
    const char *heading;
    enum table_column_kind kind;
};

struct table {
    struct libscols_table *table;
    struct libscols_line *line; /* the last one added */
    size_t cell;                /* the next to fill of it */
    const struct style *style;
};

void table_begin(struct table *table, const struct style *style, const struct table_column *columns, size_t count);
/* A new line under `parent` (NULL: at the top); returns it, for children. */
struct libscols_line *table_line(struct table *table, struct libscols_line *parent);
/* The next cell of the line; the text is copied and must be printable. */
void table_cell(struct table *table, const char *text, enum style_colour colour);
void table_bytes(struct table *table, uint64_t bytes);
void table_count(struct table *table, uint64_t count, enum style_colour colour_if_any);
void table_text(struct table *table, const char *raw_text);
/* The same for a command line, without its program's directories and behind a printable prefix; where no terminal cuts
 * the column, it is shortened. */
void table_command(struct table *table, const char *prefix, const char *raw_text);
/* Prints and frees. */
void table_end(struct table *table);

#endif
