/*
 * export.c - writes the table to a file: Markdown in GiB, CSV and JSON in bytes with all other figures.
 */
#include <stdio.h>
#include <string.h>

#include "common/csv.h"
#include "common/json.h"
#include "common/output/atomic_file.h"
#include "sweep/sweep.h"
#include "common/text.h"

static bool has_suffix(const char *path, const char *suffix)
{
    size_t length = strlen(path), suffix_length = strlen(suffix);
    return length > suffix_length && strcmp(path + length - suffix_length, suffix) == 0;
}

bool sweep_export_is_known(const char *path)
{
    return has_suffix(path, ".md") || has_suffix(path, ".csv") || has_suffix(path, ".json");
}

/* Prints a size such as "75.3"; small sizes get more digits. */
static void put_gib(FILE *stream, uint64_t bytes)
{
    double gib = (double)bytes / 0x1p30;
    if (bytes == SG_UNKNOWN)
        fputs("?", stream);
    else
        fprintf(stream, "%.*f", gib < 1 ? 3 : 1, gib);
}

static void put_markdown_text(FILE *stream, const char *text)
{
    char *printable = text_printable(text, true);
    for (const char *p = printable; *p != '\0'; p++) {
        if (strchr("|\\`*_<[", *p) != NULL)
            fputc('\\', stream);
        fputc(*p, stream);
    }
}

static const char *markdown_status(enum sweep_status status)
{
    static const char *const words[SWEEP_STATUS_COUNT] = {
        [SWEEP_OK] = "✅ working",    [SWEEP_REFUSED] = "❌ refused",     [SWEEP_FAILED] = "❌ failed",
        [SWEEP_KILLED] = "❌ killed", [SWEEP_TIMED_OUT] = "❌ timed out",
    };
    return words[status] != NULL ? words[status] : sweep_status_name[status];
}

static void put_markdown(const struct sweep *sweep, FILE *stream)
{
    fprintf(stream, "### `%s`\n\n|", sweep_command_text(sweep->command));
    for (size_t i = 0; i < sweep->parameter_count; i++) {
        fputc(' ', stream);
        put_markdown_text(stream, sweep->parameter[i].name);
        fputs(" |", stream);
    }
    fputs(" peak_mem_gib | headroom_gib | status | notes |\n|", stream);
    for (size_t i = 0; i < sweep->parameter_count + 4; i++)
        fputs("---|", stream);
    for (size_t i = 0; i < sweep->run_count; i++) {
        const struct sweep_run *run = &sweep->run[i];
        char *remark = sweep_remark(sweep, run);
        fputs("\n|", stream);
        for (size_t j = 0; j < sweep->parameter_count; j++) {
            fputc(' ', stream);
            put_markdown_text(stream, sweep->parameter[j].value[run->place[j]]);
            fputs(" |", stream);
        }
        fputc(' ', stream);
        put_gib(stream, run->peak_bytes);
        fputs(" | ", stream);
        put_gib(stream, run->headroom_bytes);
        fprintf(stream, " | %s | ", markdown_status(run->status));
        put_markdown_text(stream, remark);
        fputs(remark[0] != '\0' ? " |" : "|", stream);
    }
    fputs("\n\nGiB are 2^30 bytes; headroom is the room that was left, above the reserve.\n", stream);
}

static void put_csv(const struct sweep *sweep, FILE *stream)
{
    struct csv csv = {.stream = stream};
    static const char *const columns[] = {"peak_bytes", "needed_bytes",     "headroom_bytes", "predicted_bytes",
                                          "status",     "duration_seconds", "refused_count",  "notes"};
    for (size_t i = 0; i < sweep->parameter_count; i++)
        csv_text(&csv, sweep->parameter[i].name);
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        csv_text(&csv, columns[i]);
    csv_end_row(&csv);
    for (size_t i = 0; i < sweep->run_count; i++) {
        const struct sweep_run *run = &sweep->run[i];
        char *remark = sweep_remark(sweep, run), seconds[32] = "";
        if (run->duration_ns >= 0)
            snprintf(seconds, sizeof seconds, "%.3f", (double)run->duration_ns / 1e9);
        for (size_t j = 0; j < sweep->parameter_count; j++)
            csv_text(&csv, sweep->parameter[j].value[run->place[j]]);
        csv_number(&csv, run->peak_bytes);
        csv_number(&csv, run->needed_bytes);
        csv_number(&csv, run->headroom_bytes);
        csv_number(&csv, run->predicted_bytes);
        csv_text(&csv, sweep_status_name[run->status]);
        csv_text(&csv, seconds);
        csv_number(&csv, run->refused_count);
        csv_text(&csv, remark);
        csv_end_row(&csv);
    }
}

