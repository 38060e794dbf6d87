/*
 * text.c - the overview for people: machine, jobs as trees of processes, unguarded processes, what to do next.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "report/render.h"
#include "common/table.h"
#include "common/text.h"

/* Of the processes that something is to be said about, the first. */
enum { NOTES_SHOWN = 8 };

static void put_process(struct report_table *table, const struct report_process *process)
{
    char pid[16];
    snprintf(pid, sizeof pid, "%" PRIu32, process->pid);
    report_table_cell(table, pid, REPORT_BOLD);
    report_table_command(table, "", process->command);
    report_table_cell(table, report_state_name[process->state], report_state_colour(process->state));
    report_table_bytes(table, process->live_bytes);
    report_table_bytes(table, process->peak_bytes);
    report_table_bytes(table, process->state == SG_STATE_RUNNING ? process->promised_bytes : SG_UNKNOWN);
    report_table_count(table, process->refused_count, REPORT_RED);
}

/* Children stand below their parents; those of a folded one in its place. */
static void put_processes(struct report_job *job, size_t run, const struct report_style *style)
{
    static const struct report_column columns[] = {
        {"PID", REPORT_NUMBERS},  {"COMMAND", REPORT_TREE},     {"STATE", REPORT_WORDS},     {"LIVE", REPORT_NUMBERS},
        {"PEAK", REPORT_NUMBERS}, {"PROMISED", REPORT_NUMBERS}, {"REFUSED", REPORT_NUMBERS},
    };
    struct report_table table;
    struct report_process *process;
    report_table_begin(&table, style, columns, sizeof columns / sizeof columns[0]);
    DL_FOREACH (job->processes, process) {
        if (process->run != run)
            continue;
        process->line = process->parent != NULL ? process->parent->line : NULL;
        if (!process->is_folded) {
            process->line = report_table_line(&table, process->line);
            put_process(&table, process);
        }
    }
    report_table_end(&table);
}

static void put_piece(const struct report_style *style, size_t *column, enum report_colour colour, char *piece)
{
    report_flow(style, column, colour == REPORT_BOLD ? "" : ", ", colour, piece);
    free(piece);
}

static bool shows_runs(const struct report_job *job, const struct report_scope *scope)
{
    return job->run_count > 1 && (scope->is_all || scope->job != NULL);
}

static void put_run_figures(const struct report_run *run, size_t *column, const struct report_style *style)
{
    char size[REPORT_SIZE_TEXT];
    put_piece(style, column, REPORT_PLAIN, report_text_format("peak %s", report_size_text(size, run->peak_bytes)));
    if (run->limit_bytes != SG_UNKNOWN)
        put_piece(style, column, REPORT_PLAIN,
                  report_text_format("limit %s", report_size_text(size, run->limit_bytes)));
    if (run->refused_count > 0)
        put_piece(style, column, REPORT_RED, report_text_format("%" PRIu64 " refused", run->refused_count));
    fputc('\n', style->stream);
}

static void put_run_headline(const struct report_job *job, size_t number, const struct report_style *style)
{
    char when[REPORT_TIME_TEXT], lasted[REPORT_TIME_TEXT];
    const struct report_run *run = &job->runs[number];
    int64_t until_ns = run->running_count > 0 ? report_now_ns() : run->last_seen_ns;
    size_t column = 0;
    fputc('\n', style->stream);
    put_piece(style, &column, REPORT_BOLD, report_text_format("run %zu of %zu", number + 1, job->run_count));
    put_piece(style, &column, REPORT_PLAIN, report_text_format("started %s", report_time_local(when, run->started_ns)));
    put_piece(style, &column, run->running_count > 0 ? REPORT_GREEN : REPORT_DIM,
              report_text_format("%s %s", run->running_count > 0 ? "running for" : "seen for",
                                 report_duration_text(lasted, until_ns - run->started_ns)));
    put_piece(style, &column, REPORT_PLAIN, report_text_format("process %" PRIu32, run->first_pid));
    put_run_figures(run, &column, style);
}

