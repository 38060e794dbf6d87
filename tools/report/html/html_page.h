/*
 * html_page.h - a page: the model, and of each process that it shows where it stands and what is drawn of it.
 */
#ifndef SG_TOOLS_REPORT_HTML_HTML_PAGE_H
#define SG_TOOLS_REPORT_HTML_HTML_PAGE_H

#include "doctor/doctor.h"
#include "model/model.h"
#include "model/timeline_reader.h"

enum report_html_drawing {
    REPORT_HTML_LEFT_OUT, /* others have a higher peak */
    REPORT_HTML_DRAWN,
    REPORT_HTML_NO_TIMELINE,
    REPORT_HTML_BAD_TIMELINE,
};

/* A process with a line and a section of its own. */
struct report_html_entry {
    const struct report_job *job;
    const struct report_process *process;
    struct report_html_entry *parent, *first_child, *last_child, *next;
    size_t depth;
    enum report_html_drawing drawing;
    struct report_timeline timeline; /* where it is drawn */
};

struct report_html_page {
    const struct report *report;
    const struct report_scope *scope;
    const struct doctor *doctor;
    struct report_html_entry *entries; /* the number of one names it in the page */
    size_t entry_count;
    size_t drawn_count;
    bool has_complained; /* of a time line that cannot be trusted */
};

/* Lays out the processes, folds what is too many, and reads the time lines of those that held most. */
void report_html_lay_out(struct report_html_page *page);
void report_html_clear(struct report_html_page *page);

/* The first process of a job, and the one behind it: children below their parents. NULL: no more. */
const struct report_html_entry *report_html_first(const struct report_html_page *page, const struct report_job *job);
const struct report_html_entry *report_html_next(const struct report_html_entry *entry);

/* The sections of the machine, of what was found of it, and of one process. */
void report_html_machine(FILE *stream, const struct report *report);
void report_html_checks(FILE *stream, const struct doctor *doctor);
void report_html_process(FILE *stream, const struct report_html_page *page, const struct report_html_entry *entry);

/* The attribute that says how the state of a process looks. */
const char *report_html_state_class(const struct report_process *process);

/* Writes what `report` shows into a file. Exit status of the tool; talks on stderr. */
int report_html_file(const struct report *report, const struct report_scope *scope, const char *path);

#endif
