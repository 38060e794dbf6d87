/*
 * screen.c - draws one screen: the machine at the top, the scrolling list, the largest unguarded processes, the keys.
 * The lines are those of the other views, cut to the screen.
 */
#include <inttypes.h>
#include <string.h>

#include "report/watch/terminal.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"
#include "report/watch/watch.h"

/* ---- where things go --------------------------------------------------------------------------------------------- */

/* The head leaves the list a third of the screen. The foot is shown only if the list keeps eight lines. */
struct watch_layout watch_lay_out(size_t rows, size_t head, size_t list, size_t foot, size_t scroll)
{
    enum { LIST_LEAST = 8 };
    struct watch_layout layout = {0};
    size_t left = rows > 1 ? rows - 1 : 0;
    layout.head = bytes_min(head, left - left / 3);
    left -= layout.head;
    size_t kept = bytes_min(list, LIST_LEAST);
    layout.foot = left >= kept + foot ? foot : 0;
    layout.list = bytes_min(list, left - layout.foot);
    layout.first = bytes_min(scroll, list - layout.list);
    return layout;
}

/* ---- text as lines ----------------------------------------------------------------------------------------------- */

struct lines {
    char *text;
    char **line;
    size_t count;
    size_t bytes;
};

static FILE *begin_lines(struct lines *lines)
{
    *lines = (struct lines){0};
    FILE *stream = open_memstream(&lines->text, &lines->bytes);
    if (stream == NULL)
        tool_allocate(SIZE_MAX, 1); /* prints a message and exits */
    return stream;
}

static void end_lines(struct lines *lines, FILE *stream)
{
    fclose(stream);
    tool_adopt(lines->text);
    size_t capacity = 1;
    for (const char *at = lines->text; *at != '\0'; at++)
        capacity += *at == '\n';
    lines->line = tool_allocate(capacity, sizeof *lines->line);
    for (char *rest = lines->text, *line; rest != NULL && *rest != '\0';) {
        line = strsep(&rest, "\n");
        lines->line[lines->count++] = line;
    }
}

/* Prints as much of a line as fits the screen; escape sequences for colours have no width. The chosen line is in
 * reverse video from end to end, and without colour it has a mark in its first column. */
static void put_cut(const char *line, bool is_chosen, const struct style *style)
{
    size_t column = 0, left = strlen(line);
    bool has_mark = is_chosen && !style->has_colour && line[0] == ' ';
    fputs("\033[2K", style->stream); /* clears first: after a full row it would clear the last character */
    if (is_chosen && style->has_colour)
        fputs("\033[7m", style->stream);
    if (has_mark) {
        fputc('>', style->stream);
        line++, left--, column++;
    }
    while (left > 0) {
        uint32_t code;
        size_t length = text_utf8_next(line, left, &code);
        if (code == '\033') {
            length = strcspn(line, "m");
            length += length < left;
            if (is_chosen) { /* its own colours would end the reverse video */
                line += length;
                left -= length;
                continue;
            }
        } else if (column++ >= style->columns) {
            break;
        }
        fwrite(line, 1, length, style->stream);
        line += length;
        left -= length;
    }
    if (is_chosen && style->has_colour)
        fprintf(style->stream, "%*s", (int)bytes_less(style->columns, column), "");
    fprintf(style->stream, "%s\r\n", style->has_colour ? "\033[0m" : "");
}

static void put_time_until(const struct watch *watch, const struct style *style, size_t *column, const char *word,
                           uint64_t left_bytes)
{
    uint64_t usable_bytes = watch->model->machine.usable_bytes;
    int64_t wall_ns = watch_machine_wall_ns(watch, left_bytes);
    bool is_behind = usable_bytes <= left_bytes;
    if (!is_behind && wall_ns == WATCH_NEVER)
        return;
    bool is_near = is_behind || (wall_ns >= 0 && wall_ns < INT64_C(60000000000));
    char *piece = is_behind ? text_format("%s reached", word) : text_format("to %s %s", word, watch_wall_text(wall_ns));
    style_flow(style, column, ", ", is_near ? STYLE_RED : STYLE_PLAIN, piece);
}