/* The figures of the last run, which is the only one in most jobs; of all runs where each has a line of its own. */
static void put_job_headline(const struct report_job *job, bool names_directory, bool names_runs,
                             const struct report_style *style)
{
    const struct report_run *run = &job->runs[job->run_count - 1];
    char first[REPORT_TIME_TEXT], second[REPORT_TIME_TEXT], size[REPORT_SIZE_TEXT];
    char *name = report_text_printable(job->name[0] ? job->name : "-", style->is_utf8);
    size_t column = 0;
    put_piece(style, &column, REPORT_BOLD, report_text_format("job %s", name));
    free(name);
    if (names_directory) {
        char *directory = report_text_printable(job->directory, style->is_utf8);
        put_piece(style, &column, REPORT_PLAIN, report_text_format("in %s", directory));
        free(directory);
    }
    if (names_runs)
        put_piece(style, &column, REPORT_PLAIN, report_text_format("%zu runs", job->run_count));
    if (job->running_count > 0) {
        put_piece(style, &column, REPORT_GREEN,
                  report_text_format("running for %s", report_duration_text(first, report_now_ns() - run->started_ns)));
        put_piece(style, &column, REPORT_PLAIN, report_text_format("live %s", report_size_text(size, job->live_bytes)));
    } else {
        put_piece(style, &column, REPORT_DIM,
                  report_text_format("last seen %s after %s", report_time_local(first, job->last_seen_ns),
                                     report_duration_text(second, run->last_seen_ns - run->started_ns)));
    }
    if (names_runs)
        fputc('\n', style->stream);
    else
        put_run_figures(run, &column, style);
}

/* One line, cut where the terminal ends; frees it. */
static void put_note(const struct report_style *style, enum report_colour colour, char *text)
{
    if (style->is_terminal)
        report_text_shorten(text, style->columns - 2);
    fprintf(style->stream, "  %s%s%s\n", report_colour_on(style, colour), text, report_colour_off(style, colour));
    free(text);
}

/* A line for each process that its own watchdog ended, and then for each that decides alone. */
static void put_process_notes(const struct report_job *job, const struct report_style *style)
{
    const struct report_process *process;
    size_t ended = 0, alone = 0;
    DL_FOREACH (job->processes, process)
        if (process->fate != NULL && ended++ < NOTES_SHOWN)
            put_note(style, REPORT_RED, report_fate_text(process, style->is_utf8));
    if (ended > NOTES_SHOWN)
        put_note(style, REPORT_RED, report_text_format("and %zu more by theirs", ended - NOTES_SHOWN));
    DL_FOREACH (job->processes, process)
        if (report_process_is_alone(process) && alone++ < NOTES_SHOWN) {
            char *reason = report_text_printable(report_process_alone_reason(process), style->is_utf8);
            put_note(style, REPORT_YELLOW, report_text_format("%" PRIu32 " decides alone: %s", process->pid, reason));
            free(reason);
        }
    if (alone > NOTES_SHOWN)
        put_note(style, REPORT_YELLOW, report_text_format("and so do %zu more", alone - NOTES_SHOWN));
}

static void put_notes(const struct report_job *job, const struct report_style *style)
{
    const struct report_process *process;
    size_t unguarded = 0, observing = 0;
    put_process_notes(job, style);
    DL_FOREACH (job->processes, process) {
        unguarded += !process->is_guarding;
        observing += process->is_observing;
    }
    if (unguarded > 0)
        fprintf(style->stream, "  %s%zu of %zu not guarding%s: sparkguard-report PID says why\n",
                report_colour_on(style, REPORT_YELLOW), unguarded, job->process_count,
                report_colour_off(style, REPORT_YELLOW));
    if (observing > 0)
        fputs("  observe mode: refusals are recorded, the requests were let through\n", style->stream);
}

static void put_runs(struct report_job *job, bool names_runs, const struct report_style *style)
{
    if (!names_runs)
        put_processes(job, job->run_count - 1, style);
    for (size_t i = 0; names_runs && i < job->run_count; i++) {
        put_run_headline(job, i, style);
        put_processes(job, i, style);
    }
    if (!names_runs && job->run_count > 1) {
        char *name = report_text_printable(job->name, style->is_utf8);
        fprintf(style->stream, "  and %zu earlier run%s of this job: sparkguard-report --job '%s'\n",
                job->run_count - 1, job->run_count > 2 ? "s" : "", name);
        free(name);
    }
}

static void put_jobs(const struct report *report, const struct report_scope *scope, const struct report_style *style)
{
    struct report_job *job;
    DL_FOREACH (report->jobs, job) {
        bool is_all = scope->is_all, names_runs = shows_runs(job, scope);
        size_t running = is_all ? 0 : report_fold(job, true);
        size_t ended = is_all ? 0 : report_fold(job, false);
        fputc('\n', style->stream);
        put_job_headline(job, report->directory_count > 1, names_runs, style);
        put_runs(job, names_runs, style);
        if (running > 0)
            fprintf(style->stream, "  and %zu smaller ones that run; --all shows them\n", running);
        if (ended > 0)
            fprintf(style->stream, "  and %zu smaller ones that have ended; --all shows them\n", ended);
        put_notes(job, style);
    }
}

