/*
 * sparkguard-doctor - checks whether this machine can survive a job that asks for too much memory. Reads files, changes
 * nothing. Exit status: 0 all is fine, 1 there are warnings or unknowns, 4 there are dangers, 2 usage, 3 the output
 * cannot be written.
 */
#define _GNU_SOURCE
#include <argp.h>
#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/doctor.h"
#include "common/text.h"
#include "common/tool.h"

const char *argp_program_version = "sparkguard-doctor " SG_VERSION_TEXT;

struct request {
    bool is_json, is_script;
};

enum { KEY_JSON = 256, KEY_SCRIPT };

static const struct argp_option options[] = {
    {"json", KEY_JSON, NULL, 0, "print JSON, for programs", 0},
    {"fix-script", KEY_SCRIPT, NULL, 0, "print a shell script of the fixes, to read and run", 0},
    {0},
};

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct request *request = state->input;
    char *printable;
    switch (key) {
    case KEY_JSON:
        request->is_json = true;
        return 0;
    case KEY_SCRIPT:
        request->is_script = true;
        return 0;
    case ARGP_KEY_INIT:
        state->err_stream = NULL; /* print getopt's message only, without argp's two lines about --help */
        return 0;
    case ARGP_KEY_ARG:
        printable = text_printable(argument, false);
        fprintf(stderr, "sparkguard-doctor: nothing to do with %s; see --help\n", printable);
        free(printable);
        return EINVAL;
    case ARGP_KEY_END:
        if (request->is_json && request->is_script)
            fputs("sparkguard-doctor: --json or --fix-script, not both\n", stderr);
        return request->is_json && request->is_script ? EINVAL : 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    .options = options,
    .parser = parse_option,
    .doc = "Checks whether this machine can survive a job that asks for too much memory: what is fine, what is "
           "not, why it matters, and the command that fixes it. Changes nothing.\v"
           "Exit status: 0 all is fine, 1 warnings or unknowns, 4 dangers, 2 usage, 3 the output cannot be written.",
};

int main(int argc, char **argv)
{
    enum { UNWRITTEN = 3 };
    struct request request = {0};
    tool_set_name(argv);
    argp_err_exit_status = DOCTOR_EXIT_USAGE;
    tool_memory_status = UNWRITTEN;
    signal(SIGPIPE, SIG_DFL); /* a closed pipe ends the tool quietly, even if the parent process ignores the signal */
    setlocale(LC_ALL, "");
    setlocale(LC_NUMERIC, "C");
    if (argp_parse(&parser, argc, argv, 0, NULL, &request) != 0)
        return DOCTOR_EXIT_USAGE;
    struct doctor *doctor = doctor_examine();
    int status = doctor_exit_status(doctor);
    if (request.is_script) {
        doctor_render_script(doctor, stdout);
    } else if (request.is_json) {
        doctor_render_json(doctor, stdout);
    } else {
        struct style style = style_of(stdout);
        doctor_render_text(doctor, &style);
    }
    doctor_free(doctor);
    bool has_failed = ferror(stdout) != 0;
    errno = 0;
    if (fclose(stdout) == 0 && !has_failed)
        return status;
    fprintf(stderr, "sparkguard-doctor: cannot write: %s\n", strerror(errno != 0 ? errno : EIO));
    return UNWRITTEN;
}
