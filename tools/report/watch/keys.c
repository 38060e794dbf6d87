/*
 * keys.c - what the keys of the live screen do.
 */
#include "report/watch/terminal.h"
#include "common/bytes.h"
#include "report/watch/watch.h"

/* ---- the filter -------------------------------------------------------------------------------------------------- */

static void type_filter(struct watch *watch, int key)
{
    bool is_enter = key == '\n' || key == '\r';
    if (is_enter || key == TERMINAL_ESCAPE)
        watch->is_typing = false;
    if (key == TERMINAL_ESCAPE)
        watch->filter[0] = '\0';
    watch_type(watch->filter, sizeof watch->filter, key);
    watch->chosen = watch->scroll = 0;
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

static void choose_row(struct watch *watch, size_t row)
{
    watch->chosen = row < watch->rows.count ? row : bytes_less(watch->rows.count, 1);
    watch->has_moved = true;
}

/* Moves the chosen row; without a list, the text. A row is at the top of the screen as far as the list is long enough,
 * so the list moves with each key. */
static void move(struct watch *watch, int key)
{
    bool is_text = watch_has_no_list(watch) || watch->has_help;
    size_t from = is_text ? watch->scroll : watch->chosen, to, top = watch->scroll;
    if (key == TERMINAL_UP || key == 'k')
        to = bytes_less(from, 1);
    else if (key == TERMINAL_DOWN || key == 'j')
        to = from + 1;
    else if (key == TERMINAL_PAGE_UP)
        to = bytes_less(top, watch->page);
    else if (key == TERMINAL_PAGE_DOWN)
        to = top + watch->page;
    else if (key == TERMINAL_HOME || key == 'g')
        to = 0;
    else if (key == TERMINAL_END || key == 'G')
        to = SIZE_MAX / 2;
    else
        return;
    watch->scroll = to; /* watch_draw() bounds it by the end of the list */
    if (!is_text)
        choose_row(watch, to);
}

/* ---- what is shown ----------------------------------------------------------------------------------------------- */

static void open_chosen(struct watch *watch)
{
    if (watch_has_no_list(watch) || watch->chosen >= watch->rows.count)
        return;
    watch->depth = watch->rows.key[watch->chosen];
    watch->is_in_depth = true;
    watch->chosen = watch->scroll = 0;
}

/* Goes back by one step: from a process or job to all, from a part of the list to all of it. */
static void go_back(struct watch *watch)
{
    if (watch->is_in_depth)
        watch->is_in_depth = false;
    else
        watch->filter[0] = '\0';
    watch->chosen = watch->scroll = 0;
}

static void sort(struct watch *watch, int key)
{
    static const struct {
        int key;
        enum watch_sort sort;
    } sorts[] = {
        {'l', WATCH_BY_LIVE}, {'p', WATCH_BY_PEAK}, {'r', WATCH_BY_RATE}, {'x', WATCH_BY_REFUSED}, {'n', WATCH_BY_PID},
    };
    for (size_t i = 0; i < sizeof sorts / sizeof sorts[0]; i++)
        if (key == sorts[i].key)
            watch->sort = sorts[i].sort;
}

bool watch_act(struct watch *watch, int key)
{
    if (key == TERMINAL_GONE)
        return false;
    if (key == TERMINAL_NOTHING || key == TERMINAL_REDRAW)
        return true;
    if ((key & TERMINAL_PASTED) != 0) { /* text for the filter; no command, and no answer to a question */
        if (watch->is_typing && watch->change.asks == WATCH_ASKS_NOTHING)
            type_filter(watch, key & ~TERMINAL_PASTED);
        return true;
    }
    if (watch->change.asks != WATCH_ASKS_NOTHING) {
        watch_change_answer(watch, key);
        return true;
    }
    if (watch->is_typing) {
        type_filter(watch, key);
        return true;
    }
    if (watch->has_help) { /* any key closes it */
        watch->has_help = false;
        return true;
    }
    if (watch_change_begin(watch, key))
        return true;
    if (key == 'q' && watch->is_in_depth)
        key = TERMINAL_ESCAPE;
    if (key == '?' || key == 'h')
        watch->has_help = true;
    else if (key == '/' && !watch_has_no_list(watch))
        watch->is_typing = true;
    else if (key == '\n' || key == '\r')
        open_chosen(watch);
    else if (key == TERMINAL_ESCAPE || key == TERMINAL_BACKSPACE || key == TERMINAL_DELETE)
        go_back(watch);
    else if (key == 't')
        watch->is_tree = !watch->is_tree;
    sort(watch, key);
    move(watch, key);
    return key != 'q';
}
