/*
 * table.c - prints the list of the live screen: jobs as trees of processes, or all processes in one list, sorted by the
 * chosen key. Columns keep their places from one sample to the next.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/table.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"
#include "report/watch/watch.h"

enum {
    COLUMN_PID,
    COLUMN_COMMAND,
    COLUMN_HISTORY,
    COLUMN_BAR,
    COLUMN_LIVE,
    COLUMN_PEAK,
    COLUMN_RATE,
    COLUMN_WALL,
    COLUMN_REFUSED,
    COLUMNS
};

/* From WIDE on peak and history have columns of their own; below, the bar shows the peak, and that of a job its
 * history. Below NARROW there is no bar and no rate: when a wall is met, and what was refused, say more. Below the
 * others there is space for less. */
enum { WIDE = 100, NARROW = 74, WITH_WALL = 52, WITH_REFUSED = 42 };

struct row {
    struct model_process *process;
    const struct model_job *job;
    size_t job_place; /* index of the job in the report */
    struct row *parent;
    struct libscols_line *line;
    uint64_t key; /* rows with the largest key come first */
};

struct list {
    struct row *rows;
    size_t count, jobs;
};

struct drawing {
    const struct watch *watch;
    struct table table;
    const struct style *style;
    size_t command_cells, history_cells, bar_cells;
};

/* Before the name, which may be cut: refusals of this job or process are only recorded. */
static const char observe_mark[] = "observe: ";

char *watch_bar(size_t cells, uint64_t live_bytes, uint64_t peak_bytes, uint64_t total_bytes, bool is_utf8)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    bool is_known = total_bytes != 0 && total_bytes != SG_UNKNOWN;
    double scale = is_known ? (double)cells * 8 / (double)total_bytes : 0;
    double live_exact = (double)live_bytes * scale + 0.5, peak_exact = (double)peak_bytes * scale + 0.5;
    size_t live = live_exact < (double)cells * 8 ? (size_t)live_exact : cells * 8;
    size_t peak = peak_exact < (double)cells * 8 ? (size_t)peak_exact : cells * 8;
    char *text = tool_allocate(cells * 3 + 1, 1), *out = text;
    if (!is_utf8)
        live = (live + 4) / 8 * 8;
    for (size_t cell = 0; cell < cells; cell++) {
        const char *glyph = " ";
        if (live >= cell * 8 + 8)
            glyph = is_utf8 ? "█" : "#";
        else if (live > cell * 8)
            glyph = eighths[live - cell * 8];
        else if (peak >= cell * 8 + 4)
            glyph = is_utf8 ? "░" : "-";
        out = stpcpy(out, glyph);
    }
    return text;
}

/* ---- which, and in which order ----------------------------------------------------------------------------------- */

static uint64_t key_of(const struct watch *watch, const struct model_process *process)
{
    int64_t rate;
    switch (watch->sort) {
    case WATCH_BY_LIVE:
        return process->live_bytes;
    case WATCH_BY_PEAK:
        return process->peak_bytes;
    case WATCH_BY_RATE:
        rate = watch_process_rate(watch, process); /* WATCH_NO_RATE is the smallest value */
        return (uint64_t)rate ^ UINT64_C(1) << 63;
    case WATCH_BY_REFUSED:
        return process->refused_count;
    case WATCH_BY_PID:
        return UINT32_MAX - model_process_number(process);
    }
    return 0;
}

static int compare_rows(const void *a, const void *b)
{
    const struct row *first = *(struct row *const *)a, *second = *(struct row *const *)b;
    if (first->key != second->key)
        return first->key < second->key ? 1 : -1;
    if (first->process->live_bytes != second->process->live_bytes)
        return first->process->live_bytes < second->process->live_bytes ? 1 : -1;
    return (first > second) - (first < second); /* ordered by their start */
}

/* Returns the rows of all jobs, the oldest first, each with its nearest ancestor that has a row. */
static struct list list_rows(const struct watch *watch)
{
    struct list list = {NULL, 0, 0};
    struct model_job *job;
    size_t capacity = 0;
    DL_FOREACH (watch->model->jobs, job)
        capacity += job->process_count;
    list.rows = tool_allocate(capacity, sizeof *list.rows);
    DL_FOREACH (watch->model->jobs, job) {
        struct model_process *process;
        DL_FOREACH (job->processes, process) {
            process->line = process->parent != NULL ? process->parent->line : NULL;
            if (watch_is_shown(watch, job, process)) {
                struct row *row = &list.rows[list.count++];
                *row = (struct row){process, job, list.jobs, process->line, NULL, key_of(watch, process)};
                process->line = row;
            }
        }
        list.jobs++;
    }
    return list;
}

/* ---- columns ----------------------------------------------------------------------------------------------------- */

