/*
 * sparkguard-doctor - checks whether this machine can survive a job that asks for too much memory. Reads files, changes
 * nothing. Exit status: 0 all is fine, 1 there are warnings or unknowns, 4 there are dangers, 2 usage, 3 the output
 * cannot be written. With --setup it prints the script that guards the whole machine (setup/setup.h).
 */
#include <argp.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "doctor/doctor.h"
#include "doctor/setup/setup.h"
#include "launch/check/check.h"
#include "model/defaults.h"
#include "common/option.h"
#include "common/style.h"
#include "common/suggest.h"
#include "common/text.h"
#include "common/tool.h"

const char *argp_program_version = "sparkguard-doctor " SG_VERSION_TEXT;

struct request {
    bool is_json, is_script;
    bool has_setup, has_undo, has_cdi;
    const char *daemon_json; /* for the script of the set-up */
};

enum { KEY_SETUP = 256 };

#define SET_FLAG(member) OPTION_FLAG(struct request, member)

static const struct argp_option options[] = {
    {"json", SET_FLAG(is_json), NULL, 0, "print JSON, for programs", 0},
    {"fix-script", SET_FLAG(is_script), NULL, 0, "print a shell script of the fixes, to read and run", 0},
    {"setup", KEY_SETUP, "undo", OPTION_ARG_OPTIONAL,
     "print a root script that guards all logins, services and containers of this machine; undo: one that takes it "
     "back",
     0},
    {"daemon-json", OPTION_TEXT(struct request, daemon_json), "WHAT", OPTION_HIDDEN, NULL, 0},
    {"print-cdi", SET_FLAG(has_cdi), NULL, 0, "print a CDI file, by which single containers ask for the guard", 0},
    {0},
};

/* Takes the value of --setup. Returns false after a message on stderr. */
static bool parse_setup(struct request *request, const char *text)
{
    request->has_setup = true;
    request->has_undo = text != NULL;
    if (text == NULL || strcmp(text, "undo") == 0)
        return true;
    fprintf(stderr, "sparkguard-doctor: --setup=%s: --setup alone, or --setup=undo\n", text_printable(text, false));
    return false;
}

/* Returns why the options contradict each other; NULL if they do not. */
static const char *contradiction(const struct request *request)
{
    if (request->is_json && request->is_script)
        return "--json or --fix-script, not both";
    if ((request->has_setup || request->has_cdi) && (request->is_json || request->is_script))
        return "--setup and --print-cdi go with no other option";
    return request->has_setup && request->has_cdi ? "--setup or --print-cdi, not both" : NULL;
}

/* Returns the option that a word without dashes nearly is, NULL if there is none. */
static const char *nearest_option(const char *word)
{
    enum { OPTION_COUNT = sizeof options / sizeof *options - 1 };
    const char *names[OPTION_COUNT];
    for (int i = 0; i < OPTION_COUNT; i++)
        names[i] = options[i].name;
    return suggest_word(word, names, OPTION_COUNT);
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct request *request = state->input;
    const char *fault, *near;
    char *printable;
    switch (key) {
    case KEY_SETUP:
        return parse_setup(request, argument) ? 0 : EINVAL;
    case ARGP_KEY_INIT:
        state->err_stream = NULL; /* print getopt's message only, without argp's two lines about --help */
        return 0;
    case ARGP_KEY_ARG:
        printable = text_printable(argument, false);
        near = nearest_option(argument);
        if (near != NULL)
            fprintf(stderr, "sparkguard-doctor: nothing to do with %s; did you mean --%s?\n", printable, near);
        else
            fprintf(stderr, "sparkguard-doctor: nothing to do with %s; see --help\n", printable);
        return EINVAL;
    case ARGP_KEY_END:
        fault = contradiction(request);
        if (fault != NULL)
            fprintf(stderr, "sparkguard-doctor: %s\n", fault);
        return fault != NULL ? EINVAL : 0;
    default:
        return option_set(request, key, argument);
    }
}

static const struct argp parser = {
    .options = options,
    .parser = parse_option,
    .doc = "Checks whether this machine can survive a job that asks for too much memory: what is fine, what is "
           "not, why it matters, and the command that fixes it. Changes nothing.\v"
           "Exit status: 0 all is fine, 1 warnings or unknowns, 4 dangers, 2 usage, 3 the output cannot be written.\n"
           "With --setup: 0 there is a script, 3 there is none.",
};

/* Returns the exit status. */
static int close_output(int status)
{
    return tool_close_output("sparkguard-doctor", "", status);
}

int main(int argc, char **argv)
{
    struct request request = {0};
    check_answer_inside(argv);
    tool_begin(argv, DOCTOR_EXIT_USAGE);
    style_wrap_messages();
    tool_memory_status = TOOL_UNWRITTEN;
    if (tool_parse(&parser, argc, argv, 0, &request) != 0) {
        suggest_option("sparkguard-doctor", &parser, 0, argv);
        return DOCTOR_EXIT_USAGE;
    }
    if (request.daemon_json != NULL)
        return close_output(setup_daemon_json(request.daemon_json, STDIN_FILENO, SETUP_EARLIER_FD, stdout));
    if (request.has_setup || request.has_cdi) {
        struct doctor *learned = doctor_learn();
        int printed =
            request.has_cdi ? setup_print_cdi(learned, stdout) : setup_print(learned, request.has_undo, stdout);
        return close_output(printed);
    }
    defaults_take("sparkguard-doctor");
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
    return close_output(status);
}
