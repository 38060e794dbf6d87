/*
 * main.c - sparkguard(1) runs a program under the guard. The launcher puts the options into the program's environment
 * and libsparkguard.so into LD_PRELOAD, forwards signals, prints a summary and ends with the program's exit status.
 */
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/check/check.h"
#include "launch/launch.h"
#include "sparkguard_abi.h"
#include "sparkguard_options.h"
#include "common/style.h"
#include "common/tool.h"

const char *argp_program_version = "sparkguard " SG_VERSION_TEXT;

/* Records the end and prints the summary in a child process. The launcher may itself be guarded and run out of memory
 * there; it must still end with the program's exit status. */
static void finish(const struct launch *launch)
{
    pid_t child = fork();
    if (child < 0)
        fprintf(stderr, "sparkguard: cannot start a process for the summary: %s\n", strerror(errno));
    if (child == 0) {
        launch_record(launch);
        if (launch->has_no_claim)
            launch_claim_say_ended(launch);
        else if (!launch->is_quiet)
            launch_summarize(launch);
        exit(0);
    }
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        continue;
}

int main(int argc, char **argv)
{
    struct launch launch = {0};
    tool_set_name(argv);
    argp_err_exit_status = LAUNCH_USAGE;
    setlocale(LC_CTYPE, "");
    launch_jail_inside(argv);
    launch_claim_inside(argv);
    launch_pressure_inside(argv);
    launch_raise_inside(argv);
    check_answer_inside(argv);
    style_wrap_messages();
    argc = launch_subcommand(&launch, argc, argv);
    launch_parse(&launch, argc, argv);
    if (launch.is_check && launch.complaints == 0)
        return check_run(&launch);
    if (launch.set_job != NULL && launch.complaints == 0) {
        launch_export(&launch);
        return launch_set(&launch);
    }
    launch_check_environment(&launch);
    if (launch.complaints > 0)
        return LAUNCH_USAGE;
    char *why, *library = launch_find_library(&launch, &why);
    if (library == NULL) {
        fprintf(stderr, "sparkguard: %s\n", why);
        return LAUNCH_FAILED;
    }
    launch.library_name = strrchr(library, '/') + 1;
    launch_export(&launch);
    const char *disabled = getenv(sg_option_table[SG_OPTION_DISABLE].variable);
    bool is_disabled = disabled != NULL && strcmp(disabled, "1") == 0;
    enum launch_obstacle obstacle = launch_program_warn(launch.program[0], library);
    const char *mode = getenv(sg_option_table[SG_OPTION_MODE].variable);
    bool is_observing = mode != NULL && strcmp(mode, "observe") == 0;
    launch.is_guarded = obstacle == LAUNCH_NO_OBSTACLE && !is_disabled;
    /* A program without a dynamic linker of glibc may start others that are guarded. */
    launch.may_guard = launch.is_guarded || (!is_disabled && (obstacle == LAUNCH_STATIC || obstacle == LAUNCH_MUSL));
    if (launch.may_guard && !launch.is_guarded && launch.claim.is_wanted)
        fputs("sparkguard: --claim: only guarded programs that it starts will draw on the claim\n", stderr);
    if ((!launch.may_guard || is_observing) && launch.claim.is_wanted) {
        fprintf(stderr, "sparkguard: --claim has no effect: %s\n",
                is_disabled        ? "the guard is disabled"
                : launch.may_guard ? "observe mode refuses nothing"
                                   : "the program is not guarded");
        launch.claim.is_wanted = false;
    }
    launch_preload(library); /* also beside musl: programs of glibc that it starts are guarded */
    int failure = launch_run(&launch);
    launch_pressure_end(&launch); /* also of a program that could not be started */
    if (failure == 0)
        finish(&launch);
    if (failure != 0)
        return failure;
    launch_end_like(launch.wait_status);
}
