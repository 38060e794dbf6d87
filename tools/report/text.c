/*
 * text.c - prints the overview for people: machine, jobs as trees of processes, unguarded processes, and what to do
 * next.
 */
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report/report.h"
#include "common/command.h"
#include "common/table.h"
#include "common/text.h"
#include "common/tool.h"
#include "sparkguard_bounds.h"

/* The maximum number of processes with a note below the table. */
enum { NOTES_SHOWN = 8 };

static void put_process_line(struct table *table, const struct model_process *process)
{
    char pid[16];
    snprintf(pid, sizeof pid, "%" PRIu32, model_process_number(process));
    table_cell(table, pid, STYLE_BOLD);
    table_command(table, "", process->command);
    table_cell(table, model_state_name[process->state], report_state_colour(process->state));
    table_bytes(table, process->live_bytes);
    table_bytes(table, process->peak_bytes);
    table_bytes(table, process->state == SG_STATE_RUNNING ? process->promised_bytes : SG_UNKNOWN);
    table_count(table, process->refused_count, STYLE_RED);
}

/* Prints children below their parents. Children of a process that is not shown take its place. */
static void put_process_tree(struct model_job *job, size_t run, const struct style *style)
{
    static const struct table_column columns[] = {
        {"PID", TABLE_NUMBERS},  {"COMMAND", TABLE_TREE},     {"STATE", TABLE_WORDS},     {"LIVE", TABLE_NUMBERS},
        {"PEAK", TABLE_NUMBERS}, {"PROMISED", TABLE_NUMBERS}, {"REFUSED", TABLE_NUMBERS},
    };
    struct table table;
    struct model_process *process;
    table_begin(&table, style, columns, sizeof columns / sizeof columns[0]);
    DL_FOREACH (job->processes, process) {
        if (process->run != run)
            continue;
        process->line = process->parent != NULL ? process->parent->line : NULL;
        if (!process->is_folded) {
            process->line = table_line(&table, process->line);
            put_process_line(&table, process);
        }
    }
    table_end(&table);
}

static void put_headline_piece(const struct style *style, size_t *column, enum style_colour colour, char *piece)
{
    style_flow(style, column, colour == STYLE_BOLD ? "" : ", ", colour, piece);
}

static bool shows_runs(const struct model_job *job, const struct model_scope *scope)
{
    return job->run_count > 1 && (scope->is_all || scope->job != NULL);
}

static void put_run_figures(const struct model_run *run, size_t *column, const struct style *style)
{
    put_headline_piece(style, column, STYLE_PLAIN, text_format("peak %s", text_size(run->peak_bytes)));
    if (run->limit_bytes != SG_UNKNOWN)
        put_headline_piece(style, column, STYLE_PLAIN, text_format("limit %s", text_size(run->limit_bytes)));
    if (run->refused_count > 0)
        put_headline_piece(style, column, STYLE_RED,
                           text_format("%" PRIu64 " %s", run->refused_count,
                                       run->is_observing ? "would have been refused (observe)" : "refused"));
    fputc('\n', style->stream);
}

/* Prints a run's verdict on a line of its own. */
static void put_run_verdict(const struct model_run *run, const struct style *style)
{
    static const enum style_colour colours[] = {
        [MODEL_VERDICT_OK] = STYLE_GREEN,
        [MODEL_VERDICT_REFUSED_LIMIT] = STYLE_YELLOW,
        [MODEL_VERDICT_REFUSED_RESERVE] = STYLE_YELLOW,
        [MODEL_VERDICT_REFUSED_DEVICE] = STYLE_YELLOW,
        [MODEL_VERDICT_KILLED] = STYLE_RED,
        [MODEL_VERDICT_WATCHDOG] = STYLE_RED,
    };
    char *text = text_printable(run->verdict.text, style->is_utf8);
    fputs("  ", style->stream);
    style_words(style, 2, colours[run->verdict.code], text);
}