/* Prints the rate of usable memory, and the time until it falls to the reserve, the floor and zero. */
static void put_pace(const struct watch *watch, const struct style *style)
{
    const struct model_machine *machine = &watch->model->machine;
    size_t column = 0;
    if (machine->usable_bytes == SG_UNKNOWN || machine->reserve_bytes == SG_UNKNOWN)
        return;
    char *piece = text_format("usable %s", watch_rate_text(watch_trend_rate(&watch->usable)));
    style_flow(style, &column, "", STYLE_BOLD, piece);
    put_time_until(watch, style, &column, "reserve", machine->reserve_bytes);
    put_time_until(watch, style, &column, "floor", machine->floor_bytes);
    if (machine->usable_bytes <= machine->reserve_bytes)
        put_time_until(watch, style, &column, "zero", 0);
    fputc('\n', style->stream);
}

static void put_last_refusal(const struct watch *watch, const struct style *style)
{
    const struct model_job *job;
    const struct model_process *process, *refused = NULL;
    const struct model_refusal *last = NULL;
    DL_FOREACH (watch->model->jobs, job)
        DL_FOREACH (job->processes, process)
            if (process->refusal_count > 0 && watch_is_shown(watch, job, process) &&
                (last == NULL || process->refusals[process->refusal_count - 1].time_ns > last->time_ns)) {
                last = &process->refusals[process->refusal_count - 1];
                refused = process;
            }
    if (last == NULL)
        return;
    char *call = text_printable(last->call, style->is_utf8);
    int64_t age_ns = tool_now_ns() - last->time_ns;
    char *what = text_format("%srefused %s ago: %s of %s in %" PRIu32, refused->is_observing ? "would have been " : "",
                             watch_wall_text(age_ns > 0 ? age_ns : 0), call, text_size(last->size_bytes),
                             model_process_number(refused));
    char *why = text_format(", %s %s (%s)", text_size(last->usable_bytes), model_headroom_word(last->reason),
                            model_reason_name[last->reason]);
    bool fits = strlen(what) + strlen(why) <= style->columns; /* half a reason says nothing */
    fprintf(style->stream, "%s%s%s%s\n", style_colour_on(style, STYLE_YELLOW), what, fits ? why : "",
            style_colour_off(style, STYLE_YELLOW));
}

static void put_complaints(const struct model *model, const struct style *style)
{
    if (model->complaint_count == 0)
        return;
    char *first = text_printable(model->complaints[0], style->is_utf8);
    fprintf(style->stream, "%snot trusted, %zu in all: %s%s\n", style_colour_on(style, STYLE_YELLOW),
            model->complaint_count, first, style_colour_off(style, STYLE_YELLOW));
}

/* Prints the list; an empty table has no heading. */
static void put_list(struct watch *watch, const struct style *style)
{
    watch_put_table(watch, style);
    if (watch->rows.count > 0)
        return;
    if (watch->filter[0] == '\0') {
        fputs(watch->is_in_depth ? "this job does not run any more; Esc goes back\n"
                                 : "nothing guarded runs now; try: sparkguard python3 train.py\n",
              style->stream);
        return;
    }
    char *filter = text_printable(watch->filter, style->is_utf8);
    fprintf(style->stream, "nothing that runs has \"%s\" in its name or command; Esc shows all\n", filter);
}

/* Prints what the list shows in addition to the page: the bar, the rate, and the time to the wall. */
static void put_held(const struct watch *watch, const struct model_job *job, const struct model_process *process,
                     const struct style *style)
{
    uint64_t total_bytes = bytes_min(watch->model->machine.total_bytes, job->limit_bytes);
    int64_t rate = watch_process_rate(watch, process), wall_ns = watch_wall_ns(watch, job, rate);
    if (process->state != SG_STATE_RUNNING)
        return;
    char *bar = watch_bar(style->columns / 3, process->live_bytes, process->peak_bytes, total_bytes, style->is_utf8);
    fprintf(style->stream, "held [%s%s%s] of %s, %s%s%s\n", style_colour_on(style, STYLE_GREEN), bar,
            style_colour_off(style, STYLE_GREEN), text_size(total_bytes), watch_rate_text(rate),
            wall_ns == WATCH_NEVER ? "" : ", wall in ", wall_ns == WATCH_NEVER ? "" : watch_wall_text(wall_ns));
}

