/*
 * sparkguard-sweep - finds the largest configuration of a program that is safe. Runs the program under the guard with
 * growing values, starts no configuration that would not fit, records each result, and continues an interrupted sweep.
 * The table goes to stdout, messages to stderr.
 */
#include <argp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "sweep/sweep.h"
#include "common/env_check.h"
#include "common/text.h"
#include "common/tool.h"

const char *argp_program_version = "sparkguard-sweep " SG_VERSION_TEXT;

static bool is_on(enum sg_option option, const char *word)
{
    const char *value = getenv(sg_option_table[option].variable);
    return value != NULL && strcmp(value, word) == 0;
}

/* A sweep runs programs out of memory on purpose, so it never runs without the guard. */
static int prepare_guard(struct sweep *sweep)
{
    struct launch launch = {.library = sweep->library, .program = sweep->command};
    launch_check_environment(&launch);
    if (launch.complaints > 0)
        return SWEEP_USAGE;
    if (is_on(SG_OPTION_DISABLE, "1") || is_on(SG_OPTION_MODE, "observe")) {
        fputs(
            "sparkguard-sweep: SPARKGUARD_DISABLE and SPARKGUARD_MODE=observe would let a sweep take the machine down; "
            "unset them\n",
            stderr);
        return SWEEP_USAGE;
    }
    /* The program's name may be a parameter too, so check the first configuration. */
    char **words = sweep_command_of(sweep, &sweep->run[0]);
    enum sweep_container container = sweep_container_judge(words, &sweep->client);
    setenv(sg_option_table[SG_OPTION_REPORT].variable, "off", 1);
    if (container != SWEEP_NO_CONTAINER)
        return container == SWEEP_CONTAINER ? 0 : LAUNCH_FAILED;
    char *why, *library = launch_find_library(&launch, &why);
    if (library == NULL) {
        fprintf(stderr, "sparkguard: %s\n", why);
        return LAUNCH_FAILED;
    }
    bool is_guarded = launch_program_warn(words[0], library) == LAUNCH_NO_OBSTACLE;
    if (is_guarded) {
        launch_preload(library);
        sweep->library_name = text_copy(strrchr(library, '/') + 1, SIZE_MAX);
    }
    if (!is_guarded)
        fputs("sparkguard-sweep: nothing was started: a sweep without the guard would take the machine down\n", stderr);
    return is_guarded ? 0 : LAUNCH_FAILED;
}

static int show(const struct sweep *sweep)
{
    struct style style = style_of(stdout);
    int status = 0;
    if (sweep->is_json)
        sweep_render_json(sweep, stdout);
    else if (sweep->command[0] != NULL)
        sweep_render_text(sweep, &style);
    for (size_t i = 0; i < sweep->export_count; i++)
        if (!sweep_export(sweep, sweep->export_file[i]))
            status = SWEEP_UNTRUSTED;
    return status;
}

static int run_sweep(struct sweep *sweep, int *ended_by)
{
    struct sweep_progress progress;
    int status = 0;
    struct sweep_gap gap;
    bool is_to_refine = sweep->wants_refinement && sweep_find_gap(sweep, &gap);
    if (!sweep->is_complete || is_to_refine) {
        status = prepare_guard(sweep);
        if (status != 0)
            return status;
        sweep_signals_begin();
        sweep_progress_begin(&progress);
        status = sweep_all(sweep, &progress, ended_by);
        sweep_progress_end(&progress);
        if (*ended_by != 0 && sweep->state != NULL)
            fprintf(stderr, "sparkguard-sweep: ended by %s; the same command continues the sweep\n",
                    *ended_by == SIGINT ? "^C" : "a signal");
    }
    if (status >= LAUNCH_FAILED)
        return status;
    int shown = show(sweep);
    if (status == 0)
        status = shown;
    return status == 0 && sweep_recommend(sweep) == NULL ? SWEEP_NOTHING_FITS : status;
}

int main(int argc, char **argv)
{
    struct sweep sweep;
    struct style style;
    int ended_by = 0, status;
    tool_begin(argv, SWEEP_USAGE);
    style_wrap_messages();
    sweep_parse(&sweep, argc, argv);
    bool has_program = sweep.command[0] != NULL;
    if (!has_program) /* with a program, launch_check_environment refuses */
        env_check_warn_of_sizes("sparkguard-sweep");
    if (sweep.fits.path != NULL) {
        status = fits_run(&sweep.fits, sweep.is_json);
    } else {
        status = sweep_state_open(&sweep);
        if (status == 0 && sweep.is_dry) {
            style = style_of(stdout);
            sweep_render_plan(&sweep, &style);
        } else if (status == 0) {
            status = run_sweep(&sweep, &ended_by);
        }
    }
    sweep_state_close(&sweep);
    status = tool_close_output("sparkguard-sweep", " the table", status);
    if (ended_by != 0)
        launch_end_like(W_EXITCODE(0, ended_by));
    return status;
}
