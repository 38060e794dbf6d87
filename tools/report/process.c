/*
 * process.c - one process in depth: who it is, how it stands or ended, what it held and when, what was refused.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "report/render.h"
#include "common/table.h"
#include "common/text.h"

enum report_colour report_state_colour(enum sg_state state)
{
    switch (state) {
    case SG_STATE_RUNNING:
        return REPORT_GREEN;
    case SG_STATE_KILLED:
        return REPORT_RED;
    case SG_STATE_EXITED:
    case SG_STATE_REPLACED:
        return REPORT_DIM;
    }
    return REPORT_PLAIN;
}

enum { SHARE_CELLS = 20, SITES_SHOWN = 10 };

/* One piece of a line; frees it. */
static void put_piece(const struct report_style *style, size_t *column, enum report_colour colour, char *piece)
{
    report_flow(style, column, *column > 2 ? ", " : "", colour, piece);
    free(piece);
}

static void put_life(const struct report_job *job, const struct report_process *process,
                     const struct report_style *style)
{
    char end[REPORT_END_TEXT], started[REPORT_TIME_TEXT], lasted[REPORT_TIME_TEXT];
    char *name = report_text_printable(job->name[0] ? job->name : "-", style->is_utf8);
    enum report_colour colour = process->fate != NULL ? REPORT_RED : report_state_colour(process->state);
    int64_t until_ns = process->state == SG_STATE_RUNNING ? report_now_ns() : process->ended_ns;
    size_t column = 2;
    fputs("  ", style->stream);
    put_piece(style, &column, colour, report_text_format("%s", report_end_text(process, end)));
    put_piece(style, &column, REPORT_PLAIN,
              report_text_format("started %s", report_time_local(started, process->started_ns)));
    if (until_ns > 0)
        put_piece(style, &column, REPORT_PLAIN,
                  report_text_format(process->state == SG_STATE_RUNNING ? "%s ago" : "ran %s",
                                     report_duration_text(lasted, until_ns - process->started_ns)));
    else
        put_piece(style, &column, REPORT_PLAIN,
                  report_text_format("last seen %s", report_time_local(lasted, process->last_seen_ns)));
    put_piece(style, &column, REPORT_PLAIN, report_text_format("job %s", name));
    fputc('\n', style->stream);
    free(name);
}

static void put_standing(const struct report_process *process, const struct report_style *style)
{
    size_t column = 2;
    fputs("  ", style->stream);
    report_flow(style, &column, "", process->is_guarding ? REPORT_PLAIN : REPORT_YELLOW,
                process->is_guarding ? "guarding" : "not guarding");
    report_flow(style, &column, ", ", REPORT_PLAIN,
                process->is_observing ? "observe: nothing is refused, only recorded" : "enforce");
    if (process->is_sharing)
        report_flow(style, &column, ", ", REPORT_PLAIN, "sharing");
    if (process->is_watched)
        report_flow(style, &column, ", ", REPORT_PLAIN, "watched");
    if (process->limit_bytes != SG_UNKNOWN) {
        char limit[REPORT_SIZE_TEXT];
        put_piece(style, &column, REPORT_PLAIN,
                  report_text_format("limit %s", report_size_text(limit, process->limit_bytes)));
    }
    fputc('\n', style->stream);
    if (report_process_is_alone(process)) {
        char *reason = report_text_printable(report_process_alone_reason(process), style->is_utf8);
        char *text = report_text_format("decides alone: %s", reason);
        fputs("  ", style->stream);
        report_words(style, 2, REPORT_YELLOW, text);
        free(text);
        free(reason);
    }
}

/* Nobody tells a parent of the out-of-memory killer, and its signal is SIGKILL like any other. */
static void put_other_cause(const struct report_process *process, const struct report_style *style)
{
    bool may_be = process->state == SG_STATE_KILLED && process->watchdog == REPORT_NO_WATCHDOG &&
                  (process->signal == 0 || process->signal == SIGKILL);
    if (!may_be)
        return;
    fputs("  ", style->stream);
    report_words(
        style, 2, REPORT_PLAIN,
        "not by its own watchdog; if the kernel's out-of-memory killer ended it, its log says so: journalctl -k");
}

static void put_identity(const struct report_job *job, const struct report_process *process,
                         const struct report_style *style)
{
    char *command = report_text_printable(process->command[0] ? process->command : "-", style->is_utf8);
    fprintf(style->stream, "%s%" PRIu32 "%s  %s\n", report_colour_on(style, REPORT_BOLD), process->pid,
            report_colour_off(style, REPORT_BOLD), command);
    free(command);
    struct report_style lines = *style; /* they wrap on a terminal only */
    lines.columns = style->is_terminal ? style->columns : SIZE_MAX;
    put_life(job, process, &lines);
    put_standing(process, &lines);
    put_other_cause(process, &lines);
}