static json_t *values_of(const struct sweep *sweep, const struct sweep_run *run)
{
    json_t *values = json_object();
    for (size_t i = 0; i < sweep->parameter_count; i++) {
        const struct sweep_parameter *parameter = &sweep->parameter[i];
        size_t place = run->place[i];
        json_object_set_new(values, parameter->name,
                            parameter->is_number ? json_of_real(parameter->number[place])
                                                 : json_of_text(parameter->value[place]));
    }
    return values;
}

static json_t *run_of(const struct sweep *sweep, const struct sweep_run *run)
{
    char *remark = sweep_remark(sweep, run);
    json_t *object = json_object();
    json_object_set_new(object, "values", values_of(sweep, run));
    json_object_set_new(object, "status", json_of_text(sweep_status_name[run->status]));
    json_object_set_new(object, "peak_bytes", json_of_number(run->peak_bytes));
    json_object_set_new(object, "needed_bytes", json_of_number(run->needed_bytes));
    json_object_set_new(object, "headroom_bytes", json_of_number(run->headroom_bytes));
    json_object_set_new(object, "room_bytes", json_of_number(run->start_headroom_bytes));
    json_object_set_new(object, "predicted_bytes", json_of_number(run->predicted_bytes));
    json_object_set_new(object, "refused_count", json_of_number(run->refused_count));
    json_object_set_new(object, "started", json_of_time(run->started_ns));
    json_object_set_new(object, "duration_ms",
                        json_of_number(run->duration_ns < 0 ? SG_UNKNOWN : (uint64_t)run->duration_ns / 1000000));
    json_object_set_new(object, "exit_code",
                        json_of_number(run->exit_code < 0 ? SG_UNKNOWN : (uint64_t)run->exit_code));
    json_object_set_new(object, "signal", json_of_number(run->signal == 0 ? SG_UNKNOWN : (uint64_t)run->signal));
    json_object_set_new(object, "attempts", json_of_number(run->attempts));
    json_object_set_new(object, "notes", json_of_text(remark));
    return object;
}

/* The largest value that is predicted to fit, beside the recommended run's other values. */
static json_t *predicted_of(const struct sweep *sweep)
{
    const struct sweep_run *best = sweep_recommend(sweep);
    size_t along, points;
    double number;
    if (best == NULL || sweep_find_neighbour(sweep, best) != NULL ||
        !sweep_predict_largest(sweep, &along, &number, &points))
        return json_null();
    json_t *values = values_of(sweep, best);
    json_object_set_new(values, sweep->parameter[along].name, json_of_real(number));
    return json_pack("{s:o}", "values", values);
}

void sweep_render_json(const struct sweep *sweep, FILE *stream)
{
    const struct sweep_run *best = sweep_recommend(sweep);
    json_t *root = json_object(), *command = json_array(), *runs = json_array();
    json_object_set_new(root, "schema", json_integer(1));
    json_object_set_new(root, "command", command);
    for (char **word = sweep->command; *word != NULL; word++)
        json_array_append_new(command, json_of_text(*word));
    json_object_set_new(root, "begun", json_of_time(sweep->begun_ns));
    json_object_set_new(root, "complete", json_boolean(sweep->is_complete));
    json_object_set_new(root, "total_bytes", json_of_number(sweep->total_bytes));
    json_object_set_new(root, "reserve_bytes", json_of_number(sweep->reserve_bytes));
    json_object_set_new(root, "recommended",
                        best != NULL ? json_pack("{s:o}", "values", values_of(sweep, best)) : json_null());
    json_object_set_new(root, "predicted", predicted_of(sweep));
    json_object_set_new(root, "runs", runs);
    for (size_t i = 0; i < sweep->run_count; i++)
        json_array_append_new(runs, run_of(sweep, &sweep->run[i]));
    json_print(root, stream);
}

struct export_file {
    const struct sweep *sweep;
    const char *path;
};

static void put_export(FILE *stream, void *content)
{
    const struct export_file *file = content;
    if (has_suffix(file->path, ".md"))
        put_markdown(file->sweep, stream);
    else if (has_suffix(file->path, ".csv"))
        put_csv(file->sweep, stream);
    else
        sweep_render_json(file->sweep, stream);
}

bool sweep_export(const struct sweep *sweep, const char *path)
{
    struct export_file file = {sweep, path};
    int error = atomic_file_write(path, put_export, &file);
    if (error != 0)
        fprintf(stderr, "sparkguard-sweep: cannot write %s: %s\n", path, strerror(error));
    return error == 0;
}