static const struct {
    struct table_column column;
    size_t width; /* 0: shares the space that the others leave */
} column_table[COLUMNS] = {
    [COLUMN_PID] = {{"PID", TABLE_NUMBERS}, 7},
    [COLUMN_COMMAND] = {{"COMMAND", TABLE_TREE}, 0},
    [COLUMN_HISTORY] = {{"HISTORY", TABLE_WORDS}, 0},
    [COLUMN_BAR] = {{"HELD", TABLE_WORDS}, 0},
    [COLUMN_LIVE] = {{"LIVE", TABLE_NUMBERS}, 10},
    [COLUMN_PEAK] = {{"PEAK", TABLE_NUMBERS}, 10},
    [COLUMN_RATE] = {{"RATE", TABLE_NUMBERS}, WATCH_RATE_CELLS},
    [COLUMN_WALL] = {{"WALL IN", TABLE_NUMBERS}, WATCH_WALL_CELLS},
    [COLUMN_REFUSED] = {{"REFUSED", TABLE_NUMBERS}, 8},
};

static bool has_column(const struct drawing *drawing, int column)
{
    static const size_t least[COLUMNS] = {
        [COLUMN_HISTORY] = WIDE, [COLUMN_BAR] = NARROW,     [COLUMN_PEAK] = WIDE,
        [COLUMN_RATE] = NARROW,  [COLUMN_WALL] = WITH_WALL, [COLUMN_REFUSED] = WITH_REFUSED,
    };
    return drawing->style->columns >= least[column];
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static void put_rate(struct drawing *drawing, int64_t rate)
{
    enum style_colour colour = rate == WATCH_NO_RATE || rate == 0 ? STYLE_DIM : STYLE_PLAIN;
    if (!has_column(drawing, COLUMN_RATE))
        return;
    table_cell(&drawing->table, watch_rate_text(rate), colour);
}

/* Prints the time to the wall: yellow below 10 min, while a person can still act, red below 1 min. */
static void put_wall_cell(struct drawing *drawing, int64_t wall_ns)
{
    enum style_colour colour = wall_ns == WATCH_NEVER ? STYLE_DIM : STYLE_PLAIN;
    if (wall_ns >= 0 && wall_ns < INT64_C(600000000000))
        colour = wall_ns < INT64_C(60000000000) ? STYLE_RED : STYLE_YELLOW;
    if (!has_column(drawing, COLUMN_WALL))
        return;
    table_cell(&drawing->table, watch_wall_text(wall_ns), colour);
}

static void put_size_cells(struct drawing *drawing, uint64_t live_bytes, uint64_t peak_bytes)
{
    table_bytes(&drawing->table, live_bytes);
    if (has_column(drawing, COLUMN_PEAK))
        table_bytes(&drawing->table, peak_bytes);
}

static void put_refused(struct drawing *drawing, uint64_t count)
{
    if (has_column(drawing, COLUMN_REFUSED))
        table_count(&drawing->table, count, STYLE_RED);
}

/* Prints what a job held over the last minutes, in its own column or in place of the bar. */
static void put_history(struct drawing *drawing, const struct model_job *job, size_t cells)
{
    const struct spark *spark = watch_spark(drawing->watch, job);
    char *text = spark == NULL ? text_copy("", 0)
                               : spark_text(spark, drawing->watch->sampled_ns, cells, drawing->style->is_utf8);
    table_cell(&drawing->table, text, STYLE_CYAN);
}

/* Prints a bar. Its full width is the job's limit, or the machine's memory. */
static void put_bar_cell(struct drawing *drawing, const struct model_job *job, uint64_t live_bytes, uint64_t peak_bytes,
                         enum style_colour colour)
{
    if (!has_column(drawing, COLUMN_BAR))
        return;
    uint64_t total_bytes = bytes_min(drawing->watch->model->machine.total_bytes, job->limit_bytes);
    char *bar = watch_bar(drawing->bar_cells, live_bytes, peak_bytes, total_bytes, drawing->style->is_utf8);
    table_cell(&drawing->table, bar, colour);
}

/* Returns whether a name consists of a time and a process number, "20261122T020601-13863". Such names differ at their
 * end. */
static bool is_made_up(const char *name)
{
    static const char digits[] = "0123456789";
    return strspn(name, digits) == 8 && name[8] == 'T' && strspn(name + 9, digits) == 6 && name[15] == '-';
}

static bool is_observing(const struct watch *watch, const struct model_job *job)
{
    const struct model_process *process;
    DL_FOREACH (job->processes, process)
        if (process->is_observing && watch_is_shown(watch, job, process))
            return true;
    return false;
}

/* Returns the job's name and limit as far as they fit. The limit is complete or left out, because the bar shows it
 * too. */
static char *job_text(const struct drawing *drawing, const struct model_job *job)
{
    size_t cells = drawing->command_cells, shown = 0;
    const char *cut = drawing->style->is_utf8 ? "…" : "...";
    char *name = text_printable(job->name[0] ? job->name : "-", drawing->style->is_utf8);
    size_t cut_cells = drawing->style->is_utf8 ? 1 : strlen(cut), kept;
    const char *mark = is_observing(drawing->watch, job) ? observe_mark : "";
    kept = bytes_less(cells, strlen(mark) + cut_cells);
    const char *limit = text_size(job->limit_bytes);
    char *place = model_job_place(job, drawing->style->is_utf8);
    char *whole = place != NULL ? text_format("%s, %s", name, place) : text_copy(name, SIZE_MAX);
    char *shape[] = {
        job->limit_bytes == SG_UNKNOWN ? text_format("%sjob %s", mark, whole)
                                       : text_format("%sjob %s, limit %s", mark, whole, limit),
        text_format("%sjob %s", mark, whole),
        job->limit_bytes == SG_UNKNOWN ? text_format("%sjob %s", mark, name)
                                       : text_format("%sjob %s, limit %s", mark, name, limit),
        text_format("%sjob %s", mark, name),
        text_format("%s%s", mark, name),
        text_format("%s%s%s", mark, cut, name + bytes_less(strlen(name), kept)),
    };
    size_t last = is_made_up(name) ? 5 : 4;
    while (shown < last && mbstowcs(NULL, shape[shown], 0) > cells)
        shown++;
    return shape[shown];
}

static struct libscols_line *put_job(struct drawing *drawing, const struct model_job *job)
{
    struct table *table = &drawing->table;
    struct libscols_line *line = table_line(table, NULL);
    int64_t rate = watch_job_rate(drawing->watch, job);
    char *text = job_text(drawing, job);
    table_cell(table, "", STYLE_PLAIN);
    table_cell(table, text, STYLE_BOLD);
    const struct model_run *run =
        &job->runs[job->run_count - 1]; /* the last run: earlier jobs may have had the same name */
    if (has_column(drawing, COLUMN_HISTORY)) {
        put_history(drawing, job, drawing->history_cells);
        put_bar_cell(drawing, job, job->live_bytes, run->peak_bytes, STYLE_CYAN);
    } else if (has_column(drawing, COLUMN_BAR)) {
        put_history(drawing, job, drawing->bar_cells);
    }
    put_size_cells(drawing, job->live_bytes, run->peak_bytes);
    put_rate(drawing, rate);
    put_wall_cell(drawing, watch_wall_ns(drawing->watch, job, rate));
    put_refused(drawing, run->refused_count);
    return line;
}

static void put_state_cell(struct drawing *drawing, enum sg_state state)
{
    table_cell(&drawing->table, model_state_name[state], report_state_colour(state));
}

/* Prints a process. An ended process shows how it ended in place of the bar, or of its wall where there is no bar. */
static void put_process_row(struct drawing *drawing, struct row *row, struct libscols_line *parent)
{
    char pid[16];
    const struct model_process *process = row->process;
    int64_t rate = watch_process_rate(drawing->watch, process);
    bool is_running = process->state == SG_STATE_RUNNING, has_bar = has_column(drawing, COLUMN_BAR);
    row->line = table_line(&drawing->table, parent);
    scols_line_set_userdata(row->line, row);
    snprintf(pid, sizeof pid, "%" PRIu32, model_process_number(process));
    table_cell(&drawing->table, pid, STYLE_BOLD);
    bool is_marked = process->is_observing && !drawing->watch->is_tree; /* otherwise the job is marked */
    table_command(&drawing->table, is_marked ? observe_mark : "", process->command);
    if (has_column(drawing, COLUMN_HISTORY))
        table_cell(&drawing->table, "", STYLE_PLAIN);
    if (is_running)
        put_bar_cell(drawing, row->job, process->live_bytes, process->peak_bytes, STYLE_GREEN);
    else if (has_bar)
        put_state_cell(drawing, process->state);
    put_size_cells(drawing, process->live_bytes, process->peak_bytes);
    put_rate(drawing, rate);
    if (is_running || has_bar)
        put_wall_cell(drawing, watch_wall_ns(drawing->watch, row->job, rate));
    else if (has_column(drawing, COLUMN_WALL))
        put_state_cell(drawing, process->state);
    put_refused(drawing, process->refused_count);
}

/* Prints a row after its ancestors and after the line of its job. */
static void put_job_and_rows(struct drawing *drawing, struct row *row, struct libscols_line **job)
{
    while (row->line == NULL) {
        struct row *top = row;
        while (top->parent != NULL && top->parent->line == NULL)
            top = top->parent;
        if (*job == NULL) {
            *job = put_job(drawing, row->job);
            scols_line_set_userdata(*job, row);
        }
        put_process_row(drawing, top, top->parent != NULL ? top->parent->line : *job);
    }
}

static void put_rows(struct drawing *drawing, const struct list *list)
{
    struct row **order = tool_allocate(list->count, sizeof(struct row *));
    struct libscols_line **jobs = tool_allocate(list->jobs, sizeof(struct libscols_line *));
    for (size_t i = 0; i < list->count; i++)
        order[i] = &list->rows[i];
    qsort(order, list->count, sizeof(struct row *), compare_rows);
    for (size_t i = 0; i < list->count; i++) {
        if (drawing->watch->is_tree)
            put_job_and_rows(drawing, order[i], &jobs[order[i]->job_place]);
        else
            put_process_row(drawing, order[i], NULL);
    }
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* Divides the space that the figures leave among command, history and bar. */
static void share_width(struct drawing *drawing)
{
    size_t taken = 0;
    for (int i = 0; i < COLUMNS; i++)
        if (has_column(drawing, i))
            taken += column_table[i].width + 1;
    size_t left = bytes_less(drawing->style->columns + 1, taken);
    bool has_history = has_column(drawing, COLUMN_HISTORY);
    drawing->history_cells = has_history ? left / 4 : 0;
    drawing->bar_cells = !has_column(drawing, COLUMN_BAR) ? 0 : has_history ? left * 3 / 10 : left * 2 / 5;
    drawing->command_cells = left - drawing->history_cells - drawing->bar_cells;
}

/* Returns a heading, padded to the width of its column so that libsmartcols keeps that width. Marks the column that
 * sorts the list. */
static char *heading_of(const struct drawing *drawing, int column, bool is_sorted)
{
    const char *mark = !is_sorted ? "" : drawing->style->is_utf8 ? "▾" : "*";
    const char *text = column_table[column].column.heading;
    size_t width = column_table[column].width, length = strlen(text) + is_sorted;
    if (column == COLUMN_COMMAND)
        width = drawing->command_cells;
    if (column == COLUMN_HISTORY)
        width = drawing->history_cells;
    if (column == COLUMN_BAR)
        width = drawing->bar_cells;
    int blanks = (int)bytes_less(width, length);
    return column_table[column].column.kind == TABLE_NUMBERS ? text_format("%*s%s%s", blanks, "", mark, text)
                                                             : text_format("%s%*s", text, blanks, "");
}

static void begin_table(struct drawing *drawing)
{
    static const int sorted[] = {
        [WATCH_BY_LIVE] = COLUMN_LIVE,       [WATCH_BY_PEAK] = COLUMN_PEAK, [WATCH_BY_RATE] = COLUMN_RATE,
        [WATCH_BY_REFUSED] = COLUMN_REFUSED, [WATCH_BY_PID] = COLUMN_PID,
    };
    struct table_column shown[COLUMNS];
    char *heading[COLUMNS];
    size_t count = 0;
    share_width(drawing);
    for (int i = 0; i < COLUMNS; i++) {
        if (!has_column(drawing, i))
            continue;
        heading[count] = heading_of(drawing, i, i == sorted[drawing->watch->sort]);
        shown[count] = (struct table_column){heading[count], column_table[i].column.kind};
        count++;
    }
    table_begin(&drawing->table, drawing->style, shown, count);
}

/* ---- the order on the screen ------------------------------------------------------------------------------------- */

/* Notes a line and those below it, in the order in which libsmartcols prints them. The line of a job refers to one of
 * its rows, whose line is another one. */
static void note_line(struct watch_rows *rows, struct libscols_line *line)
{
    struct libscols_iter *below = scols_new_iter(SCOLS_ITER_FORWARD);
    const struct row *row = scols_line_get_userdata(line);
    struct libscols_line *child;
    rows->key[rows->count++] = row->line == line ? watch_key_of_process(row->process) : watch_key_of_job(row->job);
    while (below != NULL && scols_line_next_child(line, below, &child) == 0)
        note_line(rows, child);
    scols_free_iter(below);
}

static void note_order(const struct drawing *drawing, const struct list *list, struct watch_rows *rows)
{
    struct libscols_iter *all = scols_new_iter(SCOLS_ITER_FORWARD);
    struct libscols_line *line;
    rows->key = reallocarray(rows->key, list->count + list->jobs + 1, sizeof *rows->key); /* the next frame needs it */
    if (rows->key == NULL)
        tool_end_without_memory();
    rows->count = 0;
    while (all != NULL && scols_table_next_line(drawing->table.table, all, &line) == 0)
        if (scols_line_get_parent(line) == NULL)
            note_line(rows, line);
    scols_free_iter(all);
}

void watch_put_table(struct watch *watch, const struct style *style)
{
    struct drawing drawing = {.watch = watch, .style = style};
    struct list list = list_rows(watch);
    begin_table(&drawing);
    put_rows(&drawing, &list);
    note_order(&drawing, &list, &watch->rows);
    table_end(&drawing.table);
}
