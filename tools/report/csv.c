/*
 * csv.c - one row for each process, under the names that the same figures have in JSON; those of an object in it
 * with the object's before them: "domains.heap.live_bytes".
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "common/csv.h"
#include "model/fields.h"
#include "report/render.h"
#include "common/text.h"

struct row {
    struct report_csv csv;
    const char *prefix; /* of the keys */
    bool is_heading;    /* keys, not values */
};

static void put_key(struct row *row, const char *key)
{
    char *whole = report_text_format("%s%s", row->prefix, key);
    report_csv_text(&row->csv, whole);
    free(whole);
}

static void put_text(void *out, const char *key, const char *text)
{
    struct row *row = out;
    if (row->is_heading) {
        put_key(row, key);
        return;
    }
    char *printable = text != NULL ? report_text_printable(text, true) : NULL;
    report_csv_text(&row->csv, printable);
    free(printable);
}

static void put_number(void *out, const char *key, uint64_t number)
{
    struct row *row = out;
    if (row->is_heading)
        put_key(row, key);
    else
        report_csv_number(&row->csv, number);
}

static void put_time(void *out, const char *key, int64_t time_ns)
{
    char text[REPORT_TIME_TEXT];
    put_text(out, key, report_time_rfc3339(text, time_ns) ? text : NULL);
}

static void put_flag(void *out, const char *key, bool is_set)
{
    put_text(out, key, is_set ? "true" : "false");
}

static void put_row(struct row *row, const struct report_job *job, const struct report_process *process)
{
    const struct report_fields fields = {put_text, put_number, put_time, put_flag, row};
    row->prefix = "";
    put_text(row, "job", job->name);
    put_text(row, "directory", job->directory);
    report_process_fields(process, &fields);
    for (int i = 0; i < SG_DOMAIN_COUNT; i++) {
        char *prefix = report_text_format("domains.%s.", report_domain_name[i]);
        row->prefix = prefix;
        report_domain_fields(&process->domain[i], &fields);
        free(prefix);
    }
    row->prefix = "peak_domains.";
    for (int i = 0; i < SG_DOMAIN_COUNT; i++)
        put_number(row, report_domain_name[i], process->domain[i].at_peak_bytes);
    report_csv_end_row(&row->csv);
}

void report_render_csv(const struct report *report, FILE *stream)
{
    static const struct report_job no_job;
    static const struct report_process no_process;
    const struct report_job *job;
    const struct report_process *process;
    struct row row = {.csv = {.stream = stream}, .is_heading = true};
    put_row(&row, &no_job, &no_process);
    row.is_heading = false;
    DL_FOREACH (report->jobs, job)
        DL_FOREACH (job->processes, process)
            put_row(&row, job, process);
}
