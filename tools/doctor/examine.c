/*
 * examine.c - collects facts, and runs the checks that are registered.
 */
#include <stdlib.h>
#include <string.h>

#include "common/procfs.h"
#include "common/tool.h"
#include "doctor/doctor.h"

/* The section in which DOCTOR_CHECK puts them: the linker names its begin and its end, if there is one. */
extern const struct doctor_check checks_begin[] __asm__("__start_doctor_checks") __attribute__((weak));
extern const struct doctor_check checks_end[] __asm__("__stop_doctor_checks") __attribute__((weak));

static int compare_places(const void *a, const void *b)
{
    const struct doctor_check *first = *(const struct doctor_check *const *)a;
    const struct doctor_check *second = *(const struct doctor_check *const *)b;
    return first->place - second->place;
}

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
    /* cppcheck-suppress comparePointers - the linker sets both, at the ends of one section */
    size_t count = (size_t)(checks_end - checks_begin);
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers */
    const struct doctor_check **checks = tool_allocate(count, sizeof *checks);
    for (size_t i = 0; i < count; i++)
        checks[i] = &checks_begin[i];
    /* NOLINTNEXTLINE(bugprone-sizeof-expression) */
    qsort(checks, count, sizeof *checks, compare_places);
    for (size_t i = 0; i < count; i++) {
        struct finding *finding = finding_add(&doctor->findings, checks[i]->id);
        finding->why = checks[i]->why;
        checks[i]->run(doctor, finding);
        doctor->findings.count -= finding->sentence == NULL;
    }
    return doctor;
}
