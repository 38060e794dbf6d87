/*
 * doctor.c - see doctor.h: runs the checks, keeps what they found, and what it comes to.
 */
#define _GNU_SOURCE
#include "doctor/doctor.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/procfs.h"
#include "common/text.h"

const char *const doctor_state_name[DOCTOR_STATE_COUNT] = {
    [DOCTOR_FINE] = "fine",
    [DOCTOR_UNKNOWN] = "unknown",
    [DOCTOR_WARNING] = "warning",
    [DOCTOR_DANGER] = "danger",
};

static void (*const checks[])(struct doctor *) = {
    doctor_check_library,    doctor_check_settings,     doctor_check_memory,        doctor_check_swap,
    doctor_check_swappiness, doctor_check_swap_at_boot, doctor_check_ssh_oom,       doctor_check_ssh_memory,
    doctor_check_oom_score,  doctor_check_jail,         doctor_check_earlyoom,      doctor_check_oomd,
    doctor_check_page_cache, doctor_check_huge_pages,   doctor_check_fragmentation, doctor_check_unguarded,
    doctor_check_zombies,    doctor_check_leftovers,    doctor_check_ledger,        doctor_check_unified,
    doctor_check_driver,     doctor_check_driver_pools, doctor_check_toolkit,       doctor_check_architecture,
    doctor_check_history,
};
_Static_assert(sizeof checks / sizeof checks[0] <= DOCTOR_FINDING_ROOM, "each check adds one finding");

struct doctor_finding *doctor_add(struct doctor *doctor, const char *id, enum doctor_state state, const char *format,
                                  ...)
{
    struct doctor_finding *finding = &doctor->finding[doctor->count++];
    va_list arguments;
    char *sentence;
    va_start(arguments, format);
    int length = vasprintf(&sentence, format, arguments);
    va_end(arguments);
    finding->id = id;
    finding->state = state;
    finding->sentence = length < 0 ? report_text_copy("", 0) : sentence;
    return finding;
}

void doctor_figure_signed(struct doctor_finding *finding, const char *key, int64_t value)
{
    if (finding->figure_count < DOCTOR_FIGURE_ROOM)
        finding->figure[finding->figure_count++] = (struct doctor_figure){key, value};
}

void doctor_figure(struct doctor_finding *finding, const char *key, uint64_t value)
{
    doctor_figure_signed(finding, key, value == SG_UNKNOWN ? INT64_MIN : (int64_t)report_min(value, INT64_MAX));
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

struct doctor *doctor_examine(void)
{
    struct doctor *doctor = report_allocate(1, sizeof *doctor);
    const struct report_scope scope = {.is_all = true, .wants_unguarded = true};
    const char *root = getenv("SPARKGUARD_SYSTEM_ROOT");
    doctor->root = root == NULL || strcmp(root, "/") == 0 ? "" : root;
    report_live_root = doctor->root;
    doctor->report = report_build(&scope);
    doctor_learn_machine(doctor);
    doctor_learn_unified(doctor);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        checks[i](doctor);
    return doctor;
}

void doctor_free(struct doctor *doctor)
{
    for (size_t i = 0; i < doctor->count; i++) {
        free(doctor->finding[i].sentence);
        free(doctor->finding[i].mend);
    }
    report_free(doctor->report);
    free(doctor->processes);
    free(doctor->meminfo);
    free(doctor->how);
    free(doctor);
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
