/*
 * json.c - prints the findings as JSON, in the order of the checks.
 */
#include "common/json.h"
#include "doctor/doctor.h"

static json_t *figures_of(const struct finding *finding)
{
    json_t *figures = json_object();
    for (size_t i = 0; i < finding->figure_count; i++) {
        int64_t value = finding->figure[i].value;
        json_object_set_new(figures, finding->figure[i].key, value == INT64_MIN ? json_null() : json_integer(value));
    }
    return figures;
}

static json_t *finding_of(const struct finding *finding)
{
    json_t *object = json_object();
    json_object_set_new(object, "id", json_of_text(finding->id));
    json_object_set_new(object, "state", json_of_text(doctor_state_name[finding->state]));
    json_object_set_new(object, "sentence", json_of_text(finding->sentence));
    json_object_set_new(object, "why", json_of_text(finding->why));
    json_object_set_new(object, "applies", json_boolean(finding->absent == NULL));
    json_object_set_new(object, "mend", json_of_text(finding->fix));
    json_object_set_new(object, "figures", figures_of(finding));
    return object;
}

void doctor_render_json(const struct doctor *doctor, FILE *stream)
{
    json_t *root = json_object(), *findings = json_array();
    json_object_set_new(root, "schema", json_integer(1));
    json_object_set_new(root, "exit_status", json_integer(doctor_exit_status(doctor)));
    for (int state = FINDING_DANGER; state >= FINDING_FINE; state--)
        json_object_set_new(root, doctor_state_name[state],
                            json_of_number(finding_count(&doctor->findings, (enum finding_state)state)));
    json_object_set_new(root, "findings", findings);
    for (size_t i = 0; i < doctor->findings.count; i++)
        json_array_append_new(findings, finding_of(&doctor->findings.at[i]));
    json_print(root, stream);
}