static void put_run_headline(const struct model_job *job, size_t number, const struct style *style)
{
    const struct model_run *run = &job->runs[number];
    int64_t until_ns = run->running_count > 0 ? tool_now_ns() : run->last_seen_ns;
    size_t column = 0;
    fputc('\n', style->stream);
    put_headline_piece(style, &column, STYLE_BOLD, text_format("run %zu of %zu", number + 1, job->run_count));
    put_headline_piece(style, &column, STYLE_PLAIN, text_format("started %s", text_time_local(run->started_ns)));
    put_headline_piece(style, &column, run->running_count > 0 ? STYLE_GREEN : STYLE_DIM,
                       text_format("%s %s", run->running_count > 0 ? "running for" : "seen for",
                                   text_duration(until_ns - run->started_ns)));
    put_headline_piece(style, &column, STYLE_PLAIN, text_format("process %" PRIu32, run->first_pid));
    put_run_figures(run, &column, style);
    put_run_verdict(run, style);
}

/* Prints the figures of the last run, which is the only run of most jobs. If each run has its own line, prints those of
 * all runs. */
static void put_job_headline(const struct model_job *job, bool names_directory, bool names_runs,
                             const struct style *style)
{
    const struct model_run *run = &job->runs[job->run_count - 1];
    char *name = text_printable(job->name[0] ? job->name : "-", style->is_utf8);
    size_t column = 0;
    put_headline_piece(style, &column, STYLE_BOLD, text_format("job %s", name));
    char *place = model_job_place(job, style->is_utf8);
    if (place != NULL)
        put_headline_piece(style, &column, STYLE_CYAN, place);
    if (names_directory) {
        char *directory = text_printable(job->directory, style->is_utf8);
        put_headline_piece(style, &column, STYLE_PLAIN, text_format("in %s", directory));
    }
    if (names_runs)
        put_headline_piece(style, &column, STYLE_PLAIN, text_format("%zu runs", job->run_count));
    if (job->running_count > 0) {
        put_headline_piece(style, &column, STYLE_GREEN,
                           text_format("running for %s", text_duration(tool_now_ns() - run->started_ns)));
        put_headline_piece(style, &column, STYLE_PLAIN, text_format("live %s", text_size(job->live_bytes)));
    } else {
        put_headline_piece(style, &column, STYLE_DIM,
                           text_format("last seen %s after %s", text_time_local(job->last_seen_ns),
                                       text_duration(run->last_seen_ns - run->started_ns)));
    }
    if (names_runs) {
        fputc('\n', style->stream);
        return;
    }
    put_run_figures(run, &column, style);
    put_run_verdict(run, style);
}

/* Prints one line, cut to the width of the terminal. */
static void put_note(const struct style *style, enum style_colour colour, char *text)
{
    if (style->is_terminal)
        text_shorten(text, style->columns - 2);
    fprintf(style->stream, "  %s%s%s\n", style_colour_on(style, colour), text, style_colour_off(style, colour));
}

/* Prints a line for each process that its own watchdog ended, then for each process that decides alone. */
static void put_process_notes(const struct model_job *job, const struct style *style)
{
    const struct model_process *process;
    size_t ended = 0, alone = 0;
    DL_FOREACH (job->processes, process)
        if (process->watchdog_event != NULL && ended++ < NOTES_SHOWN)
            put_note(style, STYLE_RED, model_fate_text(process, style->is_utf8));
    if (ended > NOTES_SHOWN)
        put_note(style, STYLE_RED, text_format("and %zu more by their own", ended - NOTES_SHOWN));
    DL_FOREACH (job->processes, process)
        if (model_process_is_alone(process) && alone++ < NOTES_SHOWN) {
            char *reason = text_printable(model_process_alone_reason(process), style->is_utf8);
            put_note(style, STYLE_YELLOW,
                     text_format("%" PRIu32 " decides alone: %s", model_process_number(process), reason));
        }
    if (alone > NOTES_SHOWN)
        put_note(style, STYLE_YELLOW, text_format("and so do %zu more", alone - NOTES_SHOWN));
}

