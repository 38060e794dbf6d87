/*
 * page.c - prints the model as one page for a bug report, without network access and scripts.
 */
#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "report/html/html.h"
#include "report/output.h"
#include "common/procfs.h"
#include "report/report.h"
#include "common/text.h"
#include "common/tool.h"

/* ---- head -------------------------------------------------------------------------------------------------------- */

/* The policy protects the reader's browser from texts in the page: nothing is loaded, and no script runs. */
static const char head[] = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                           "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                           "'unsafe-inline'; img-src data:\"/>\n"
                           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
                           "<meta name=\"generator\" content=\"sparkguard-report " SG_VERSION_TEXT "\"/>\n"
                           "<link rel=\"icon\" href=\"data:,\"/>\n";

static char *title_of(const struct report_html_page *page)
{
    const struct model_job *jobs = page->model->jobs;
    const char *name = jobs != NULL && jobs->next == NULL && jobs->name[0] ? jobs->name : NULL;
    if (page->scope->pid != 0)
        return text_format("sparkguard report: process %" PRIu32, page->scope->pid);
    return name != NULL ? text_format("sparkguard report: job %s", name) : text_format("sparkguard report");
}

/* Prints the verdicts of the jobs that were seen last: the page opens with what happened. */
static void put_verdicts(FILE *stream, const struct model *model)
{
    enum { VERDICTS_MAX = 12 };
    const struct model_job *job;
    size_t number = 0, count;
    DL_COUNT(model->jobs, job, count);
    DL_FOREACH (model->jobs, job)
        if (++number + VERDICTS_MAX > count)
            report_html_verdict(stream, job, number);
}

static void put_contents(FILE *stream, const struct model *model)
{
    const struct model_job *job;
    size_t number = 0;
    fputs("<nav aria-label=\"Contents\"><ul>\n<li><a href=\"#machine\">Machine</a></li>\n", stream);
    DL_FOREACH (model->jobs, job) {
        fprintf(stream, "<li><a href=\"#job-%zu\">Job ", ++number);
        report_html_element(stream, "bdi", "", job->name[0] ? job->name : "-");
        fputs("</a></li>\n", stream);
    }
    if (model->unguarded_count > 0 || model->unguarded_container_count > 0)
        fputs("<li><a href=\"#unguarded\">Unguarded processes</a></li>\n", stream);
    if (model->complaint_count > 0)
        fputs("<li><a href=\"#untrusted\">Files not trusted</a></li>\n", stream);
    fputs(
        "<li><a href=\"#checks\">Checks</a></li>\n<li><a href=\"#origin\">Sources of this page</a></li>\n</ul></nav>\n",
        stream);
}