static void put_figures(const struct report_process *process, const struct report_style *style)
{
    char size[REPORT_SIZE_TEXT], when[REPORT_TIME_TEXT];
    char *parts = report_peak_text(process), *rest = NULL;
    bool is_running = process->state == SG_STATE_RUNNING;
    size_t column = 0;
    fprintf(style->stream, "\n%s %s%s%s\n", is_running ? "live" : "held at its end",
            report_colour_on(style, REPORT_BOLD), report_size_text(size, process->live_bytes),
            report_colour_off(style, REPORT_BOLD));
    const char *time_text = report_time_local(when, process->peak_ns);
    char *piece = report_text_format("peak %s%s%s", report_size_text(size, process->peak_bytes),
                                     process->peak_ns > 0 ? " at " : "", process->peak_ns > 0 ? time_text : "");
    report_flow(style, &column, "", REPORT_BOLD, piece);
    free(piece);
    for (char *part = strtok_r(parts, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest))
        report_flow(style, &column, part == parts ? ": " : ", ", REPORT_PLAIN, part + (part[0] == ' '));
    fprintf(style->stream, "\nunaccounted %s%s\n", report_size_text(size, process->unaccounted_bytes),
            process->unaccounted_bytes != SG_UNKNOWN ? " (CUDA contexts and the like, taken without asking)" : "");
    free(parts);
    const struct {
        const char *words;
        uint64_t bytes;
    } extras[] = {
        {"promised, not there yet", is_running ? process->promised_bytes : 0},
        {"inherited from the process that forked it", process->inherited_bytes},
        {"registered with CUDA (counted elsewhere)", process->registered_bytes},
        {"resident of MAP_NORESERVE mappings (in the limit only)", process->sparse_resident_bytes},
    };
    for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++)
        if (extras[i].bytes != 0 && extras[i].bytes != SG_UNKNOWN)
            fprintf(style->stream, "%s %s\n", report_size_text(size, extras[i].bytes), extras[i].words);
    if (process->unmatched_frees > 0)
        fprintf(style->stream, "%" PRIu64 " frees of blocks that were allocated past the guard\n",
                process->unmatched_frees);
    if (process->faults > 0)
        fprintf(style->stream, "%s%" PRIu64 " internal faults%s: those calls were let through uncounted\n",
                report_colour_on(style, REPORT_YELLOW), process->faults, report_colour_off(style, REPORT_YELLOW));
}

/* A domain's part of the peak as a bar: "██████████████        70 %". */
static char *share_text(uint64_t part, uint64_t whole, bool is_utf8)
{
    double share = whole == 0 ? 0 : (double)part / (double)whole;
    size_t cells = (size_t)(share * SHARE_CELLS + 0.5);
    char bar[SHARE_CELLS * 3 + 1] = "", *end = bar;
    for (size_t i = 0; i < SHARE_CELLS && i < cells; i++)
        end = stpcpy(end, is_utf8 ? "█" : "#");
    return part == 0 ? report_text_copy("", 0)
                     : report_text_format("%s %.0f %%", bar, share >= 1 ? 100.0 : share * 100.0);
}

static void put_domains(const struct report_process *process, const struct report_style *style)
{
    static const struct report_column columns[] = {
        {"DOMAIN", REPORT_WORDS},         {"LIVE", REPORT_NUMBERS},  {"PEAK", REPORT_NUMBERS},
        {"ALLOCATIONS", REPORT_NUMBERS},  {"FREES", REPORT_NUMBERS}, {"REFUSED", REPORT_NUMBERS},
        {"PART OF THE PEAK", REPORT_CUT},
    };
    struct report_table table;
    fputc('\n', style->stream);
    report_table_begin(&table, style, columns, sizeof columns / sizeof columns[0]);
    for (int i = 0; i < SG_DOMAIN_COUNT; i++) {
        const struct report_domain *domain = &process->domain[i];
        char *share = share_text(domain->at_peak_bytes, process->peak_bytes, style->is_utf8);
        report_table_line(&table, NULL);
        report_table_cell(&table, report_domain_name[i], REPORT_PLAIN);
        report_table_bytes(&table, domain->live_bytes);
        report_table_bytes(&table, domain->peak_bytes);
        report_table_count(&table, domain->allocations, REPORT_PLAIN);
        report_table_count(&table, domain->frees, REPORT_PLAIN);
        report_table_count(&table, domain->refused_count, REPORT_RED);
        report_table_cell(&table, share, REPORT_GREEN);
        free(share);
    }
    report_table_end(&table);
}

