/*
 * html.c - see html.h.
 */
#include "report/html/html.h"

#include <inttypes.h>
#include <string.h>

#include "common/xml_escape.h"
#include "sparkguard_options.h"
#include "common/text.h"

static const struct report_html_column facts[] = {{NULL, REPORT_HTML_NAME}, {NULL, REPORT_HTML_WORDS}};

void report_html_element(FILE *stream, const char *tag, const char *attributes, const char *text)
{
    fprintf(stream, "<%s%s%s>", tag, attributes[0] ? " " : "", attributes);
    xml_escape_text(stream, text);
    fprintf(stream, "</%s>", tag);
}

void report_html_time(FILE *stream, int64_t time_ns)
{
    const char *utc = text_time_rfc3339(time_ns);
    if (utc != NULL)
        fprintf(stream, "<time datetime=\"%s\">%s</time>", utc, text_time_local(time_ns));
    else
        fputc('-', stream);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static const char *tag_of(const struct report_html_table *table)
{
    return table->columns[table->cell].kind == REPORT_HTML_NAME ? "th" : "td";
}

void report_html_table_begin(struct report_html_table *table, FILE *stream, const char *caption,
                             const struct report_html_column *columns, size_t count)
{
    *table = (struct report_html_table){stream, columns != NULL ? columns : facts, columns != NULL ? count : 2, 0};
    fprintf(stream, "<div class=\"scroll\"><table%s>\n", columns != NULL ? " class=\"list\"" : " class=\"facts\"");
    report_html_element(stream, "caption", "", caption);
    if (columns != NULL) {
        fputs("\n<thead><tr>", stream);
        for (size_t i = 0; i < count; i++)
            report_html_element(stream, "th",
                                columns[i].kind == REPORT_HTML_NUMBERS ? "scope=\"col\" class=\"n\"" : "scope=\"col\"",
                                columns[i].heading);
        fputs("</tr></thead>", stream);
    }
    fputs("\n<tbody>", stream);
}

void report_html_row(struct report_html_table *table, const char *attributes)
{
    fprintf(table->stream, "\n<tr%s%s>", attributes[0] ? " " : "", attributes);
    table->cell = 0;
}

void report_html_cell_begin(struct report_html_table *table, const char *attributes)
{
    static const char *const kinds[] = {" scope=\"row\"", "", " class=\"n\""};
    const struct report_html_column *column = &table->columns[table->cell];
    fprintf(table->stream, "<%s%s", tag_of(table), kinds[column->kind]);
    if (column->heading != NULL && column->kind != REPORT_HTML_NAME) /* narrow windows show the heading at each value */
        fprintf(table->stream, " data-h=\"%s\"", column->heading);
    fprintf(table->stream, "%s%s>", attributes[0] ? " " : "", attributes);
}

void report_html_cell_end(struct report_html_table *table)
{
    fprintf(table->stream, "</%s>", tag_of(table));
    if (++table->cell == table->count)
        fputs("</tr>", table->stream);
}

void report_html_cell(struct report_html_table *table, const char *text)
{
    report_html_cell_begin(table, "");
    xml_escape_text(table->stream, text);
    report_html_cell_end(table);
}

/* The title shows the exact number under the pointer. */
void report_html_cell_bytes(struct report_html_table *table, uint64_t bytes)
{
    char attributes[40] = "";
    if (bytes != SG_UNKNOWN && bytes >= 1024)
        snprintf(attributes, sizeof attributes, "title=\"%" PRIu64 " B\"", bytes);
    report_html_cell_begin(table, attributes);
    fputs(text_size(bytes), table->stream);
    report_html_cell_end(table);
}

void report_html_cell_count(struct report_html_table *table, uint64_t count)
{
    char text[24] = "-";
    if (count != SG_UNKNOWN)
        snprintf(text, sizeof text, "%" PRIu64, count);
    report_html_cell(table, text);
}

void report_html_cell_time(struct report_html_table *table, int64_t time_ns)
{
    report_html_cell_begin(table, "");
    report_html_time(table->stream, time_ns);
    report_html_cell_end(table);
}

void report_html_table_end(struct report_html_table *table)
{
    fputs("\n</tbody></table></div>\n", table->stream);
}

/* ---- tables of names and values ---------------------------------------------------------------------------------- */

static void begin_fact(struct report_html_table *table, const char *name)
{
    report_html_row(table, "");
    report_html_cell(table, name);
}

void report_html_fact(struct report_html_table *table, const char *name, const char *text)
{
    begin_fact(table, name);
    report_html_cell(table, text[0] ? text : "-");
}

void report_html_fact_bytes(struct report_html_table *table, const char *name, uint64_t bytes)
{
    begin_fact(table, name);
    report_html_cell_bytes(table, bytes);
}

void report_html_fact_count(struct report_html_table *table, const char *name, uint64_t count)
{
    begin_fact(table, name);
    report_html_cell_count(table, count);
}

void report_html_fact_time(struct report_html_table *table, const char *name, int64_t time_ns)
{
    begin_fact(table, name);
    report_html_cell_time(table, time_ns);
}

void report_html_variable(struct report_html_table *table, const char *entry)
{
    const char *equals = strchr(entry, '=');
    if (strncmp(entry, SG_VARIABLE_PREFIX, sizeof SG_VARIABLE_PREFIX - 1) != 0 || equals == NULL)
        return;
    report_html_fact(table, text_copy(entry, (size_t)(equals - entry)), equals + 1);
}
