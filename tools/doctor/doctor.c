/*
 * doctor.c - see doctor.h: finds processes, and computes the exit status.
 */
#include "doctor/doctor.h"
#include "common/text.h"

#include <inttypes.h>
#include <string.h>

const char *const doctor_state_name[FINDING_STATE_COUNT] = {
    [FINDING_FINE] = "fine",
    [FINDING_UNKNOWN] = "unknown",
    [FINDING_WARNING] = "warning",
    [FINDING_DANGER] = "danger",
};

bool doctor_is_at_risk(const struct doctor *doctor)
{
    return doctor->unified == 1 || (doctor->unified < 0 && doctor->has_driver);
}

const struct doctor_process *doctor_process_named(const struct doctor *doctor, const char *name)
{
    for (size_t i = 0; i < doctor->process_count; i++)
        if (strcmp(doctor->processes[i].name, name) == 0)
            return &doctor->processes[i];
    return NULL;
}

/* Returns whether systemd has started the process for a unit of the system, into which no user can move another one. */
static bool is_in_unit(const struct doctor *doctor, const struct doctor_process *process)
{
    char text[4096], place[96];
    snprintf(place, sizeof place, ":/system.slice/%s.service\n", process->name);
    return doctor_read(doctor, text_format("/proc/%" PRIu32 "/cgroup", process->pid), text, sizeof text) > 0 &&
           strstr(text, place) != NULL;
}

const struct doctor_process *doctor_daemon_named(const struct doctor *doctor, const char *name)
{
    for (size_t i = 0; i < doctor->process_count; i++)
        if (strcmp(doctor->processes[i].name, name) == 0 &&
            (doctor->processes[i].is_roots || is_in_unit(doctor, &doctor->processes[i])))
            return &doctor->processes[i];
    return NULL;
}

int doctor_exit_status(const struct doctor *doctor)
{
    if (finding_count(&doctor->findings, FINDING_DANGER) > 0)
        return DOCTOR_EXIT_DANGERS;
    bool is_fine = finding_count(&doctor->findings, FINDING_FINE) == doctor->findings.count;
    return is_fine ? DOCTOR_EXIT_FINE : DOCTOR_EXIT_WARNINGS;
}