static void put_sites(const struct report_process *process, const struct report_style *style)
{
    static const struct report_column columns[] = {{"LARGE BLOCKS ASKED FOR AT", REPORT_CUT},
                                                   {"DOMAIN", REPORT_WORDS},
                                                   {"LIVE", REPORT_NUMBERS},
                                                   {"BLOCKS", REPORT_NUMBERS},
                                                   {"AT THE PEAK", REPORT_NUMBERS},
                                                   {"AT REFUSAL", REPORT_NUMBERS}};
    size_t columns_shown = sizeof columns / sizeof columns[0] - (process->refusal_count == 0);
    struct report_table table;
    size_t shown = process->site_count < SITES_SHOWN ? process->site_count : SITES_SHOWN;
    if (shown == 0)
        return;
    fputc('\n', style->stream);
    report_table_begin(&table, style, columns, columns_shown);
    for (size_t i = 0; i < shown; i++) {
        const struct report_site *site = &process->sites[i];
        char *place = site->is_named ? report_text_format("%s+0x%" PRIx64, site->library, site->offset)
                                     : report_text_copy("elsewhere", 16);
        report_table_line(&table, NULL);
        report_table_text(&table, place);
        report_table_cell(&table, site->domain >= 0 ? report_domain_name[site->domain] : "-", REPORT_PLAIN);
        report_table_bytes(&table, site->live_bytes);
        report_table_count(&table, site->live_count, REPORT_PLAIN);
        report_table_bytes(&table, site->at_peak_bytes);
        if (process->refusal_count > 0)
            report_table_bytes(&table, site->at_refusal_bytes);
        free(place);
    }
    report_table_end(&table);
}

static void put_refusals(const struct report_process *process, const struct report_style *style)
{
    static const struct report_column columns[] = {
        {"TIME", REPORT_WORDS},   {"REFUSED", REPORT_WORDS}, {"DOMAIN", REPORT_WORDS},
        {"SIZE", REPORT_NUMBERS}, {"REASON", REPORT_WORDS},  {"LEFT THEN", REPORT_NUMBERS},
    };
    struct report_table table;
    char size[REPORT_SIZE_TEXT], clock[REPORT_TIME_TEXT];
    if (process->refused_count == 0 && process->refusal_count == 0)
        return;
    fprintf(style->stream, "\n%s%" PRIu64 " request%s refused%s, %s in all%s", report_colour_on(style, REPORT_RED),
            process->refused_count, process->refused_count == 1 ? "" : "s", report_colour_off(style, REPORT_RED),
            report_size_text(size, process->refused_bytes), process->is_observing ? " (observed, let through)" : "");
    if (process->refused_count > process->refusal_count)
        fprintf(style->stream, "; the last %zu", process->refusal_count);
    fputs(":\n", style->stream);
    report_table_begin(&table, style, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < process->refusal_count; i++) {
        const struct report_refusal *refusal = &process->refusals[i];
        report_table_line(&table, NULL);
        report_table_cell(&table, report_clock_local(clock, refusal->time_ns), REPORT_PLAIN);
        report_table_text(&table, refusal->call);
        report_table_cell(&table, report_domain_name[refusal->domain], REPORT_PLAIN);
        report_table_bytes(&table, refusal->size_bytes);
        report_table_cell(&table, report_reason_name[refusal->reason], REPORT_YELLOW);
        report_table_bytes(&table, refusal->usable_bytes);
    }
    report_table_end(&table);
}

static void put_phases(const struct report_process *process, const struct report_style *style)
{
    static const struct report_column columns[] = {
        {"TIME", REPORT_WORDS}, {"PHASE", REPORT_CUT}, {"LIVE", REPORT_NUMBERS}, {"PEAK", REPORT_NUMBERS}};
    struct report_table table;
    char clock[REPORT_TIME_TEXT];
    if (process->phase_count == 0)
        return;
    fputc('\n', style->stream);
    report_table_begin(&table, style, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < process->phase_count; i++) {
        const struct report_phase *phase = &process->phases[i];
        report_table_line(&table, NULL);
        report_table_cell(&table, report_clock_local(clock, phase->time_ns), REPORT_PLAIN);
        report_table_text(&table, phase->name);
        report_table_bytes(&table, phase->live_bytes);
        report_table_bytes(&table, phase->peak_bytes);
    }
    report_table_end(&table);
}

/* Sentences rather than cells: a table would put long ones below their times. */
static void put_events(const struct report_process *process, const struct report_style *style)
{
    enum { CLOCK_COLUMNS = 8 };
    char clock[REPORT_TIME_TEXT];
    if (process->event_count == 0)
        return;
    fprintf(style->stream, "\n%s%-*s EVENT%s\n", report_colour_on(style, REPORT_DIM), CLOCK_COLUMNS, "TIME",
            report_colour_off(style, REPORT_DIM));
    for (size_t i = 0; i < process->event_count; i++) {
        char *what = report_text_printable(process->events[i].what, style->is_utf8);
        bool is_fate = process->fate != NULL && i + 1 == process->event_count;
        fprintf(style->stream, "%-*s ", CLOCK_COLUMNS, report_clock_local(clock, process->events[i].time_ns));
        report_words(style, CLOCK_COLUMNS + 1, is_fate ? REPORT_RED : REPORT_PLAIN, what);
        free(what);
    }
}

void report_render_process(const struct report_job *job, const struct report_process *process,
                           const struct report_style *style)
{
    put_identity(job, process, style);
    put_figures(process, style);
    put_domains(process, style);
    put_sites(process, style);
    put_refusals(process, style);
    put_phases(process, style);
    put_events(process, style);
}
