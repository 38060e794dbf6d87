/*
 * lines.c - keeps the lines of --check, and prints them for people and as JSON.
 */
#include <stdarg.h>
#include <stdlib.h>

#include "launch/check/check.h"
#include "common/json.h"
#include "common/text.h"

enum { ID_COLUMN = 9, INDENT = 21 }; /* columns before a line's subject, and before its sentence */

static const struct state {
    const char *mark, *name; /* for people, for JSON */
    enum style_colour colour;
} states[CHECK_STATE_COUNT] = {
    [CHECK_OK] = {"ok", "ok", STYLE_GREEN},
    [CHECK_NONE] = {"-", "inapplicable", STYLE_DIM},
    [CHECK_WARNING] = {"warning", "warning", STYLE_YELLOW},
    [CHECK_FAILURE] = {"failure", "failure", STYLE_RED},
};

void check_add(struct check *check, const char *id, enum check_state state, char *advice, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *sentence = text_formatv(format, arguments);
    va_end(arguments);
    if (check->count < CHECK_LINE_CAPACITY)
        check->line[check->count++] = (struct check_line){id, state, sentence, advice};
}

static size_t count_of(const struct check *check, enum check_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < check->count; i++)
        count += check->line[i].state == state;
    return count;
}

bool check_is_guarded(const struct check *check)
{
    return count_of(check, CHECK_FAILURE) == 0;
}

static void put_line(const struct check_line *line, const struct style *style)
{
    const struct state *state = &states[line->state];
    char *sentence = text_printable(line->sentence, style->is_utf8);
    char *advice = line->advice != NULL ? text_printable(line->advice, style->is_utf8) : NULL;
    fprintf(style->stream, "%s%-*s%s%-*s", style_colour_on(style, state->colour), ID_COLUMN, state->mark,
            style_colour_off(style, state->colour), INDENT - ID_COLUMN, line->id);
    style_words(style, INDENT, line->state == CHECK_NONE ? STYLE_DIM : STYLE_PLAIN, sentence);
    if (advice != NULL) {
        fprintf(style->stream, "%*s", INDENT, "");
        style_words(style, INDENT, STYLE_BOLD, advice);
    }
}

static const char *subject(const struct check *check)
{
    return check->has_program ? check->launch->program[0] : "A program";
}

void check_render_text(const struct check *check, const struct style *style)
{
    size_t failures = count_of(check, CHECK_FAILURE), warnings = count_of(check, CHECK_WARNING);
    char *name = text_printable(subject(check), style->is_utf8), *verdict;
    enum style_colour colour = failures > 0 ? STYLE_RED : warnings > 0 ? STYLE_YELLOW : STYLE_GREEN;
    for (size_t i = 0; i < check->count; i++)
        put_line(&check->line[i], style);
    if (check->verdict != NULL)
        verdict = text_copy(check->verdict, SIZE_MAX);
    else if (failures > 0)
        verdict =
            text_format("%s would not be guarded: %zu failure%s above.", name, failures, failures == 1 ? "" : "s");
    else if (warnings > 0)
        verdict =
            text_format("%s would be guarded, with %zu warning%s above.", name, warnings, warnings == 1 ? "" : "s");
    else
        verdict = text_format("%s would be guarded.", name);
    fputc('\n', style->stream);
    style_words(style, 0, colour, verdict);
}

static void put_facts(const struct check *check, json_t *root)
{
    json_t *facts = json_object();
    for (int i = 0; i < SG_DRIVER_FACT_COUNT; i++)
        json_object_set_new(
            facts, model_driver_fact_name[i],
            json_of_text(model_finding_name[sg_driver_finding(check->driver_facts, (enum sg_driver_fact)i)]));
    json_object_set_new(root, "driver_facts", facts);
    json_object_set_new(root, "verdict", json_of_text(check->verdict));
}

void check_render_json(const struct check *check, FILE *stream)
{
    json_t *root = json_object(), *lines = json_array();
    json_object_set_new(root, "schema", json_integer(1));
    if (check->verdict != NULL) {
        put_facts(check, root);
    } else {
        json_object_set_new(root, "guarded", json_boolean(check_is_guarded(check)));
        json_object_set_new(root, "program", json_of_text(check->has_program ? check->program.path : NULL));
    }
    json_object_set_new(root, "library", json_of_text(check->library));
    json_object_set_new(root, "lines", lines);
    for (size_t i = 0; i < check->count; i++) {
        const struct check_line *line = &check->line[i];
        json_t *object = json_object();
        json_object_set_new(object, "id", json_of_text(line->id));
        json_object_set_new(object, "state", json_of_text(states[line->state].name));
        json_object_set_new(object, "sentence", json_of_text(line->sentence));
        json_object_set_new(object, "advice", json_of_text(line->advice));
        json_array_append_new(lines, object);
    }
    json_print(root, stream);
}
