/*
 * check.c - sparkguard --check: runs the checks in the order in which they depend on each other, and prints them.
 */
#include <signal.h>
#include <unistd.h>

#include "common/tool.h"
#include "launch/check/check.h"

/* Without a program this tool stands for it: it is loaded as any program is. */
static void judge_subject(struct check *check)
{
    char self[PATH_MAX] = "";
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        snprintf(self, sizeof self, "/proc/self/exe");
    launch_program_judge(check->has_program ? check->launch->program[0] : self,
                         check->library != NULL ? check->library : self, &check->program);
}

static int put(const struct check *check, int status)
{
    struct style style = style_of(stdout);
    signal(SIGPIPE, SIG_DFL); /* a closed pipe ends the tool quietly */
    if (check->launch->is_json)
        check_render_json(check, stdout);
    else
        check_render_text(check, &style);
    return tool_close_output("sparkguard", "", status);
}

int check_run(struct launch *launch)
{
    struct check check = {.launch = launch, .has_program = launch->program != NULL};
    launch_export(launch);
    if (launch->is_cuda)
        return put(&check, check_facts(&check));
    check_loading_library(&check);
    judge_subject(&check);
    check_loading_program(&check);
    check_loading_linker(&check);
    check_loading_others(&check);
    check_guarding(&check);
    check_surroundings_cgroups(&check);
    check_surroundings_history(&check);
    check_surroundings_defaults(&check);
    check_surroundings_options(&check);
    return put(&check, check_is_guarded(&check) ? CHECK_EXIT_GUARDED : CHECK_EXIT_UNGUARDED);
}
