/*
 * html.h - the report as an HTML page that is also XML. html.c prints its parts: escaped texts, times, tables.
 */
#ifndef SG_TOOLS_REPORT_HTML_HTML_H
#define SG_TOOLS_REPORT_HTML_HTML_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "doctor/doctor.h"
#include "model/model.h"
#include "model/timeline_reader.h"

enum report_html_kind {
    REPORT_HTML_NAME, /* name of the row */
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
    size_t count, cell; /* cell: the next to fill */
};

/* The style sheet. */
extern const char report_html_style[];

/* Prints <TAG ATTRIBUTES>text</TAG> with the text escaped. `attributes` are not escaped; "" for none. */
void report_html_element(FILE *stream, const char *tag, const char *attributes, const char *text);
/* Prints a time in the local time zone, or "-". */
void report_html_time(FILE *stream, int64_t time_ns);

/* Begins a table. Without columns it has two, a name and a value, and no headings. */
void report_html_table_begin(struct report_html_table *table, FILE *stream, const char *caption,
                             const struct report_html_column *columns, size_t count);
void report_html_row(struct report_html_table *table, const char *attributes);
/* Begins the next cell of the row; the caller prints its content. */
void report_html_cell_begin(struct report_html_table *table, const char *attributes);
void report_html_cell_end(struct report_html_table *table);
void report_html_cell(struct report_html_table *table, const char *text);
void report_html_cell_bytes(struct report_html_table *table, uint64_t bytes);
void report_html_cell_count(struct report_html_table *table, uint64_t count);
void report_html_cell_time(struct report_html_table *table, int64_t time_ns);
void report_html_table_end(struct report_html_table *table);

/* Prints a row of a table without columns. */
void report_html_fact(struct report_html_table *table, const char *name, const char *text);
void report_html_fact_bytes(struct report_html_table *table, const char *name, uint64_t bytes);
void report_html_fact_count(struct report_html_table *table, const char *name, uint64_t count);
void report_html_fact_time(struct report_html_table *table, const char *name, int64_t time_ns);
/* Adds a row for an entry of an environment, "NAME=value", if its name begins with SPARKGUARD_. */
void report_html_variable(struct report_html_table *table, const char *entry);

/* Whether the time line of a process is drawn, or why not. */
enum report_html_drawing {
    REPORT_HTML_LEFT_OUT, /* too many others have a higher peak */
    REPORT_HTML_DRAWN,
    REPORT_HTML_NO_TIMELINE,
    REPORT_HTML_BAD_TIMELINE,
};

/* A process that has a table row and a section. */
struct report_html_entry {
    const struct model_job *job;
    const struct model_process *process;
    struct report_html_entry *parent, *first_child, *last_child, *next;
    size_t depth;
    enum report_html_drawing drawing;
    struct model_timeline timeline; /* the time line, if it is drawn */
};

struct report_html_page {
    const struct model *model;
    const struct model_scope *scope;
    const struct doctor *doctor;
    struct report_html_entry *entries; /* the index of an entry is its name in the page */
    size_t entry_count;
    size_t drawn_count;
    bool has_complained; /* a message about an untrusted time line was printed */
};

/* Orders the processes, leaves out those beyond the limit, and reads the time lines of those that held most. */
void report_html_lay_out(struct report_html_page *page);

/* Return the first process of a job, and the next one: children follow their parents. NULL: no more. */
const struct report_html_entry *report_html_first(const struct report_html_page *page, const struct model_job *job);
const struct report_html_entry *report_html_next(const struct report_html_entry *entry);

/* job.c: print the verdict of a job's last run, a table of its runs if there are several, and its drawing with a table
 * of the figures, if a process has a time line. `number` is the job's place in the page. */
void report_html_verdict(FILE *stream, const struct model_job *job, size_t number);
void report_html_runs(FILE *stream, const struct model_job *job);
void report_html_job_drawing(FILE *stream, const struct model_job *job, size_t number);

/* Print the sections of the machine, of the doctor's findings, and of one process. */
void report_html_machine(FILE *stream, const struct model *model);
void report_html_checks(FILE *stream, const struct doctor *doctor);
void report_html_process(FILE *stream, const struct report_html_page *page, const struct report_html_entry *entry);

/* Returns the class attribute for the state of a process. */
const char *report_html_state_class(const struct model_process *process);

/* Writes the model to a page. Returns the tool's exit status; messages go to stderr. */
int report_html_file(const struct model *model, const struct model_scope *scope, const char *path);

#endif