static void put_page_head(FILE *stream, const struct report_html_page *page)
{
    char *title = title_of(page), zone[16] = "";
    time_t now = time(NULL);
    struct tm parts;
    if (localtime_r(&now, &parts) != NULL)
        strftime(zone, sizeof zone, "UTC%z", &parts);
    fputs(head, stream);
    report_html_element(stream, "title", "", title);
    fprintf(stream, "\n<style>\n%s</style>\n</head>\n<body>\n<header>\n", report_html_style);
    report_html_element(stream, "h1", "", title);
    fputc('\n', stream);
    put_verdicts(stream, page->model);
    fputs("<p class=\"dim\">Written ", stream);
    report_html_time(stream, tool_now_ns());
    fprintf(
        stream,
        " by sparkguard-report " SG_VERSION_TEXT "; times are those of %s. Unknown values are shown as “-”.</p>\n"
        "<p class=\"dim\">This page holds command lines, the names of jobs, libraries and folders, and variables that "
        "begin with SPARKGUARD_. Look through it before you show it to others.</p>\n",
        zone);
    put_contents(stream, page->model);
    fputs("</header>\n<main>\n", stream);
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static void put_job_figures(FILE *stream, const struct model_job *job)
{
    struct report_html_table table;
    char *running = text_format("%zu, %zu of them running", job->process_count, job->running_count);
    report_html_table_begin(&table, stream, "Figures of the job", NULL, 0);
    report_html_fact(&table, "Processes on record", running);
    char *place = model_job_place(job, true);
    if (place != NULL)
        report_html_fact(&table, "Where", place);
    report_html_fact_time(&table, "Started", job->started_ns);
    report_html_fact_time(&table, "Last seen", job->running_count > 0 ? tool_now_ns() : job->last_seen_ns);
    report_html_fact_bytes(&table, "Live, running processes", job->live_bytes);
    report_html_fact_bytes(&table, "Peak", job->peak_bytes);
    report_html_fact(&table, "Limit", job->limit_bytes == SG_UNKNOWN ? "none" : text_size(job->limit_bytes));
    report_html_fact_count(&table, "Refused requests", job->refused_count);
    report_html_table_end(&table);
}

static void put_process_state(struct report_html_table *table, const struct model_process *process)
{
    report_html_cell_begin(table, report_html_state_class(process));
    fprintf(table->stream, "%s%s%s%s%s", model_state_name[process->state],
            process->watchdog_event != NULL ? ", by its watchdog" : "", process->is_guarding ? "" : ", not guarding",
            model_process_is_alone(process) ? ", decides alone" : "", process->is_observing ? ", observed" : "");
    report_html_cell_end(table);
}

/* Prints a row. Children are indented; the parent's number is there for screen readers. */
static void put_entry_row(struct report_html_table *table, const struct report_html_page *page,
                          const struct report_html_entry *entry)
{
    enum { DEPTH_MAX = 10 };
    const struct model_process *process = entry->process;
    char attributes[64];
    snprintf(attributes, sizeof attributes, "class=\"command\" style=\"padding-left:%zuem\"",
             entry->depth < DEPTH_MAX ? entry->depth : DEPTH_MAX);
    report_html_row(table, "");
    report_html_cell_begin(table, "");
    fprintf(table->stream, "<a href=\"#process-%zu\">%" PRIu32 "</a>", (size_t)(entry - page->entries) + 1,
            model_process_number(process));
    report_html_cell_end(table);
    report_html_cell_begin(table, attributes);
    fputs(entry->depth > 0 ? "└ " : "", table->stream);
    report_html_element(table->stream, "bdi", "", process->command[0] ? process->command : "-");
    report_html_cell_end(table);
    put_process_state(table, process);
    report_html_cell_bytes(table, process->live_bytes);
    report_html_cell_bytes(table, process->peak_bytes);
    report_html_cell_bytes(table, process->state == SG_STATE_RUNNING ? process->promised_bytes : SG_UNKNOWN);
    report_html_cell_count(table, process->refused_count);
}

static void put_tree(FILE *stream, const struct report_html_page *page, const struct model_job *job)
{
    static const struct report_html_column columns[] = {
        {"PID", REPORT_HTML_NAME},        {"Command", REPORT_HTML_WORDS}, {"State", REPORT_HTML_WORDS},
        {"Live", REPORT_HTML_NUMBERS},    {"Peak", REPORT_HTML_NUMBERS},  {"Promised", REPORT_HTML_NUMBERS},
        {"Refused", REPORT_HTML_NUMBERS},
    };
    struct report_html_table table;
    const struct model_process *process;
    size_t folded = 0;
    report_html_table_begin(&table, stream, "Processes, children below their parents", columns,
                            sizeof columns / sizeof columns[0]);
    const struct report_html_entry *entry = report_html_first(page, job);
    for (; entry != NULL; entry = report_html_next(entry))
        put_entry_row(&table, page, entry);
    report_html_table_end(&table);
    DL_FOREACH (job->processes, process)
        folded += process->is_folded;
    if (folded > 0)
        fprintf(stream, "<p>%zu smaller processes are not shown; sparkguard-report --html FILE --all shows them.</p>\n",
                folded);
}

/* Returns whether the page draws a job: one of several processes, among the last ones. The drawing of a single process
 * stands in its own section. */
static bool has_drawing(const struct report_html_page *page, const struct model_job *job, size_t number)
{
    enum { DRAWN_MAX = 8 };
    size_t count;
    const struct model_job *each;
    DL_COUNT(page->model->jobs, each, count);
    return page->scope->pid == 0 && job->process_count > 1 && number + DRAWN_MAX > count;
}

static void put_job_sections(FILE *stream, const struct report_html_page *page)
{
    const struct model_job *job;
    size_t number = 0;
    DL_FOREACH (page->model->jobs, job) {
        fprintf(stream, "<section id=\"job-%zu\">\n<h2>Job ", ++number);
        report_html_element(stream, "bdi", "", job->name[0] ? job->name : "-");
        fputs("</h2>\n", stream);
        put_job_figures(stream, job);
        report_html_runs(stream, job);
        if (has_drawing(page, job, number))
            report_html_job_drawing(stream, job, number);
        put_tree(stream, page, job);
        const struct report_html_entry *entry = report_html_first(page, job);
        for (; entry != NULL; entry = report_html_next(entry))
            report_html_process(stream, page, entry);
        fputs("</section>\n", stream);
    }
    if (number == 0)
        fputs("<p>No guarded program is on record.</p>\n", stream);
    if (page->model->hidden_jobs > 0)
        fprintf(stream, "<p>%zu more jobs are on record; sparkguard-report --html FILE --all shows them.</p>\n",
                page->model->hidden_jobs);
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static void put_unguarded_containers(FILE *stream, const struct model *model)
{
    static const struct report_html_column columns[] = {
        {"Container", REPORT_HTML_NAME},   {"User", REPORT_HTML_WORDS},     {"Processes", REPORT_HTML_NUMBERS},
        {"Resident", REPORT_HTML_NUMBERS}, {"Device", REPORT_HTML_NUMBERS}, {"Why", REPORT_HTML_WORDS},
    };
    struct report_html_table table;
    if (model->unguarded_container_count == 0)
        return;
    report_html_table_begin(&table, stream, "Unguarded processes by container", columns,
                            sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < model->unguarded_container_count; i++) {
        const struct model_unguarded_container *container = &model->unguarded_containers[i];
        char *user = host_user_name(container->user);
        report_html_row(&table, "");
        report_html_cell(&table, container->name);
        report_html_cell(&table, user);
        report_html_cell_count(&table, container->process_count);
        report_html_cell_bytes(&table, container->resident_bytes);
        report_html_cell_bytes(&table, container->device_bytes);
        report_html_cell(&table, container->reason != NULL ? container->reason : "-");
    }
    report_html_table_end(&table);
}

static void put_unguarded_processes(FILE *stream, const struct model *model)
{
    static const struct report_html_column columns[] = {
        {"PID", REPORT_HTML_NAME},        {"Command", REPORT_HTML_WORDS},    {"User", REPORT_HTML_WORDS},
        {"Container", REPORT_HTML_WORDS}, {"Resident", REPORT_HTML_NUMBERS}, {"Device", REPORT_HTML_NUMBERS},
        {"Why", REPORT_HTML_WORDS},
    };
    struct report_html_table table;
    if (model->unguarded_count == 0)
        return;
    report_html_table_begin(&table, stream, "Largest unguarded processes", columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < model->unguarded_count; i++) {
        const struct model_unguarded *unguarded = &model->unguarded[i];
        char *user = host_user_name(unguarded->user);
        report_html_row(&table, "");
        report_html_cell_count(&table, unguarded->pid);
        report_html_cell_begin(&table, "class=\"command\"");
        report_html_element(stream, "bdi", "", unguarded->command);
        report_html_cell_end(&table);
        report_html_cell(&table, user);
        report_html_cell(&table, unguarded->container != NULL ? unguarded->container : "-");
        report_html_cell_bytes(&table, unguarded->resident_bytes);
        report_html_cell_bytes(&table, unguarded->device_bytes);
        report_html_cell(&table, unguarded->reason != NULL ? unguarded->reason : "-");
    }
    report_html_table_end(&table);
}

static void put_unguarded_section(FILE *stream, const struct model *model)
{
    if (model->unguarded_count == 0 && model->unguarded_container_count == 0)
        return;
    fputs("<section id=\"unguarded\">\n<h2>Unguarded processes</h2>\n", stream);
    put_unguarded_processes(stream, model);
    put_unguarded_containers(stream, model);
    fputs("</section>\n", stream);
}

static void put_untrusted(FILE *stream, const struct model *model)
{
    if (model->complaint_count == 0)
        return;
    fputs("<section id=\"untrusted\">\n<h2>Files not trusted</h2>\n<ul>\n", stream);
    for (size_t i = 0; i < model->complaint_count; i++) {
        report_html_element(stream, "li", "", model->complaints[i]);
        fputc('\n', stream);
    }
    fputs("</ul>\n</section>\n", stream);
}

/* Prints a folder, and why it could not be read. */
static void put_folder(struct report_html_table *table, const char *name, const char *path, int error)
{
    char *text = path == NULL ? text_copy("", 0)
                              : text_format("%s%s%s", path, error != 0 ? ": " : "", error != 0 ? strerror(error) : "");
    report_html_fact(table, name, text);
}

/* Prints the folders, and of the environment the SPARKGUARD_ variables only. */
static void put_origin(FILE *stream, const struct model *model)
{
    struct report_html_table table;
    fputs("<section id=\"origin\">\n<h2>Sources of this page</h2>\n", stream);
    report_html_table_begin(&table, stream, "Folders read, and the environment of sparkguard-report", NULL, 0);
    for (size_t i = 0; i < model->directory_count; i++)
        put_folder(&table, "Live statistics", model->directories[i].path, model->directories[i].error);
    put_folder(&table, "History", model->history, model->history_error);
    for (char **entry = environ; *entry != NULL; entry++)
        report_html_variable(&table, *entry);
    report_html_table_end(&table);
    fputs("</section>\n", stream);
}

static void put_page(FILE *stream, void *content)
{
    const struct report_html_page *page = content;
    put_page_head(stream, page);
    report_html_machine(stream, page->model);
    put_job_sections(stream, page);
    put_unguarded_section(stream, page->model);
    put_untrusted(stream, page->model);
    report_html_checks(stream, page->doctor);
    put_origin(stream, page->model);
    fputs("</main>\n</body>\n</html>\n", stream);
}

int report_html_file(const struct model *model, const struct model_scope *scope, const char *path)
{
    const char *live_root = procfs_live_root;
    struct doctor *doctor = doctor_examine();
    procfs_live_root =
        live_root; /* the doctor has set it to the root that it examined; processes are always the real ones */
    struct report_html_page page = {.model = model, .scope = scope, .doctor = doctor};
    report_html_lay_out(&page);
    int status = report_output_write(path, "the page", put_page, &page);
    if (status == REPORT_SHOWN && page.has_complained)
        status = REPORT_UNTRUSTED;
    return status;
}
