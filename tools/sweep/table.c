/*
 * table.c - prints the table and the recommendation in the terminal.
 */
#include <stdio.h>
#include <string.h>

#include "sweep/sweep.h"
#include "common/table.h"
#include "common/text.h"

static enum style_colour colour_of(const struct sweep_run *run)
{
    static const enum style_colour colours[SWEEP_STATUS_COUNT] = {
        [SWEEP_PENDING] = STYLE_DIM,      [SWEEP_UNDER_WAY] = STYLE_YELLOW, [SWEEP_OK] = STYLE_GREEN,
        [SWEEP_REFUSED] = STYLE_RED,      [SWEEP_FAILED] = STYLE_RED,       [SWEEP_KILLED] = STYLE_RED,
        [SWEEP_TIMED_OUT] = STYLE_RED,    [SWEEP_LOST] = STYLE_RED,         [SWEEP_INTERRUPTED] = STYLE_YELLOW,
        [SWEEP_TOO_LARGE] = STYLE_YELLOW, [SWEEP_SKIPPED] = STYLE_DIM,
    };
    return colours[run->status];
}

char *sweep_remark(const struct sweep *sweep, const struct sweep_run *run)
{
    const char *remark = "";
    /* Published figures call 38 GB left after 81 GB "approaching limit": longer inputs need more. */
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
        return text_format("%s%sits peak is unknown", remark, remark[0] != '\0' ? "; " : "");
    return text_format("%s%s%s", remark, remark[0] != '\0' && run->note[0] != '\0' ? "; " : "", run->note);
}

static void put_head(const struct sweep *sweep, const struct style *style)
{
    style_words(style, 0, STYLE_BOLD, sweep_command_text(sweep->command));
    if (sweep->total_bytes != SG_UNKNOWN)
        fprintf(style->stream, "%s%s of memory, %s of it kept in reserve%s\n", style_colour_on(style, STYLE_DIM),
                text_size(sweep->total_bytes), text_size(sweep->reserve_bytes), style_colour_off(style, STYLE_DIM));
    fputc('\n', style->stream);
}

static void begin_table(struct table *table, const struct sweep *sweep, const struct style *style,
                        const struct table_column *rest, size_t count)
{
    struct table_column columns[SWEEP_PARAMETERS + 8];
    for (size_t i = 0; i < sweep->parameter_count; i++)
        columns[i] = (struct table_column){sweep->parameter[i].name,
                                           sweep->parameter[i].is_number ? TABLE_NUMBERS : TABLE_WORDS};
    memcpy(columns + sweep->parameter_count, rest, count * sizeof *rest);
    table_begin(table, style, columns, sweep->parameter_count + count);
}

static void put_values(struct table *table, const struct sweep *sweep, const struct sweep_run *run)
{
    table_line(table, NULL);
    for (size_t i = 0; i < sweep->parameter_count; i++)
        table_text(table, sweep->parameter[i].value[run->place[i]]);
}

/* Says what the next larger value did, or which larger value is predicted to fit. */
static void put_boundary(const struct sweep *sweep, const struct style *style, const struct sweep_run *best)
{
    const struct sweep_run *next = sweep_find_neighbour(sweep, best);
    size_t along, points;
    double number;
    if (next != NULL) {
        char *title = sweep_run_text(sweep, next);
        fprintf(style->stream, "exactly: the next, %s, was %s\n", title, sweep_status_name[next->status]);
    } else if (sweep_predict_largest(sweep, &along, &number, &points)) {
        struct sweep_gap gap;
        char *text = text_format("about %s=%.15g fits, by how the %zu measured ones grew; %s",
                                 sweep->parameter[along].name, number, points,
                                 sweep_find_gap(sweep, &gap) ? "--refine finds the largest" : "not measured yet");
        style_words(style, 0, STYLE_PLAIN, text);
    }
}

/* Returns why a complete sweep has no maximum: only where memory was the reason does nothing fit. */
static const char *why_nothing(const struct sweep *sweep)
{
    bool is_false_start = false, is_unknown = false;
    for (size_t i = 0; i < sweep->run_count; i++) {
        const struct sweep_run *run = &sweep->run[i];
        if (run->status == SWEEP_REFUSED || run->status == SWEEP_KILLED || run->status == SWEEP_TOO_LARGE ||
            run->status == SWEEP_LOST || (run->status == SWEEP_OK && run->peak_bytes != SG_UNKNOWN))
            return "nothing fits: see STATUS";
        is_unknown = is_unknown || run->status == SWEEP_OK;
        is_false_start = is_false_start || sweep_is_false_start(sweep, run);
    }
    if (is_unknown)
        return "no maximum: the peak of what ended well is unknown";
    return is_false_start ? "the program cannot start: see NOTES" : "nothing ended well: see STATUS";
}

static void put_recommendation(const struct sweep *sweep, const struct style *style)
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
                style_colour_on(style, STYLE_GREEN), title, style_colour_off(style, STYLE_GREEN));
        fputs("  ", style->stream);
        style_words(style, 2, STYLE_PLAIN, command);
        if (sweep->is_complete)
            put_boundary(sweep, style, best);
    } else {
        fprintf(style->stream, "%s\n", sweep->is_complete ? why_nothing(sweep) : "nothing has ended well so far");
    }
    if (!sweep->is_complete)
        fprintf(style->stream, "%zu of %zu not done yet; the same command continues\n", pending, sweep->run_count);
}

void sweep_render_text(const struct sweep *sweep, const struct style *style)
{
    static const struct table_column rest[] = {{"PEAK", TABLE_NUMBERS},
                                               {"ROOM", TABLE_NUMBERS},
                                               {"STATUS", TABLE_WORDS},
                                               {"TIME", TABLE_NUMBERS},
                                               {"NOTES", TABLE_CUT}};
    struct table table;
    put_head(sweep, style);
    begin_table(&table, sweep, style, rest, sizeof rest / sizeof rest[0]);
    for (size_t i = 0; i < sweep->run_count; i++) {
        const struct sweep_run *run = &sweep->run[i];
        char *remark = sweep_remark(sweep, run);
        put_values(&table, sweep, run);
        table_bytes(&table, run->peak_bytes);
        table_bytes(&table, run->headroom_bytes);
        table_cell(&table, sweep_status_name[run->status], colour_of(run));
        table_cell(&table, text_duration(run->duration_ns), STYLE_PLAIN);
        table_text(&table, remark);
    }
    table_end(&table);
    put_recommendation(sweep, style);
}

void sweep_render_plan(const struct sweep *sweep, const struct style *style)
{
    static const struct table_column rest[] = {{"STATUS", TABLE_WORDS}, {"COMMAND", TABLE_CUT}};
    struct table table;
    begin_table(&table, sweep, style, rest, sizeof rest / sizeof rest[0]);
    for (size_t i = 0; i < sweep->run_count; i++) {
        const struct sweep_run *run = &sweep->run[i];
        char **words = sweep_command_of(sweep, run);
        char *command = sweep_command_text(words);
        put_values(&table, sweep, run);
        table_cell(&table, sweep_status_name[run->status], colour_of(run));
        table_text(&table, command);
    }
    table_end(&table);
}