static void put_notes(const struct model_job *job, const struct style *style)
{
    const struct model_process *process;
    size_t unguarded = 0, observing = 0;
    put_process_notes(job, style);
    DL_FOREACH (job->processes, process) {
        unguarded += !process->is_guarding;
        observing += process->is_observing;
    }
    if (unguarded > 0)
        fprintf(style->stream, "  %s%zu of %zu not guarding%s: sparkguard-report PID says why\n",
                style_colour_on(style, STYLE_YELLOW), unguarded, job->process_count,
                style_colour_off(style, STYLE_YELLOW));
    if (observing > 0)
        fputs("  observe mode: nothing was refused, only recorded\n", style->stream);
}

static void put_runs(struct model_job *job, bool names_runs, const struct style *style)
{
    if (!names_runs)
        put_process_tree(job, job->run_count - 1, style);
    for (size_t i = 0; names_runs && i < job->run_count; i++) {
        put_run_headline(job, i, style);
        put_process_tree(job, i, style);
    }
    if (!names_runs && job->run_count > 1) {
        fprintf(style->stream, "  and %zu earlier run%s of this job: sparkguard-report --job '%s'\n",
                job->run_count - 1, job->run_count > 2 ? "s" : "", text_printable(job->name, style->is_utf8));
    }
}

/* Prints what the job has claimed, and how much of that is left; or its place in the queue. */
static void put_claims(const struct model *model, const struct model_job *job, const struct style *style)
{
    const struct model_job_claims claims = model_claims_of(&model->claims, job);
    char share[32] = "";
    const char *size = text_size(claims.bytes);
    if (claims.share != SG_SHARE_MIN)
        snprintf(share, sizeof share, "; share %" PRIu64, claims.share);
    if (claims.is_held)
        put_note(style, STYLE_PLAIN,
                 text_format("claim of %s, %s of it not used%s", size, text_size(claims.rest_bytes), share));
    else if (claims.queue_position != 0)
        put_note(style, STYLE_YELLOW,
                 text_format("waits for a claim of %s, number %" PRIu64 " in the queue", size, claims.queue_position));
}

/* Prints what sparkguard --set has set for the job, and who did. */
static void put_settings(const struct model *model, const struct model_job *job, const struct style *style)
{
    const struct model_setting set = model_claims_setting_of(&model->claims, job);
    if (job->is_limit_bound || job->is_reserve_bound)
        put_note(style, STYLE_PLAIN, text_copy("bounded by " SG_BOUNDS_FILE, SIZE_MAX));
    if (set.directory == NULL)
        return;
    const char *limit = set.limit_bytes == 0 ? "" : set.limit_bytes == SG_UNKNOWN ? "none" : text_size(set.limit_bytes);
    const char *reserve = set.reserve_bytes != 0 ? text_size(set.reserve_bytes) : "";
    put_note(style, STYLE_PLAIN,
             text_format("set by %s: %s%s%s%s%s", host_user_name((uid_t)set.user), limit[0] ? "limit " : "", limit,
                         limit[0] && reserve[0] ? ", " : "", reserve[0] ? "reserve " : "", reserve));
}

static void put_all_jobs(const struct model *model, const struct model_scope *scope, const struct style *style)
{
    struct model_job *job;
    DL_FOREACH (model->jobs, job) {
        bool is_all = scope->is_all, names_runs = shows_runs(job, scope);
        size_t running = is_all ? 0 : model_fold(job, true);
        size_t ended = is_all ? 0 : model_fold(job, false);
        fputc('\n', style->stream);
        put_job_headline(job, model->directory_count > 1, names_runs, style);
        put_claims(model, job, style);
        put_settings(model, job, style);
        put_runs(job, names_runs, style);
        if (running > 0)
            fprintf(style->stream, "  and %zu smaller running processes; --all shows them\n", running);
        if (ended > 0)
            fprintf(style->stream, "  and %zu smaller ended processes; --all shows them\n", ended);
        put_notes(job, style);
    }
}

