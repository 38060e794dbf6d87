/*
 * table.h - prints tables and trees for people, through libsmartcols.
 */
#ifndef SG_TOOLS_COMMON_TABLE_H
#define SG_TOOLS_COMMON_TABLE_H

#include <libsmartcols/libsmartcols.h>
#include <stdint.h>

#include "common/style.h"

enum table_column_kind {
    TABLE_NUMBERS, /* right-aligned */
    TABLE_WORDS,   /* left-aligned */
    TABLE_TREE,    /* left-aligned, with tree branches, cut at the width of the terminal */
    TABLE_CUT,     /* left-aligned, cut at the width of the terminal */
};

struct table_column {
    const char *heading;
    enum table_column_kind kind;
};

struct table {
    struct libscols_table *table;
    struct libscols_line *line; /* the line added last */
    size_t cell;                /* index of the next cell to fill in that line */
    const struct style *style;
};

/* Begins a table with `count` columns. `style` must outlive the table. */
void table_begin(struct table *table, const struct style *style, const struct table_column *columns, size_t count);
/* Adds a line as a child of `parent` (NULL: at the top level). Returns the line, to be the parent of others. */
struct libscols_line *table_line(struct table *table, struct libscols_line *parent);
/* Fills the next cell of the current line. The text is copied and must be printable. */
void table_cell(struct table *table, const char *text, enum style_colour colour);
/* Fills the next cell with a size; "-" for SG_UNKNOWN. */
void table_bytes(struct table *table, uint64_t bytes);
/* Fills the next cell with a number, coloured unless 0. */
void table_count(struct table *table, uint64_t count, enum style_colour colour_if_any);
/* Fills the next cell with a text from another process, which is escaped (text_printable). */
void table_text(struct table *table, const char *raw_text);
/* Fills the next cell with a command line from another process, which is escaped. The cell shows a printable prefix and
 * the command without the directories of its program. Without a terminal, which would cut the column, the text is
 * shortened to 48 columns. */
void table_command(struct table *table, const char *prefix, const char *raw_text);
/* Prints the table and frees it. */
void table_end(struct table *table);

#endif
