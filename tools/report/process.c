/*
 * process.c - prints one process in depth: its identity, state or end, memory over time, and refusals.
 */
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "report/report.h"
#include "common/table.h"
#include "common/text.h"
#include "common/tool.h"

enum style_colour report_state_colour(enum sg_state state)
{
    switch (state) {
    case SG_STATE_RUNNING:
        return STYLE_GREEN;
    case SG_STATE_KILLED:
        return STYLE_RED;
    case SG_STATE_EXITED:
    case SG_STATE_REPLACED:
        return STYLE_DIM;
    }
    return STYLE_PLAIN;
}

enum { SHARE_CELLS = 20, SITES_SHOWN = 10 };

/* Prints one piece of a line. */
static void put_process_piece(const struct style *style, size_t *column, enum style_colour colour, char *piece)
{
    style_flow(style, column, *column > 2 ? ", " : "", colour, piece);
}

/* Prints the container, the number in it and the user, where these are not the reader's own. */
static void put_place(const struct model_process *process, size_t *column, const struct style *style)
{
    if (process->container != NULL) {
        char *name = text_printable(process->container, style->is_utf8);
        put_process_piece(style, column, STYLE_CYAN, text_format("container %s", name));
    }
    if (process->pid != model_process_number(process))
        put_process_piece(style, column, STYLE_PLAIN, text_format("process %" PRIu32 " there", process->pid));
    if (process->user != geteuid()) {
        char *user = host_user_name(process->user), *name = text_printable(user, style->is_utf8);
        put_process_piece(style, column, STYLE_PLAIN, text_format("user %s", name));
    }
}

static void put_life(const struct model_job *job, const struct model_process *process, const struct style *style)
{
    char end[MODEL_END_TEXT];
    char *name = text_printable(job->name[0] ? job->name : "-", style->is_utf8);
    enum style_colour colour = process->watchdog_event != NULL ? STYLE_RED : report_state_colour(process->state);
    int64_t until_ns = process->state == SG_STATE_RUNNING ? tool_now_ns() : process->ended_ns;
    size_t column = 2;
    fputs("  ", style->stream);
    put_process_piece(style, &column, colour, text_format("%s", model_end_text(process, end)));
    put_process_piece(style, &column, STYLE_PLAIN, text_format("started %s", text_time_local(process->started_ns)));
    if (until_ns > 0)
        put_process_piece(style, &column, STYLE_PLAIN,
                          text_format(process->state == SG_STATE_RUNNING ? "%s ago" : "ran %s",
                                      text_duration(until_ns - process->started_ns)));
    else
        put_process_piece(style, &column, STYLE_PLAIN,
                          text_format("last seen %s", text_time_local(process->last_seen_ns)));
    put_process_piece(style, &column, STYLE_PLAIN, text_format("job %s", name));
    put_place(process, &column, style);
    fputc('\n', style->stream);
}

static void put_guard_state(const struct model_process *process, const struct style *style)
{
    size_t column = 2;
    fputs("  ", style->stream);
    style_flow(style, &column, "", process->is_guarding ? STYLE_PLAIN : STYLE_YELLOW,
               process->is_guarding ? "guarding" : "not guarding");
    style_flow(style, &column, ", ", STYLE_PLAIN,
               process->is_observing ? "observe: nothing is refused, only recorded" : "enforce");
    if (process->is_sharing)
        style_flow(style, &column, ", ", STYLE_PLAIN, "sharing");
    if (process->is_watched)
        style_flow(style, &column, ", ", STYLE_PLAIN, "watched");
    if (process->limit_bytes != SG_UNKNOWN)
        put_process_piece(style, &column, STYLE_PLAIN, text_format("limit %s", text_size(process->limit_bytes)));
    fputc('\n', style->stream);
    if (model_process_is_alone(process)) {
        char *reason = text_printable(model_process_alone_reason(process), style->is_utf8);
        char *text = text_format("decides alone: %s", reason);
        fputs("  ", style->stream);
        style_words(style, 2, STYLE_YELLOW, text);
    }
}

/* A parent is not told of the kernel's out-of-memory killer, whose signal is an ordinary SIGKILL. */
static void put_other_cause(const struct model_process *process, const struct style *style)
{
    bool may_be = process->state == SG_STATE_KILLED && process->watchdog == MODEL_NO_WATCHDOG &&
                  (process->signal == 0 || process->signal == SIGKILL);
    if (!may_be)
        return;
    fputs("  ", style->stream);
    style_words(
        style, 2, STYLE_PLAIN,
        "not by its own watchdog; if it was the kernel's out-of-memory killer, the kernel log says so: journalctl -k");
}

static void put_identity(const struct model_job *job, const struct model_process *process, const struct style *style)
{
    char *command = text_printable(process->command[0] ? process->command : "-", style->is_utf8);
    fprintf(style->stream, "%s%" PRIu32 "%s  %s\n", style_colour_on(style, STYLE_BOLD), model_process_number(process),
            style_colour_off(style, STYLE_BOLD), command);
    struct style lines = *style; /* lines wrap on a terminal only */
    lines.columns = style->is_terminal ? style->columns : SIZE_MAX;
    put_life(job, process, &lines);
    put_guard_state(process, &lines);
    put_other_cause(process, &lines);
}

