/*
 * json.c - prints the findings as JSON, in the order of the checks.
 */
#include "doctor/doctor.h"
#include "common/json.h"

static void put_optional(struct json *json, const char *key, const char *text)
{
    if (text != NULL)
        json_text(json, key, text);
    else
        json_null(json, key);
}

void doctor_render_json(const struct doctor *doctor, FILE *stream)
{
    struct json json = {.stream = stream};
    json_open(&json, NULL, '{');
    json_integer(&json, "schema", 1);
    json_integer(&json, "exit_status", doctor_exit_status(doctor));
    for (int state = DOCTOR_DANGER; state >= DOCTOR_FINE; state--)
        json_integer(&json, doctor_state_name[state], (int64_t)doctor_count(doctor, (enum doctor_state)state));
    json_open(&json, "findings", '[');
    for (size_t i = 0; i < doctor->count; i++) {
        const struct doctor_finding *finding = &doctor->finding[i];
        json_open(&json, NULL, '{');
        json_text(&json, "id", finding->id);
        json_text(&json, "state", doctor_state_name[finding->state]);
        json_text(&json, "sentence", finding->sentence);
        json_text(&json, "why", finding->why);
        put_optional(&json, "mend", finding->fix);
        json_open(&json, "figures", '{');
        for (size_t k = 0; k < finding->figure_count; k++)
            if (finding->figure[k].value == INT64_MIN)
                json_null(&json, finding->figure[k].key);
            else
                json_integer(&json, finding->figure[k].key, finding->figure[k].value);
        json_close(&json, '}');
        json_close(&json, '}');
    }
    json_close(&json, ']');
    json_close(&json, '}');
}
