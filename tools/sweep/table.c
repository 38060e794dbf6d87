/*
 * table.c - the methodology's table in the terminal, and what it comes to.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sweep/sweep.h"
#include "common/table.h"
#include "common/text.h"

static enum report_colour colour_of(const struct sweep_run *run)
{
    static const enum report_colour colours[SWEEP_STATUS_COUNT] = {
        [SWEEP_PENDING] = REPORT_DIM,      [SWEEP_UNDER_WAY] = REPORT_YELLOW, [SWEEP_OK] = REPORT_GREEN,
        [SWEEP_REFUSED] = REPORT_RED,      [SWEEP_FAILED] = REPORT_RED,       [SWEEP_KILLED] = REPORT_RED,
        [SWEEP_TIMED_OUT] = REPORT_RED,    [SWEEP_LOST] = REPORT_RED,         [SWEEP_INTERRUPTED] = REPORT_YELLOW,
        [SWEEP_TOO_LARGE] = REPORT_YELLOW, [SWEEP_SKIPPED] = REPORT_DIM,
    };
    return colours[run->status];
}

char *sweep_remark(const struct sweep *sweep, const struct sweep_run *run)
{
    const char *remark = "";
    /* In the methodology's table 38 of 81 GB left are "approaching limit": longer inputs find less. */
    bool is_near = run->headroom_bytes != SG_UNKNOWN && run->headroom_bytes < run->needed_bytes / 4;
    if (run->status == SWEEP_OK && run->headroom_bytes != SG_UNKNOWN && run->headroom_bytes < sweep_margin_bytes(sweep))
        remark = "leaves less than the margin";
    else if (run == sweep_recommend(sweep))
        remark = !sweep->is_complete ? "largest so far"
                 : is_near           ? "recommended max, approaching limit"
                                     : "recommended max";
    else if (run->status == SWEEP_OK && is_near)
        remark = "approaching limit";
    if (run->status == SWEEP_OK && run->peak_bytes == SG_UNKNOWN && run->note[0] == '\0')
        return report_text_format("%s%stoo small to leave a record", remark, remark[0] != '\0' ? "; " : "");
    return report_text_format("%s%s%s", remark, remark[0] != '\0' && run->note[0] != '\0' ? "; " : "", run->note);
}

static void put_head(const struct sweep *sweep, const struct report_style *style)
{
    char total[REPORT_SIZE_TEXT], reserve[REPORT_SIZE_TEXT];
    char *command = sweep_command_text(sweep->command);
    report_words(style, 0, REPORT_BOLD, command);
    if (sweep->total_bytes != SG_UNKNOWN)
        fprintf(style->stream, "%s%s of memory, %s of it kept in reserve%s\n", report_colour_on(style, REPORT_DIM),
                report_size_text(total, sweep->total_bytes), report_size_text(reserve, sweep->reserve_bytes),
                report_colour_off(style, REPORT_DIM));
    fputc('\n', style->stream);
    free(command);
}

static void begin_table(struct report_table *table, const struct sweep *sweep, const struct report_style *style,
                        const struct report_column *rest, size_t count)
{
    struct report_column columns[SWEEP_PARAMETERS + 8];
    for (size_t i = 0; i < sweep->parameter_count; i++)
        columns[i] = (struct report_column){sweep->parameter[i].name,
                                            sweep->parameter[i].is_number ? REPORT_NUMBERS : REPORT_WORDS};
    memcpy(columns + sweep->parameter_count, rest, count * sizeof *rest);
    report_table_begin(table, style, columns, sweep->parameter_count + count);
}

static void put_values(struct report_table *table, const struct sweep *sweep, const struct sweep_run *run)
{
    report_table_line(table, NULL);
    for (size_t i = 0; i < sweep->parameter_count; i++)
        report_table_text(table, sweep->parameter[i].value[run->place[i]]);
}

static void put_recommendation(const struct sweep *sweep, const struct report_style *style)
{
    const struct sweep_run *best = sweep_recommend(sweep);
    size_t pending = 0;
    for (size_t i = 0; i < sweep->run_count; i++)
        pending += sweep->run[i].status == SWEEP_PENDING || sweep->run[i].status == SWEEP_INTERRUPTED;
    fputc('\n', style->stream);
    if (best != NULL) {
        char *title = sweep_run_text(sweep, best);
        char **words = sweep_command_of(sweep, best);
        char *command = sweep_command_text(words);
        fprintf(style->stream, "%s: %s%s%s\n", sweep->is_complete ? "recommended maximum" : "largest so far",
                report_colour_on(style, REPORT_GREEN), title, report_colour_off(style, REPORT_GREEN));
        fputs("  ", style->stream);
        report_words(style, 2, REPORT_PLAIN, command);
        free(command);
        sweep_command_free(words);
        free(title);
    } else {
        fprintf(style->stream, "%s\n",
                sweep->is_complete ? "nothing fits: see STATUS" : "nothing has ended well so far");
    }
    if (!sweep->is_complete)
        fprintf(style->stream, "%zu of %zu not done yet; the same command goes on\n", pending, sweep->run_count);
}

void sweep_render_text(const struct sweep *sweep, const struct report_style *style)
{
    static const struct report_column rest[] = {{"PEAK", REPORT_NUMBERS},
                                                {"HEADROOM", REPORT_NUMBERS},
                                                {"STATUS", REPORT_WORDS},
                                                {"TIME", REPORT_NUMBERS},
                                                {"NOTES", REPORT_CUT}};
    struct report_table table;
    char lasted[REPORT_TIME_TEXT];
    put_head(sweep, style);
    begin_table(&table, sweep, style, rest, sizeof rest / sizeof rest[0]);
    for (size_t i = 0; i < sweep->run_count; i++) {
        const struct sweep_run *run = &sweep->run[i];
        char *remark = sweep_remark(sweep, run);
        put_values(&table, sweep, run);
        report_table_bytes(&table, run->peak_bytes);
        report_table_bytes(&table, run->headroom_bytes);
        report_table_cell(&table, sweep_status_name[run->status], colour_of(run));
        report_table_cell(&table, report_duration_text(lasted, run->duration_ns), REPORT_PLAIN);
        report_table_text(&table, remark);
        free(remark);
    }
    report_table_end(&table);
    put_recommendation(sweep, style);
}

void sweep_render_plan(const struct sweep *sweep, const struct report_style *style)
{
    static const struct report_column rest[] = {{"STATUS", REPORT_WORDS}, {"COMMAND", REPORT_CUT}};
    struct report_table table;
    begin_table(&table, sweep, style, rest, sizeof rest / sizeof rest[0]);
    for (size_t i = 0; i < sweep->run_count; i++) {
        const struct sweep_run *run = &sweep->run[i];
        char **words = sweep_command_of(sweep, run);
        char *command = sweep_command_text(words);
        put_values(&table, sweep, run);
        report_table_cell(&table, sweep_status_name[run->status], colour_of(run));
        report_table_text(&table, command);
        free(command);
        sweep_command_free(words);
    }
    report_table_end(&table);
}