void report_render_unguarded(const struct report *report, const struct report_style *style)
{
    static const struct report_column columns[] = {
        {"PID", REPORT_NUMBERS}, {"UNGUARDED PROCESS", REPORT_CUT}, {"RESIDENT", REPORT_NUMBERS}};
    struct report_table table;
    if (report->unguarded_count == 0)
        return;
    fputc('\n', style->stream);
    report_table_begin(&table, style, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < report->unguarded_count; i++) {
        char pid[16];
        report_table_line(&table, NULL);
        snprintf(pid, sizeof pid, "%" PRIu32, report->unguarded[i].pid);
        report_table_cell(&table, pid, REPORT_PLAIN);
        report_table_command(&table, "", report->unguarded[i].command);
        report_table_bytes(&table, report->unguarded[i].resident_bytes);
    }
    report_table_end(&table);
}

/* Whether a reader is likelier to ask about this process: ended by its watchdog, then refused most, then the largest. */
static bool is_more_interesting(const struct report_process *process, const struct report_process *best)
{
    if (best == NULL || (process->fate != NULL) != (best->fate != NULL))
        return best == NULL || process->fate != NULL;
    if (process->refused_count != best->refused_count)
        return process->refused_count > best->refused_count;
    return process->peak_bytes > best->peak_bytes;
}

static const struct report_process *find_interesting(const struct report *report)
{
    const struct report_process *best = NULL, *process;
    const struct report_job *job;
    DL_FOREACH (report->jobs, job)
        DL_FOREACH (job->processes, process)
            if (process->run == job->run_count - 1 && is_more_interesting(process, best))
                best = process;
    return best;
}

/* A directory that the library does not use, whoever runs the programs. The caller frees. */
static char *find_open_directory(const struct report *report)
{
    struct stat status;
    for (size_t i = 0; i < report->directory_count; i++) {
        const char *path = report->directories[i].path;
        if (stat(path, &status) == 0 && S_ISDIR(status.st_mode) && (status.st_mode & S_IWOTH) != 0)
            return report_text_printable(path, false);
    }
    return NULL;
}

/* How to call the report again for the same records: the name as it was typed, and the directories that were named. */
static char *report_command(const struct report *report)
{
    char *command = report_text_copy(report_typed_name != NULL ? report_typed_name : "sparkguard-report", PATH_MAX);
    for (size_t i = 0; i < report->directory_count; i++) {
        if (report->directories[i].origin != REPORT_NAMED)
            continue;
        char *path = report_text_printable(report->directories[i].path, false);
        char *longer = report_text_format("%s --dir '%s'", command, path);
        free(path);
        free(command);
        command = longer;
    }
    return command;
}

static bool has_faulty_directory(const struct report *report)
{
    for (size_t i = 0; i < report->directory_count; i++)
        if (report_directory_is_faulty(&report->directories[i]))
            return true;
    return false;
}

/* Nothing where a directory could not be read: the message on stderr says why, and what ran is not known. */
static void put_advice(const struct report *report, const struct report_style *style)
{
    const struct report_process *process = find_interesting(report);
    if (process == NULL && has_faulty_directory(report))
        return;
    char *open_directory = find_open_directory(report);
    char *command = report_command(report);
    fprintf(style->stream, "\n%s", report_colour_on(style, REPORT_DIM));
    if (process != NULL)
        fprintf(style->stream, "one process in depth: %s %" PRIu32, command, process->pid);
    else if (open_directory != NULL)
        fprintf(style->stream, "programs keep nothing in %s, for it is writable by all; mend it:\n  chmod o-w '%s'",
                open_directory, open_directory);
    else
        fputs("nothing has run under the guard yet; try:\n"
              "  sparkguard python3 train.py\n"
              "  LD_PRELOAD=libsparkguard.so python3 train.py",
              style->stream);
    if (process != NULL && report->hidden_jobs > 0)
        fprintf(style->stream, "; %zu more job%s: --all", report->hidden_jobs, report->hidden_jobs > 1 ? "s" : "");
    fprintf(style->stream, "%s\n", report_colour_off(style, REPORT_DIM));
    free(command);
    free(open_directory);
}

void report_render_text(const struct report *report, const struct report_scope *scope, const struct report_style *style)
{
    const struct report_job *job;
    const struct report_process *process;
    bool is_first = true;
    if (scope->pid == 0) {
        report_render_machine(report, style);
        put_jobs(report, scope, style);
        report_render_unguarded(report, style);
        put_advice(report, style);
        return;
    }
    DL_FOREACH (report->jobs, job)
        DL_FOREACH (job->processes, process) {
            if (!is_first)
                fputc('\n', style->stream);
            is_first = false;
            report_render_process(job, process, style);
        }
    if (report->hidden_namesakes > 0)
        fprintf(style->stream, "\n%searlier processes had this pid too: sparkguard-report --all %" PRIu32 "%s\n",
                report_colour_on(style, REPORT_DIM), scope->pid, report_colour_off(style, REPORT_DIM));
}