/* Columns of unguarded processes that are there only where a process has something to say in them. */
struct unguarded_columns {
    bool has_user, has_container, has_device, has_reason;
};

static struct unguarded_columns find_columns(const struct model *model)
{
    struct unguarded_columns columns = {0};
    for (size_t i = 0; i < model->unguarded_count; i++) {
        const struct model_unguarded *unguarded = &model->unguarded[i];
        columns.has_user = columns.has_user || unguarded->user != geteuid();
        columns.has_container = columns.has_container || unguarded->container != NULL;
        columns.has_device =
            columns.has_device || (unguarded->device_bytes != SG_UNKNOWN && unguarded->device_bytes != 0);
        columns.has_reason = columns.has_reason || unguarded->reason != NULL;
    }
    return columns;
}

static void put_unguarded_row(struct table *table, const struct model_unguarded *unguarded,
                              const struct unguarded_columns *columns)
{
    char pid[16];
    table_line(table, NULL);
    snprintf(pid, sizeof pid, "%" PRIu32, unguarded->pid);
    table_cell(table, pid, STYLE_PLAIN);
    table_command(table, "", unguarded->command);
    if (columns->has_user)
        table_text(table, host_user_name(unguarded->user));
    if (columns->has_container)
        table_text(table, unguarded->container != NULL ? unguarded->container : "-");
    table_bytes(table, unguarded->resident_bytes);
    if (columns->has_device)
        table_bytes(table, unguarded->device_bytes);
    if (columns->has_reason)
        table_text(table, unguarded->reason != NULL ? unguarded->reason : "-");
}

/* Prints the containers of which more than one process is unguarded: a single one has its line as a process. */
static void put_unguarded_containers(const struct model *model, const struct style *style)
{
    static const struct table_column columns[] = {{"UNGUARDED CONTAINER", TABLE_CUT},
                                                  {"PROCESSES", TABLE_NUMBERS},
                                                  {"RESIDENT", TABLE_NUMBERS},
                                                  {"DEVICE", TABLE_NUMBERS},
                                                  {"WHY", TABLE_CUT}};
    struct table table;
    bool is_any = false;
    for (size_t i = 0; i < model->unguarded_container_count; i++)
        is_any = is_any || model->unguarded_containers[i].process_count > 1;
    if (!is_any)
        return;
    fputc('\n', style->stream);
    table_begin(&table, style, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < model->unguarded_container_count; i++) {
        const struct model_unguarded_container *container = &model->unguarded_containers[i];
        if (container->process_count < 2)
            continue;
        table_line(&table, NULL);
        table_text(&table, container->name);
        table_count(&table, container->process_count, STYLE_PLAIN);
        table_bytes(&table, container->resident_bytes);
        table_bytes(&table, container->device_bytes);
        table_text(&table, container->reason != NULL ? container->reason : "-");
    }
    table_end(&table);
}

static void put_unguarded_processes(const struct model *model, const struct style *style)
{
    const struct unguarded_columns shown = find_columns(model);
    struct table_column columns[7] = {{"PID", TABLE_NUMBERS}, {"UNGUARDED PROCESS", TABLE_CUT}};
    size_t count = 2;
    struct table table;
    if (model->unguarded_count == 0)
        return;
    if (shown.has_user)
        columns[count++] = (struct table_column){"USER", TABLE_WORDS};
    if (shown.has_container)
        columns[count++] = (struct table_column){"CONTAINER", TABLE_CUT};
    columns[count++] = (struct table_column){"RESIDENT", TABLE_NUMBERS};
    if (shown.has_device)
        columns[count++] = (struct table_column){"DEVICE", TABLE_NUMBERS};
    if (shown.has_reason)
        columns[count++] = (struct table_column){"WHY", TABLE_CUT};
    fputc('\n', style->stream);
    table_begin(&table, style, columns, count);
    for (size_t i = 0; i < model->unguarded_count; i++)
        put_unguarded_row(&table, &model->unguarded[i], &shown);
    table_end(&table);
}