/* Prints what the process found out about the driver against what the guard assumes of it. */
static void put_disproved(const struct model_process *process, const struct style *style)
{
    for (int i = 0; i < SG_DRIVER_FACT_COUNT; i++)
        if (sg_driver_finding(process->machine.driver_facts, (enum sg_driver_fact)i) == SG_FACT_DISPROVED)
            fprintf(style->stream, "found: %s\n", model_driver_fact_text[i][1]);
}

static void put_peak_and_extras(const struct model_process *process, const struct style *style)
{
    char *parts = model_peak_text(process), *rest = NULL;
    bool is_running = process->state == SG_STATE_RUNNING;
    size_t column = 0;
    fprintf(style->stream, "\n%s %s%s%s\n", is_running ? "live" : "held at its end", style_colour_on(style, STYLE_BOLD),
            text_size(process->live_bytes), style_colour_off(style, STYLE_BOLD));
    const char *time_text = text_time_local(process->peak_ns);
    char *piece = text_format("peak %s%s%s", text_size(process->peak_bytes), process->peak_ns > 0 ? " at " : "",
                              process->peak_ns > 0 ? time_text : "");
    style_flow(style, &column, "", STYLE_BOLD, piece);
    for (char *part = strtok_r(parts, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest))
        style_flow(style, &column, part == parts ? ": " : ", ", STYLE_PLAIN, part + (part[0] == ' '));
    fprintf(style->stream, "\nunaccounted %s%s\n", text_size(process->unaccounted_bytes),
            process->unaccounted_bytes != SG_UNKNOWN ? " (CUDA contexts and the like, taken without a request)" : "");
    const struct {
        const char *words;
        uint64_t bytes;
    } extras[] = {
        {"promised, not resident yet", is_running ? process->promised_bytes : 0},
        {"inherited from the parent by fork", process->inherited_bytes},
        {"registered with CUDA (counted elsewhere)", process->registered_bytes},
        {"resident of MAP_NORESERVE mappings (in the limit only)", process->sparse_resident_bytes},
    };
    for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++)
        if (extras[i].bytes != 0 && extras[i].bytes != SG_UNKNOWN)
            fprintf(style->stream, "%s %s\n", text_size(extras[i].bytes), extras[i].words);
    if (process->unmatched_frees > 0)
        fprintf(style->stream, "%" PRIu64 " frees of blocks that the guard did not see allocated\n",
                process->unmatched_frees);
    if (process->faults > 0)
        fprintf(style->stream, "%s%" PRIu64 " internal faults%s: those calls were let through uncounted\n",
                style_colour_on(style, STYLE_YELLOW), process->faults, style_colour_off(style, STYLE_YELLOW));
    put_disproved(process, style);
}

/* Returns a domain's part of the peak as a bar: "██████████████ 70 %". */
static char *share_text(uint64_t part, uint64_t whole, bool is_utf8)
{
    double share = whole == 0 ? 0 : (double)part / (double)whole;
    size_t cells = (size_t)(share * SHARE_CELLS + 0.5);
    char bar[SHARE_CELLS * 3 + 1] = "", *end = bar;
    for (size_t i = 0; i < SHARE_CELLS && i < cells; i++)
        end = stpcpy(end, is_utf8 ? "█" : "#");
    return part == 0 ? text_copy("", 0) : text_format("%s %.0f %%", bar, share >= 1 ? 100.0 : share * 100.0);
}

static void put_domains(const struct model_process *process, const struct style *style)
{
    static const struct table_column columns[] = {
        {"DOMAIN", TABLE_WORDS},         {"LIVE", TABLE_NUMBERS},  {"PEAK", TABLE_NUMBERS},
        {"ALLOCATIONS", TABLE_NUMBERS},  {"FREES", TABLE_NUMBERS}, {"REFUSED", TABLE_NUMBERS},
        {"PART OF THE PEAK", TABLE_CUT},
    };
    struct table table;
    fputc('\n', style->stream);
    table_begin(&table, style, columns, sizeof columns / sizeof columns[0]);
    for (int i = 0; i < SG_DOMAIN_COUNT; i++) {
        const struct model_domain *domain = &process->domain[i];
        char *share = share_text(domain->at_peak_bytes, process->peak_bytes, style->is_utf8);
        table_line(&table, NULL);
        table_cell(&table, model_domain_name[i], STYLE_PLAIN);
        table_bytes(&table, domain->live_bytes);
        table_bytes(&table, domain->peak_bytes);
        table_count(&table, domain->allocations, STYLE_PLAIN);
        table_count(&table, domain->frees, STYLE_PLAIN);
        table_count(&table, domain->refused_count, STYLE_RED);
        table_cell(&table, share, STYLE_GREEN);
    }
    table_end(&table);
}

