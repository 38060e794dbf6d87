/*
 * job.c - prints what a page says of a job as a whole: its verdict, its drawing, and the figures of the drawing.
 */
#include "report/draw/draw.h"
#include "report/html/html.h"
#include "common/bytes.h"
#include "common/text.h"

/* ---- verdicts ---------------------------------------------------------------------------------------------------- */

static const char *class_of(enum model_verdict_code code)
{
    if (code == MODEL_VERDICT_OK)
        return "class=\"verdict good\"";
    return code >= MODEL_VERDICT_KILLED ? "class=\"verdict bad\"" : "class=\"verdict warn\"";
}

void report_html_verdict(FILE *stream, const struct model_job *job, size_t number)
{
    const struct model_job_verdict *verdict = &job->runs[job->run_count - 1].verdict;
    if (verdict->text == NULL)
        return;
    fprintf(stream, "<p %s><a href=\"#job-%zu\">Job ", class_of(verdict->code), number);
    report_html_element(stream, "bdi", "", job->name[0] ? job->name : "-");
    fputs("</a> ", stream);
    report_html_element(stream, "bdi", "", verdict->text);
    fputs("</p>\n", stream);
}

void report_html_runs(FILE *stream, const struct model_job *job)
{
    enum { RUNS_MAX = 24 };
    static const struct report_html_column columns[] = {
        {"Began", REPORT_HTML_NAME},    {"Processes", REPORT_HTML_NUMBERS}, {"Peak", REPORT_HTML_NUMBERS},
        {"Limit", REPORT_HTML_NUMBERS}, {"Verdict", REPORT_HTML_WORDS},
    };
    struct report_html_table table;
    size_t first = job->run_count > RUNS_MAX ? job->run_count - RUNS_MAX : 0;
    if (job->run_count < 2)
        return;
    char *caption = first > 0 ? text_format("Runs of the job: the last %d of %zu", (int)RUNS_MAX, job->run_count)
                              : text_format("Runs of the job");
    report_html_table_begin(&table, stream, caption, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = first; i < job->run_count; i++) {
        const struct model_run *run = &job->runs[i];
        report_html_row(&table, "");
        report_html_cell_time(&table, run->started_ns);
        report_html_cell_count(&table, run->process_count);
        report_html_cell_bytes(&table, run->peak_bytes);
        report_html_cell_bytes(&table, run->limit_bytes);
        report_html_cell(&table, run->verdict.text != NULL ? run->verdict.text : "-");
    }
    report_html_table_end(&table);
}

/* ---- the drawing ------------------------------------------------------------------------------------------------- */

/* A row of the table: some neighbouring columns of the drawing. */
struct row {
    uint64_t live_bytes, usable_bytes, reserve_bytes;
    size_t recorded, count;
};

static struct row sum_up(const struct bands *bands, size_t first, size_t count)
{
    struct row row = {.usable_bytes = SG_UNKNOWN, .reserve_bytes = SG_UNKNOWN, .count = count};
    for (size_t i = first; i < first + count; i++) {
        const struct bands_column *column = &bands->column[i];
        row.live_bytes = bytes_max(row.live_bytes, column->live_bytes);
        row.recorded += column->is_recorded;
        if (column->usable_bytes < row.usable_bytes) { /* SG_UNKNOWN is the highest number */
            row.usable_bytes = column->usable_bytes;
            row.reserve_bytes = column->reserve_bytes;
        }
    }
    return row;
}

/* Prints the figures of the drawing as text: a few rows for each span. */
static void put_time_table(FILE *stream, const struct bands *bands)
{
    enum { ROWS = 12 };
    static const struct report_html_column columns[] = {
        {"From", REPORT_HTML_NAME},
        {"Live, at most", REPORT_HTML_NUMBERS},
        {"Usable, at least", REPORT_HTML_NUMBERS},
        {"Reserve", REPORT_HTML_NUMBERS},
        {"Recorded", REPORT_HTML_WORDS},
    };
    struct report_html_table table;
    report_html_table_begin(&table, stream, "The job over time, processes together", columns,
                            sizeof columns / sizeof columns[0]);
    for (size_t s = 0; s < bands->span_count; s++) {
        const struct bands_span *span = &bands->span[s];
        size_t step = span->count / (ROWS / bands->span_count) + 1;
        for (size_t k = 0; k < span->count; k += step) {
            struct row row = sum_up(bands, span->first + k, bytes_min(step, span->count - k));
            report_html_row(&table, "");
            report_html_cell_time(&table, bands->column[span->first + k].begin_ns);
            report_html_cell_bytes(&table, row.recorded > 0 ? row.live_bytes : SG_UNKNOWN);
            report_html_cell_bytes(&table, row.usable_bytes);
            report_html_cell_bytes(&table, row.reserve_bytes);
            report_html_cell(&table, row.recorded == row.count ? "yes" : row.recorded > 0 ? "in part" : "not recorded");
        }
    }
    report_html_table_end(&table);
}

void report_html_job_drawing(FILE *stream, const struct model_job *job, size_t number)
{
    char name[32];
    struct bands *bands = draw_bands_read(job, 0, BANDS_COLUMNS_MAX, NULL);
    if (bands == NULL)
        return;
    snprintf(name, sizeof name, "job-%zu-", number);
    fputs("<figure>\n", stream);
    draw_job(stream, bands, name);
    fputs("</figure>\n", stream);
    put_time_table(stream, bands);
}