static void put_screen_head(const struct watch *watch, const struct style *style)
{
    const struct model_job *job;
    const struct model_process *process;
    report_render_machine(watch->model, style);
    put_pace(watch, style);
    put_last_refusal(watch, style);
    put_complaints(watch->model, style);
    DL_FOREACH (watch->model->jobs, job) {
        struct watch_key key = watch_key_of_job(job);
        if (watch->is_in_depth && watch_keys_are_equal(&key, &watch->depth))
            watch_put_chart(watch, job, style);
        DL_FOREACH (job->processes, process)
            if (watch_is_in_depth(watch, process))
                put_held(watch, job, process, style);
    }
    if (!watch_has_no_list(watch))
        fputc('\n', style->stream);
}

/* Prints the processes in depth, without a list. */
static void put_processes_in_depth(const struct watch *watch, const struct style *style)
{
    const struct model_job *job;
    const struct model_process *process;
    bool has_any = false;
    DL_FOREACH (watch->model->jobs, job)
        DL_FOREACH (job->processes, process)
            if (watch_is_in_depth(watch, process)) {
                fputc('\n', style->stream);
                report_render_process(job, process, style);
                has_any = true;
            }
    if (!has_any)
        fputs("\nthis process is not on record any more; Esc goes back\n", style->stream);
}

/* What the screen shows, from top to bottom. */
struct parts {
    struct lines head, list, foot, said;
};

/* Prints the parts of the screen. Instead of the list there are the keys, or processes in depth. */
static void put_parts(struct watch *watch, struct style style, struct parts *parts)
{
    watch->rows.count = 0;
    style.stream = begin_lines(&parts->head);
    if (!watch->has_help)
        put_screen_head(watch, &style);
    end_lines(&parts->head, style.stream);
    style.stream = begin_lines(&parts->list);
    if (watch->has_help)
        watch_put_help(&style);
    else if (watch_has_no_list(watch))
        put_processes_in_depth(watch, &style);
    else
        put_list(watch, &style);
    end_lines(&parts->list, style.stream);
    style.stream = begin_lines(&parts->foot);
    if (!watch_has_no_list(watch) && !watch->is_in_depth && !watch->has_help)
        report_render_unguarded(watch->model, &style);
    end_lines(&parts->foot, style.stream);
    style.stream = begin_lines(&parts->said);
    if (watch->change.said[0] != '\0')
        style_words(&style, 0, STYLE_BOLD, watch->change.said);
    end_lines(&parts->said, style.stream);
}

/* ---- the frame --------------------------------------------------------------------------------------------------- */

/* The width from which the last line has space for the keys that sort, and for the time. */
enum { WITH_SORT_KEYS = 92 };

/* Returns what the last line says about the keys. */
static char *keys_text(const struct watch *watch, const struct style *style)
{
    char *filter = text_printable(watch->filter, style->is_utf8), *text;
    if (!terminal_has_keys())
        text = text_format("Ctrl-C ends this");
    else if (watch->change.asks == WATCH_ASKS_TO_END)
        text = text_format("y sends it  any other key does not");
    else if (watch->change.asks == WATCH_ASKS_FOR_LIMIT)
        text = text_format("limit: %s%s  Enter sets it, Esc does not",
                           text_printable(watch->change.typed, style->is_utf8), style->is_utf8 ? "▏" : "_");
    else if (watch->is_typing)
        text = text_format("/%s%s  Enter keeps it, Esc shows all", filter, style->is_utf8 ? "▏" : "_");
    else if (watch->has_help)
        text = text_format("any key closes this");
    else if (watch->is_in_depth)
        text = text_format("q back  ? help  F9 end  L limit");
    else if (watch_has_no_list(watch))
        text = text_format("q quit  ? help  F9 end  L limit");
    else if (watch->filter[0] != '\0')
        text = text_format("q quit  ? help  filter /%s  Esc shows all", filter);
    else
        text = text_format("q quit  ? help  F9 end  L limit  / filter  Enter details  t tree%s",
                           style->columns >= WITH_SORT_KEYS ? "  sort: l p r x n" : "");
    return text;
}