static void put_sites(const struct model_process *process, const struct style *style)
{
    static const struct table_column columns[] = {{"LARGE BLOCKS REQUESTED AT", TABLE_CUT},
                                                  {"DOMAIN", TABLE_WORDS},
                                                  {"LIVE", TABLE_NUMBERS},
                                                  {"BLOCKS", TABLE_NUMBERS},
                                                  {"AT THE PEAK", TABLE_NUMBERS},
                                                  {"AT REFUSAL", TABLE_NUMBERS}};
    size_t columns_shown = sizeof columns / sizeof columns[0] - (process->refusal_count == 0);
    struct table table;
    size_t shown = process->site_count < SITES_SHOWN ? process->site_count : SITES_SHOWN;
    if (shown == 0)
        return;
    fputc('\n', style->stream);
    table_begin(&table, style, columns, columns_shown);
    for (size_t i = 0; i < shown; i++) {
        const struct model_site *site = &process->sites[i];
        char *place =
            site->is_named ? text_format("%s+0x%" PRIx64, site->library, site->offset) : text_copy("elsewhere", 16);
        table_line(&table, NULL);
        table_text(&table, place);
        table_cell(&table, site->domain >= 0 ? model_domain_name[site->domain] : "-", STYLE_PLAIN);
        table_bytes(&table, site->live_bytes);
        table_count(&table, site->live_count, STYLE_PLAIN);
        table_bytes(&table, site->at_peak_bytes);
        if (process->refusal_count > 0)
            table_bytes(&table, site->at_refusal_bytes);
    }
    table_end(&table);
}

static void put_refusal_list(const struct model_process *process, const struct style *style)
{
    static const struct table_column columns[] = {
        {"TIME", TABLE_WORDS},   {"REFUSED", TABLE_WORDS}, {"DOMAIN", TABLE_WORDS},
        {"SIZE", TABLE_NUMBERS}, {"REASON", TABLE_WORDS},  {"LEFT THEN", TABLE_NUMBERS},
    };
    struct table table;
    if (process->refused_count == 0 && process->refusal_count == 0)
        return;
    fprintf(style->stream, "\n%s%" PRIu64 " request%s %srefused%s, %s in all", style_colour_on(style, STYLE_RED),
            process->refused_count, process->refused_count == 1 ? "" : "s",
            process->is_observing ? "would have been " : "", style_colour_off(style, STYLE_RED),
            text_size(process->refused_bytes));
    if (process->refused_count > process->refusal_count)
        fprintf(style->stream, "; the last %zu", process->refusal_count);
    fputs(":\n", style->stream);
    table_begin(&table, style, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < process->refusal_count; i++) {
        const struct model_refusal *refusal = &process->refusals[i];
        table_line(&table, NULL);
        table_cell(&table, text_clock_local(refusal->time_ns), STYLE_PLAIN);
        table_text(&table, refusal->call);
        table_cell(&table, model_domain_name[refusal->domain], STYLE_PLAIN);
        table_bytes(&table, refusal->size_bytes);
        table_cell(&table, model_reason_name[refusal->reason], STYLE_YELLOW);
        table_bytes(&table, refusal->usable_bytes);
    }
    table_end(&table);
}

static void put_phase_list(const struct model_process *process, const struct style *style)
{
    static const struct table_column columns[] = {
        {"TIME", TABLE_WORDS}, {"PHASE", TABLE_CUT}, {"LIVE", TABLE_NUMBERS}, {"PEAK", TABLE_NUMBERS}};
    struct table table;
    if (process->phase_count == 0)
        return;
    fputc('\n', style->stream);
    table_begin(&table, style, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < process->phase_count; i++) {
        const struct model_phase *phase = &process->phases[i];
        table_line(&table, NULL);
        table_cell(&table, text_clock_local(phase->time_ns), STYLE_PLAIN);
        table_text(&table, phase->name);
        table_bytes(&table, phase->live_bytes);
        table_bytes(&table, phase->peak_bytes);
    }
    table_end(&table);
}

/* Prints events as lines instead of a table, which would wrap long texts below their times. */
static void put_events(const struct model_process *process, const struct style *style)
{
    enum { CLOCK_COLUMNS = 8 };
    if (process->event_count == 0)
        return;
    fprintf(style->stream, "\n%s%-*s EVENT%s\n", style_colour_on(style, STYLE_DIM), CLOCK_COLUMNS, "TIME",
            style_colour_off(style, STYLE_DIM));
    for (size_t i = 0; i < process->event_count; i++) {
        char *what = text_printable(process->events[i].what, style->is_utf8);
        bool is_watchdog_event = process->watchdog_event != NULL && i + 1 == process->event_count;
        fprintf(style->stream, "%-*s ", CLOCK_COLUMNS, text_clock_local(process->events[i].time_ns));
        style_words(style, CLOCK_COLUMNS + 1, is_watchdog_event ? STYLE_RED : STYLE_PLAIN, what);
    }
}

void report_render_process(const struct model_job *job, const struct model_process *process, const struct style *style)
{
    put_identity(job, process, style);
    put_peak_and_extras(process, style);
    put_domains(process, style);
    put_sites(process, style);
    put_refusal_list(process, style);
    put_phase_list(process, style);
    put_events(process, style);
}
