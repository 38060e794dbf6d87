/*
 * examine.c - lists the checks in order, and runs them.
 */
#include <stdlib.h>
#include <string.h>

#include "common/procfs.h"
#include "common/text.h"
#include "common/tool.h"
#include "doctor/doctor.h"

static void (*const checks[])(struct doctor *) = {
    doctor_check_library,    doctor_check_settings,     doctor_check_memory,    doctor_check_swap,
    doctor_check_swappiness, doctor_check_swap_at_boot, doctor_check_ssh_oom,   doctor_check_ssh_memory,
    doctor_check_oom_score,  doctor_check_jail,         doctor_check_earlyoom,  doctor_check_oomd,
    doctor_check_page_cache, doctor_check_huge_pages,   doctor_check_handover,  doctor_check_fragmentation,
    doctor_check_unguarded,  doctor_check_zombies,      doctor_check_leftovers, doctor_check_left_processes,
    doctor_check_ledger,     doctor_check_unified,      doctor_check_driver,    doctor_check_driver_pools,
    doctor_check_toolkit,    doctor_check_architecture, doctor_check_history,   doctor_check_ray,
    doctor_check_bounds,     doctor_check_shm,
};
_Static_assert(sizeof checks / sizeof checks[0] <= DOCTOR_FINDING_CAPACITY, "each check adds at most one finding");

struct doctor *doctor_learn(void)
{
    struct doctor *doctor = tool_allocate(1, sizeof *doctor);
    const struct model_scope scope = {.is_all = true, .wants_unguarded = true};
    const char *root = getenv("SPARKGUARD_SYSTEM_ROOT");
    doctor->root = root == NULL || strcmp(root, "/") == 0 ? "" : root;
    procfs_live_root = doctor->root;
    doctor->model = model_build(&scope);
    doctor_learn_machine(doctor);
    doctor_learn_unified(doctor);
    return doctor;
}

struct doctor *doctor_examine(void)
{
    struct doctor *doctor = doctor_learn();
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        checks[i](doctor);
    return doctor;
}