void report_render_unguarded(const struct model *model, const struct style *style)
{
    put_unguarded_processes(model, style);
    put_unguarded_containers(model, style);
}

/* Returns whether `process` is more interesting than `best`: ended by its watchdog, else more refusals, else larger. */
static bool is_more_interesting(const struct model_process *process, const struct model_process *best)
{
    if (best == NULL || (process->watchdog_event != NULL) != (best->watchdog_event != NULL))
        return best == NULL || process->watchdog_event != NULL;
    if (process->refused_count != best->refused_count)
        return process->refused_count > best->refused_count;
    return process->peak_bytes > best->peak_bytes;
}

static const struct model_process *find_interesting(const struct model *model)
{
    const struct model_process *best = NULL, *process;
    const struct model_job *job;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            if (process->run == job->run_count - 1 && is_more_interesting(process, best))
                best = process;
    return best;
}

/* Returns a directory that the library does not use because it is world-writable, or NULL. */
static char *find_open_directory(const struct model *model)
{
    struct stat status;
    for (size_t i = 0; i < model->directory_count; i++) {
        const char *path = model->directories[i].path;
        if (stat(path, &status) == 0 && S_ISDIR(status.st_mode) && (status.st_mode & S_IWOTH) != 0)
            return text_printable(path, false);
    }
    return NULL;
}

/* Returns the command that shows the same records again: the tool as it can be typed, and the given directories. */
static char *report_command(const struct model *model)
{
    char *command = command_of_tool("sparkguard-report");
    for (size_t i = 0; i < model->directory_count; i++) {
        if (model->directories[i].origin != MODEL_NAMED)
            continue;
        command = text_format("%s --dir '%s'", command, text_printable(model->directories[i].path, false));
    }
    return command;
}

static bool has_faulty_directory(const struct model *model)
{
    for (size_t i = 0; i < model->directory_count; i++)
        if (model_directory_is_faulty(&model->directories[i]))
            return true;
    return false;
}

/* Prints what to do next; nothing if a directory could not be read, because a message on stderr says why. */
static void put_advice(const struct model *model, const struct style *style)
{
    const struct model_process *process = find_interesting(model);
    if (process == NULL && has_faulty_directory(model))
        return;
    char *open_directory = find_open_directory(model);
    char *command = report_command(model);
    fputc('\n', style->stream);
    if (process != NULL) {
        char *advice = text_format("one process in depth: %s %" PRIu32, command, model_process_number(process));
        if (model->hidden_jobs > 0)
            advice =
                text_format("%s; %zu more job%s: --all", advice, model->hidden_jobs, model->hidden_jobs > 1 ? "s" : "");
        style_words(style, 0, STYLE_DIM, advice);
        return;
    }
    fputs(style_colour_on(style, STYLE_DIM), style->stream);
    if (open_directory != NULL)
        fprintf(style->stream, "programs do not use %s, because it is writable by all; fix it:\n  chmod o-w '%s'",
                open_directory, open_directory);
    else
        fputs("nothing has run under the guard yet; try:\n"
              "  sparkguard python3 train.py\n"
              "  LD_PRELOAD=libsparkguard.so python3 train.py",
              style->stream);
    fprintf(style->stream, "%s\n", style_colour_off(style, STYLE_DIM));
}

void report_render_text(const struct model *model, const struct model_scope *scope, const struct style *style)
{
    const struct model_job *job;
    const struct model_process *process;
    bool is_first = true;
    if (scope->pid == 0) {
        report_render_machine(model, style);
        put_all_jobs(model, scope, style);
        report_render_unguarded(model, style);
        put_advice(model, style);
        return;
    }
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process) {
            if (!is_first)
                fputc('\n', style->stream);
            is_first = false;
            report_render_process(job, process, style);
        }
    if (model->hidden_namesakes > 0)
        fprintf(style->stream, "\n%searlier processes had this pid too: sparkguard-report --all %" PRIu32 "%s\n",
                style_colour_on(style, STYLE_DIM), scope->pid, style_colour_off(style, STYLE_DIM));
}
