/*
 * table.c - see table.h. libsmartcols fails only when out of memory.
 */
#include "common/table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"

enum { COMMAND_COLUMNS = 48 };

void table_begin(struct table *table, const struct style *style, const struct table_column *columns, size_t count)
{
    *table = (struct table){.table = scols_new_table(), .style = style};
    scols_table_set_stream(table->table, style->stream);
    scols_table_enable_colors(table->table, style->has_colour);
    scols_table_enable_ascii(table->table, !style->is_utf8);
    scols_table_enable_noencoding(table->table, 1); /* cells are escaped by text_printable() */
    scols_table_set_termforce(table->table, style->is_terminal ? SCOLS_TERMFORCE_ALWAYS : SCOLS_TERMFORCE_NEVER);
    for (size_t i = 0; i < count; i++) {
        static const int flags[] = {[TABLE_NUMBERS] = SCOLS_FL_RIGHT,
                                    [TABLE_WORDS] = 0,
                                    [TABLE_TREE] = SCOLS_FL_TREE | SCOLS_FL_TRUNC,
                                    [TABLE_CUT] = SCOLS_FL_TRUNC};
        struct libscols_column *column =
            scols_table_new_column(table->table, columns[i].heading, 0.1, flags[columns[i].kind]);
        scols_cell_set_color(scols_column_get_header(column), "\033[2m");
    }
}

struct libscols_line *table_line(struct table *table, struct libscols_line *parent)
{
    table->line = scols_table_new_line(table->table, parent);
    table->cell = 0;
    return table->line;
}

void table_cell(struct table *table, const char *text, enum style_colour colour)
{
    scols_line_set_data(table->line, table->cell, text);
    if (table->style->has_colour && colour != STYLE_PLAIN)
        scols_cell_set_color(scols_line_get_cell(table->line, table->cell), style_colour_on(table->style, colour));
    table->cell++;
}

void table_bytes(struct table *table, uint64_t bytes)
{
    table_cell(table, text_size(bytes), bytes == 0 ? STYLE_DIM : STYLE_PLAIN);
}

void table_count(struct table *table, uint64_t count, enum style_colour colour_if_any)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, count);
    table_cell(table, text, count > 0 ? colour_if_any : STYLE_DIM);
}

void table_text(struct table *table, const char *raw_text)
{
    table_cell(table, text_printable(raw_text, table->style->is_utf8), STYLE_PLAIN);
}

void table_command(struct table *table, const char *prefix, const char *raw_text)
{
    char *command = text_printable(raw_text[0] ? text_command(raw_text) : "-", table->style->is_utf8);
    char *text = text_format("%s%s", prefix, command);
    if (!table->style->is_terminal)
        text_shorten(text, COMMAND_COLUMNS);
    table_cell(table, text, STYLE_PLAIN);
}

/* Without a terminal, libsmartcols pads the last column with blanks, which would show up in files and diffs. Prints the
 * lines without them. */
static void print_without_blanks(struct table *table)
{
    char *text = NULL;
    scols_print_table_to_string(table->table, &text);
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL && *line != '\0';) {
        size_t length = strlen(line);
        while (length > 0 && line[length - 1] == ' ')
            length--;
        fprintf(table->style->stream, "%.*s\n", (int)length, line);
    }
    free(text);
}

void table_end(struct table *table)
{
    if (table->style->is_terminal)
        scols_print_table(table->table);
    else
        print_without_blanks(table);
    scols_unref_table(table->table);
    table->table = NULL;
}
