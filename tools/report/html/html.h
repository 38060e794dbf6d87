/*
 * html.h - what a page is put together from: texts that cannot break out, times, tables. What comes out is XML as well.
 */
#ifndef SG_TOOLS_REPORT_HTML_HTML_H
#define SG_TOOLS_REPORT_HTML_HTML_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "model/model.h"

enum report_html_kind {
    REPORT_HTML_NAME, /* of the row */
    REPORT_HTML_WORDS,
    REPORT_HTML_NUMBERS,
};

struct report_html_column {
    const char *heading;
    enum report_html_kind kind;
};

struct report_html_table {
    FILE *stream;
    const struct report_html_column *columns;
    size_t count, cell; /* the next to fill */
};

/* The style sheet. */
extern const char report_html_style[];

/* <TAG CLASS>text</TAG>, escaped; `attributes` are the caller's own words, "" for none. */
void report_html_element(FILE *stream, const char *tag, const char *attributes, const char *text);
/* A time in the reader's time zone, or "-". */
void report_html_time(FILE *stream, int64_t time_ns);

/* Without columns it has two, a name and what there is to it, and no headings. */
void report_html_table_begin(struct report_html_table *table, FILE *stream, const char *caption,
                             const struct report_html_column *columns, size_t count);
void report_html_row(struct report_html_table *table, const char *attributes);
/* The next cell of the row, to be filled by hand. */
void report_html_cell_begin(struct report_html_table *table, const char *attributes);
void report_html_cell_end(struct report_html_table *table);
void report_html_cell(struct report_html_table *table, const char *text);
void report_html_cell_bytes(struct report_html_table *table, uint64_t bytes);
void report_html_cell_count(struct report_html_table *table, uint64_t count);
void report_html_cell_time(struct report_html_table *table, int64_t time_ns);
void report_html_table_end(struct report_html_table *table);

/* A row of a table without columns. */
void report_html_fact(struct report_html_table *table, const char *name, const char *text);
void report_html_fact_bytes(struct report_html_table *table, const char *name, uint64_t bytes);
void report_html_fact_count(struct report_html_table *table, const char *name, uint64_t count);
void report_html_fact_time(struct report_html_table *table, const char *name, int64_t time_ns);
/* A row for an entry of an environment, "NAME=value", if its name begins with SPARKGUARD_; of others nothing is told. */
void report_html_variable(struct report_html_table *table, const char *entry);

#endif