/* Prints the keys, the position in the list if its `list` lines do not fit, and the time at the right end if there is
 * space. */
static void put_help(const struct watch *watch, size_t list, const struct style *style)
{
    char *place = watch->page < list ? text_format("  %s %zu-%zu/%zu", style->is_utf8 ? "↑↓" : "at", watch->scroll + 1,
                                                   watch->scroll + watch->page, list)
                                     : text_copy("", 0);
    char *keys = keys_text(watch, style);
    text_shorten(keys, bytes_less(style->columns, mbstowcs(NULL, place, 0)));
    char *text = text_format("%s%s", keys, place);
    size_t length = mbstowcs(NULL, text, 0);
    fprintf(style->stream, "\033[2K%s%s", style_colour_on(style, STYLE_DIM), text);
    if (length + 10 <= style->columns)
        fprintf(style->stream, "%*s", (int)(style->columns - length), text_clock_local(tool_now_ns()));
    fputs(style_colour_off(style, STYLE_DIM), style->stream);
}

/* Follows the chosen job or process to its new row. `before` is its key on the last screen. */
static void follow(struct watch *watch, const struct watch_key *before)
{
    for (size_t i = 0; watch->has_moved && before != NULL && i < watch->rows.count; i++)
        if (watch_keys_are_equal(&watch->rows.key[i], before)) {
            watch->chosen = i;
            return;
        }
    watch->chosen = bytes_min(watch->chosen, bytes_less(watch->rows.count, 1));
}

/* Prints all but the last line. A question and its answer take their lines from the rest. */
static void put_rows(struct watch *watch, const struct style *style, const struct parts *parts, size_t rows)
{
    size_t heading = watch->rows.count > 0, said = bytes_min(parts->said.count, bytes_less(rows, 1));
    bool has_choice = watch->rows.count > 0 && terminal_has_keys();
    if (has_choice && watch->has_moved)
        watch->scroll = watch->chosen;
    rows -= said;
    struct watch_layout layout =
        watch_lay_out(rows, parts->head.count + heading, parts->list.count - heading, parts->foot.count, watch->scroll);
    watch->scroll = layout.first;
    watch->page = layout.list;
    for (size_t i = 0; i < layout.head; i++)
        put_cut(i < parts->head.count ? parts->head.line[i] : parts->list.line[0], false, style);
    for (size_t i = 0; i < layout.list; i++)
        put_cut(parts->list.line[heading + layout.first + i], has_choice && layout.first + i == watch->chosen, style);
    for (size_t i = layout.head + layout.list + layout.foot; i + 1 < rows; i++)
        put_cut("", false, style);
    for (size_t i = 0; i < layout.foot; i++)
        put_cut(parts->foot.line[i], false, style);
    for (size_t i = 0; i < said; i++)
        put_cut(parts->said.line[i], false, style);
}

static void put_frame(struct watch *watch, const struct style *style, const struct parts *parts)
{
    size_t list = parts->list.count - (watch->rows.count > 0);
    fputs("\033[?2026h\033[H", style->stream);
    put_rows(watch, style, parts, terminal_rows());
    put_help(watch, list, style);
    fputs("\033[?2026l", style->stream);
}

/* Writes a frame in one piece: terminals with mode 2026 show it when it is complete; others at least receive it at
 * once. */
void watch_draw(struct watch *watch)
{
    struct parts parts;
    struct lines frame;
    struct style style = style_of(stdout);
    struct watch_key chosen = {.pid = 0};
    bool has_chosen = watch->chosen < watch->rows.count;
    size_t mark = tool_arena_mark();
    if (has_chosen)
        chosen = watch->rows.key[watch->chosen];
    put_parts(watch, style, &parts);
    follow(watch, has_chosen ? &chosen : NULL);
    style.stream = begin_lines(&frame);
    put_frame(watch, &style, &parts);
    fclose(style.stream);
    tool_adopt(frame.text);
    watch_change_show(watch);
    fwrite(frame.text, 1, frame.bytes, stdout);
    fflush(stdout);
    tool_arena_release(mark);
}
