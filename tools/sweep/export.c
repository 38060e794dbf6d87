/*
 * export.c - writes the table to a file: Markdown in GB of 10^9 bytes, CSV and JSON in bytes with all other figures.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/csv.h"
#include "common/json.h"
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

/* Prints a size such as "80.9"; small sizes get more digits. */
static void put_gb(FILE *stream, uint64_t bytes, const char *unit, bool is_whole)
{
    double gb = (double)bytes / 1e9;
    if (bytes == SG_UNKNOWN)
        fputs("?", stream);
    else
        fprintf(stream, "%.*f%s", gb < 1 ? 3 : is_whole && gb >= 10 ? 0 : 1, gb, unit);
}

static void put_markdown_text(FILE *stream, const char *text)
{
    char *printable = text_printable(text, true);
    for (const char *p = printable; *p != '\0'; p++) {
        if (strchr("|\\`*_<[", *p) != NULL)
            fputc('\\', stream);
        fputc(*p, stream);
    }
    free(printable);
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
    char *command = sweep_command_text(sweep->command);
    fprintf(stream, "### `%s`\n\n|", command);
    for (size_t i = 0; i < sweep->parameter_count; i++) {
        fputc(' ', stream);
        put_markdown_text(stream, sweep->parameter[i].name);
        fputs(" |", stream);
    }
    fputs(" peak_mem_gb | headroom | status | notes |\n|", stream);
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
        put_gb(stream, run->peak_bytes, "", false);
        fputs(" | ", stream);
        put_gb(stream, run->headroom_bytes, "GB", true);
        fprintf(stream, " | %s | ", markdown_status(run->status));
        put_markdown_text(stream, remark);
        fputs(remark[0] != '\0' ? " |" : "|", stream);
        free(remark);
    }
    fputs("\n\nGB are 10^9 bytes; headroom is the memory left above the reserve.\n", stream);
    free(command);
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
        free(remark);
    }
}

static void put_json_values(struct json *json, const struct sweep *sweep, const struct sweep_run *run)
{
    json_open(json, "values", '{');
    for (size_t i = 0; i < sweep->parameter_count; i++)
        if (sweep->parameter[i].is_number)
            json_number(json, sweep->parameter[i].name, sweep->parameter[i].number[run->place[i]]);
        else
            json_text(json, sweep->parameter[i].name, sweep->parameter[i].value[run->place[i]]);
    json_close(json, '}');
}

static void put_json_estimates(struct json *json, const struct sweep *sweep, const struct sweep_run *run)
{
    double gb;
    json_open(json, "estimates", '[');
    for (int formula = 0; formula < SWEEP_FORMULAS; formula++) {
        if (!sweep_estimate(sweep, run, formula, &gb))
            continue;
        json_open(json, NULL, '{');
        json_text(json, "formula", sweep_formula_name[formula]);
        json_integer(json, "estimated_bytes", (int64_t)(gb * 1e9));
        json_close(json, '}');
    }
    json_close(json, ']');
}

static void put_json_run(struct json *json, const struct sweep *sweep, const struct sweep_run *run)
{
    char *remark = sweep_remark(sweep, run);
    json_open(json, NULL, '{');
    put_json_values(json, sweep, run);
    json_text(json, "status", sweep_status_name[run->status]);
    json_bytes(json, "peak_bytes", run->peak_bytes);
    json_bytes(json, "needed_bytes", run->needed_bytes);
    json_bytes(json, "headroom_bytes", run->headroom_bytes);
    json_bytes(json, "room_bytes", run->room_bytes);
    json_bytes(json, "predicted_bytes", run->predicted_bytes);
    json_integer(json, "refused_count", (int64_t)run->refused_count);
    json_time(json, "started", run->started_ns);
    json_bytes(json, "duration_ms", run->duration_ns < 0 ? SG_UNKNOWN : (uint64_t)run->duration_ns / 1000000);
    json_bytes(json, "exit_code", run->exit_code < 0 ? SG_UNKNOWN : (uint64_t)run->exit_code);
    json_bytes(json, "signal", run->signal == 0 ? SG_UNKNOWN : (uint64_t)run->signal);
    json_integer(json, "attempts", run->attempts);
    json_text(json, "notes", remark);
    if (sweep->estimate.is_wanted)
        put_json_estimates(json, sweep, run);
    json_close(json, '}');
    free(remark);
}

void sweep_render_json(const struct sweep *sweep, FILE *stream)
{
    struct json json = {.stream = stream};
    const struct sweep_run *best = sweep_recommend(sweep);
    json_open(&json, NULL, '{');
    json_integer(&json, "schema", 1);
    json_open(&json, "command", '[');
    for (char **word = sweep->command; *word != NULL; word++)
        json_text(&json, NULL, *word);
    json_close(&json, ']');
    json_time(&json, "begun", sweep->begun_ns);
    json_bool(&json, "complete", sweep->is_complete);
    json_bytes(&json, "total_bytes", sweep->total_bytes);
    json_bytes(&json, "reserve_bytes", sweep->reserve_bytes);
    if (best == NULL)
        json_null(&json, "recommended");
    else {
        json_open(&json, "recommended", '{');
        put_json_values(&json, sweep, best);
        json_close(&json, '}');
    }
    json_open(&json, "runs", '[');
    for (size_t i = 0; i < sweep->run_count; i++)
        put_json_run(&json, sweep, &sweep->run[i]);
    json_close(&json, ']');
    json_close(&json, '}');
}

bool sweep_export(const struct sweep *sweep, const char *path)
{
    FILE *stream = fopen(path, "we");
    if (stream != NULL) {
        if (has_suffix(path, ".md"))
            put_markdown(sweep, stream);
        else if (has_suffix(path, ".csv"))
            put_csv(sweep, stream);
        else
            sweep_render_json(sweep, stream);
        bool has_failed = ferror(stream) != 0;
        if (fclose(stream) == 0 && !has_failed)
            return true;
    }
    fprintf(stderr, "sparkguard-sweep: cannot write %s: %s\n", path, strerror(errno));
    return false;
}
