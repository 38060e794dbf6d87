/*
 * lines.c - prints the lines of --check for people and as JSON.
 */
#include <stdlib.h>

#include "launch/check/check.h"
#include "common/json.h"
#include "common/text.h"

enum { ID_COLUMN = 9, INDENT = 21 }; /* columns before a line's subject, and before its sentence */

static const struct state {
    const char *mark, *name; /* for people, for JSON */
    enum style_colour colour;
} states[] = {
    [FINDING_FINE] = {"ok", "ok", STYLE_GREEN},
    [FINDING_NONE] = {"-", "inapplicable", STYLE_DIM},
    [FINDING_WARNING] = {"warning", "warning", STYLE_YELLOW},
    [FINDING_DANGER] = {"failure", "failure", STYLE_RED},
};

bool check_is_guarded(const struct check *check)
{
    return finding_count(&check->findings, FINDING_DANGER) == 0;
}

static void put_finding(const struct finding *line, const struct style *style)
{
    const struct state *state = &states[line->state];
    char *sentence = text_printable(line->sentence, style->is_utf8);
    char *advice = line->fix != NULL ? text_printable(line->fix, style->is_utf8) : NULL;
    fprintf(style->stream, "%s%-*s%s%-*s", style_colour_on(style, state->colour), ID_COLUMN, state->mark,
            style_colour_off(style, state->colour), INDENT - ID_COLUMN, line->id);
    style_words(style, INDENT, line->state == FINDING_NONE ? STYLE_DIM : STYLE_PLAIN, sentence);
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
    size_t failures = finding_count(&check->findings, FINDING_DANGER),
           warnings = finding_count(&check->findings, FINDING_WARNING);
    char *name = text_printable(subject(check), style->is_utf8), *verdict;
    enum style_colour colour = failures > 0 ? STYLE_RED : warnings > 0 ? STYLE_YELLOW : STYLE_GREEN;
    for (size_t i = 0; i < check->findings.count; i++)
        put_finding(&check->findings.at[i], style);
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
    for (size_t i = 0; i < check->findings.count; i++) {
        const struct finding *line = &check->findings.at[i];
        json_t *object = json_object();
        json_object_set_new(object, "id", json_of_text(line->id));
        json_object_set_new(object, "state", json_of_text(states[line->state].name));
        json_object_set_new(object, "sentence", json_of_text(line->sentence));
        json_object_set_new(object, "advice", json_of_text(line->fix));
        json_array_append_new(lines, object);
    }
    json_print(root, stream);
}
