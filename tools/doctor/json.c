/*
 * json.c - what was found, for programs, in the order of the checks.
 */
#include "doctor/doctor.h"
#include "common/json.h"

static void put_optional(struct report_json *json, const char *key, const char *text)
{
    if (text != NULL)
        report_json_text(json, key, text);
    else
        report_json_null(json, key);
}

void doctor_render_json(const struct doctor *doctor, FILE *stream)
{
    struct report_json json = {.stream = stream};
    report_json_open(&json, NULL, '{');
    report_json_integer(&json, "schema", 1);
    report_json_integer(&json, "exit_status", doctor_exit_status(doctor));
    for (int state = DOCTOR_DANGER; state >= DOCTOR_FINE; state--)
        report_json_integer(&json, doctor_state_name[state], (int64_t)doctor_count(doctor, (enum doctor_state)state));
    report_json_open(&json, "findings", '[');
    for (size_t i = 0; i < doctor->count; i++) {
        const struct doctor_finding *finding = &doctor->finding[i];
        report_json_open(&json, NULL, '{');
        report_json_text(&json, "id", finding->id);
        report_json_text(&json, "state", doctor_state_name[finding->state]);
        report_json_text(&json, "sentence", finding->sentence);
        report_json_text(&json, "why", finding->why);
        put_optional(&json, "mend", finding->mend);
        report_json_open(&json, "figures", '{');
        for (size_t k = 0; k < finding->figure_count; k++)
            if (finding->figure[k].value == INT64_MIN)
                report_json_null(&json, finding->figure[k].key);
            else
                report_json_integer(&json, finding->figure[k].key, finding->figure[k].value);
        report_json_close(&json, '}');
        report_json_close(&json, '}');
    }
    report_json_close(&json, ']');
    report_json_close(&json, '}');
}
