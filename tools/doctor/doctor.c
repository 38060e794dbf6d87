/*
 * doctor.c - see doctor.h: keeps the findings, and computes the exit status.
 */
#include "doctor/doctor.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "common/bytes.h"
#include "common/text.h"

const char *const doctor_state_name[DOCTOR_STATE_COUNT] = {
    [DOCTOR_FINE] = "fine",
    [DOCTOR_UNKNOWN] = "unknown",
    [DOCTOR_WARNING] = "warning",
    [DOCTOR_DANGER] = "danger",
};

struct doctor_finding *doctor_add(struct doctor *doctor, const char *id, enum doctor_state state, const char *format,
                                  ...)
{
    struct doctor_finding *finding = &doctor->finding[doctor->count++];
    va_list arguments;
    va_start(arguments, format);
    finding->sentence = text_formatv(format, arguments);
    va_end(arguments);
    finding->id = id;
    finding->state = state;
    return finding;
}

struct doctor_finding *doctor_add_absent(struct doctor *doctor, const char *id, const char *absent)
{
    struct doctor_finding *finding = doctor_add(doctor, id, DOCTOR_FINE, "It does not apply here: %s.", absent);
    finding->absent = absent;
    return finding;
}

void doctor_figure_signed(struct doctor_finding *finding, const char *key, int64_t value)
{
    if (finding->figure_count < DOCTOR_FIGURE_CAPACITY)
        finding->figure[finding->figure_count++] = (struct doctor_figure){key, value};
}

void doctor_figure(struct doctor_finding *finding, const char *key, uint64_t value)
{
    doctor_figure_signed(finding, key, value == SG_UNKNOWN ? INT64_MIN : (int64_t)bytes_min(value, INT64_MAX));
}

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
    char text[4096], path[64], place[96];
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/cgroup", process->pid);
    snprintf(place, sizeof place, ":/system.slice/%s.service\n", process->name);
    return doctor_read(doctor, path, text, sizeof text) > 0 && strstr(text, place) != NULL;
}

const struct doctor_process *doctor_daemon_named(const struct doctor *doctor, const char *name)
{
    for (size_t i = 0; i < doctor->process_count; i++)
        if (strcmp(doctor->processes[i].name, name) == 0 &&
            (doctor->processes[i].is_roots || is_in_unit(doctor, &doctor->processes[i])))
            return &doctor->processes[i];
    return NULL;
}

size_t doctor_count(const struct doctor *doctor, enum doctor_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < doctor->count; i++)
        count += doctor->finding[i].state == state;
    return count;
}

int doctor_exit_status(const struct doctor *doctor)
{
    if (doctor_count(doctor, DOCTOR_DANGER) > 0)
        return DOCTOR_EXIT_DANGERS;
    return doctor_count(doctor, DOCTOR_FINE) < doctor->count ? DOCTOR_EXIT_WARNINGS : DOCTOR_EXIT_FINE;
}
