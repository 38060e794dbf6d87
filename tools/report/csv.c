/*
 * csv.c - prints one row for each process. Columns have the names of the figures in JSON; a figure in an object has the
 * object's name before its own: "domains.heap.live_bytes".
 */
#include "common/csv.h"
#include "model/fields.h"
#include "report/report.h"
#include "common/text.h"

struct row {
    struct csv csv;
    const char *prefix; /* prefix of the keys */
    bool is_heading;    /* prints keys instead of values */
};

static void put_key(struct row *row, const char *key)
{
    csv_text(&row->csv, text_format("%s%s", row->prefix, key));
}

static void put_text(void *out, const char *key, const char *text)
{
    struct row *row = out;
    if (row->is_heading) {
        put_key(row, key);
        return;
    }
    char *printable = text != NULL ? text_printable(text, true) : NULL;
    csv_text(&row->csv, printable);
}

static void put_number(void *out, const char *key, uint64_t number)
{
    struct row *row = out;
    if (row->is_heading)
        put_key(row, key);
    else
        csv_number(&row->csv, number);
}

static void put_time(void *out, const char *key, int64_t time_ns)
{
    put_text(out, key, text_time_rfc3339(time_ns));
}

static void put_flag(void *out, const char *key, bool is_set)
{
    put_text(out, key, is_set ? "true" : "false");
}

static void put_csv_row(struct row *row, const struct model_job *job, const struct model_process *process)
{
    const struct model_fields fields = {put_text, put_number, put_time, put_flag, row};
    row->prefix = "";
    put_text(row, "job", job->name);
    put_text(row, "directory", job->directory);
    model_process_fields(process, &fields);
    for (int i = 0; i < SG_DOMAIN_COUNT; i++) {
        char *prefix = text_format("domains.%s.", model_domain_name[i]);
        row->prefix = prefix;
        model_domain_fields(&process->domain[i], &fields);
    }
    row->prefix = "peak_domains.";
    for (int i = 0; i < SG_DOMAIN_COUNT; i++)
        put_number(row, model_domain_name[i], process->domain[i].at_peak_bytes);
    row->prefix = "driver_facts.";
    model_driver_fields(process, &fields);
    csv_end_row(&row->csv);
}

void report_render_csv(const struct model *model, FILE *stream)
{
    static const struct model_job no_job;
    static const struct model_process no_process;
    const struct model_job *job;
    const struct model_process *process;
    struct row row = {.csv = {.stream = stream}, .is_heading = true};
    put_csv_row(&row, &no_job, &no_process);
    row.is_heading = false;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            put_csv_row(&row, job, process);
}
