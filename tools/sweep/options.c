/*
 * options.c - the command line of sparkguard-sweep.
 */
#include <argp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "sweep/sweep.h"
#include "common/bad_value.h"
#include "model/defaults.h"
#include "common/env_check.h"
#include "common/option.h"
#include "common/suggest.h"
#include "common/text.h"
#include "common/tool.h"

enum { KEY_EXPORT = 256, KEY_TIMEOUT, KEY_MARGIN, KEY_CLEAN, KEY_LARGE };

#define SET_FLAG(member) OPTION_FLAG(struct sweep, member)

static const struct argp_option options[] = {
    {"param", 'p', "NAME=A,B,...", 0,
     "values that replace {NAME} in the command; 1..8 are whole numbers, 8..64..8 with a step; numbers are tried in "
     "ascending order",
     1},
    {"refine", SET_FLAG(wants_refinement), NULL, 0,
     "go on between the last value that fitted and the first that did not, in at most 20 runs", 1},
    {"timeout", KEY_TIMEOUT, "TIME", 0, "end a run after 90s, 15m, 2h", 1},
    {"margin", KEY_MARGIN, "SIZE", 0, "leave this above the reserve (0)", 1},
    {"dry-run", SET_FLAG(is_dry), NULL, 0, "say what would be run, and run nothing", 1},
    {"export", KEY_EXPORT, "FILE", 0, "write the table; .md, .csv or .json say how", 2},
    {"json", SET_FLAG(is_json), NULL, 0, "print JSON, for programs", 2},
    {"show-output", SET_FLAG(is_showing_output), NULL, 0, "let the program write to the terminal, not to STATE.log", 2},
    {"resume", SET_FLAG(wants_resume), NULL, 0, "go on, or show what was measured; nothing is begun anew", 3},
    {"fresh", SET_FLAG(is_fresh), NULL, 0, "forget what was measured and begin anew", 3},
    {"retry", SET_FLAG(wants_retry), NULL, 0, "run again what did not end well or was not started", 3},
    {"state", OPTION_TEXT(struct sweep, state_file), "FILE", 0, "keep the record in FILE", 3},
    {"clean-wait", KEY_CLEAN, "TIME", 0, "wait so long for a clean machine (60s)", 4},
    {"unclean", SET_FLAG(is_unclean_welcome), NULL, 0, "do not wait for a clean machine", 4},
    {"large", KEY_LARGE, "SIZE", 0, "what an unguarded process may hold on a clean machine (5%)", 4},
    {"library", OPTION_TEXT(struct sweep, library), "FILE", 0,
     "preload FILE instead of the libsparkguard.so that belongs to this tool", 4},
    {0},
};

/* Prints one line, where argp would print three. */
__attribute__((noreturn, format(printf, 1, 2))) static void refuse(const char *format, ...)
{
    va_list arguments;
    fputs("sparkguard-sweep: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(SWEEP_USAGE);
}

__attribute__((noreturn)) static void refuse_value(const char *name, const char *value, const char *fault,
                                                   const char *example)
{
    bad_value_say("sparkguard-sweep", name, value, fault, example, "nothing is run");
    exit(SWEEP_USAGE);
}

static void parse_size_option(const char *name, const char *text, struct sg_size *size)
{
    if (sg_parse_size(text, size) != 0)
        refuse_value(name, text, env_check_fault(SG_OPTION_LIMIT, text), "4G");
    bad_value_warn_of_unit("sparkguard-sweep", name, text, "4G");
}

static void parse_duration_option(const char *name, const char *text, int64_t *duration_ns)
{
    if (!sweep_take_duration(text, duration_ns))
        refuse_value(name, text, "not a time", "15m");
}

static void parse_export(struct sweep *sweep, const char *path)
{
    if (!sweep_export_is_known(path))
        refuse_value("--export", path, "the name must end in .md, .csv or .json", "sweep.md");
    if (sweep->export_count == SWEEP_EXPORTS)
        refuse("--export can be given 8 times");
    sweep->export_file[sweep->export_count++] = path;
}

/* Parses a text that is cut to pieces; a message shows the whole text. */
static void parse_parameter(struct sweep *sweep, const char *argument)
{
    if (sweep->text_count == SWEEP_TEXTS)
        refuse("--param can be given 32 times");
    char *text = text_copy(argument, SIZE_MAX);
    sweep->text[sweep->text_count++] = text;
    const char *wrong = sweep_take_parameter(sweep, text);
    if (wrong != NULL)
        refuse_value("--param", argument, wrong, "batch=1,2,4,8");
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct sweep *sweep = state->input;
    switch (key) {
    case 'p':
        parse_parameter(sweep, argument);
        return 0;
    case KEY_EXPORT:
        parse_export(sweep, argument);
        return 0;
    case KEY_TIMEOUT:
        parse_duration_option("--timeout", argument, &sweep->timeout_ns);
        return 0;
    case KEY_CLEAN:
        parse_duration_option("--clean-wait", argument, &sweep->clean_ns);
        return 0;
    case KEY_MARGIN:
        parse_size_option("--margin", argument, &sweep->margin);
        return 0;
    case KEY_LARGE:
        parse_size_option("--large", argument, &sweep->large);
        return 0;
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &sweep->fits;
        state->err_stream = NULL; /* no "Try --help" after it */
        return 0;
    case ARGP_KEY_ARG: /* the program; all further arguments belong to it */
        sweep->command = state->argv + state->next - 1;
        state->next = state->argc;
        return 0;
    default:
        return option_set(sweep, key, argument);
    }
}

static const struct argp_child children[] = {{.argp = &fits_options}, {0}};

static const struct argp parser = {
    .options = options,
    .children = children,
    .parser = parse_option,
    .args_doc = "PROGRAM [ARGUMENT...]",
    .doc = "Finds the largest configuration of a program that is safe: runs it under the guard with growing values, "
           "skips those that would not fit, and continues an interrupted sweep.\n\n"
           "  sparkguard-sweep --param batch=1,2,4,8 -- python train.py --batch {batch}\v"
           "Exit status: 0 a maximum was found, 1 nothing fits, 2 usage, 3 a record cannot be trusted or an output not "
           "written, 4 the machine did not become clean, 125 the tool failed, 126 the program cannot be run, 127 not "
           "there.",
};

void sweep_parse(struct sweep *sweep, int argc, char **argv)
{
    *sweep = (struct sweep){
        .clean_ns = INT64_C(60) * 1000000000, .lock_fd = -1, .total_bytes = SG_UNKNOWN, .reserve_bytes = SG_UNKNOWN};
    (void)sg_parse_size("5%", &sweep->large);
    if (tool_parse(&parser, argc, argv, ARGP_IN_ORDER, sweep) != 0) { /* getopt(3) has printed the reason */
        suggest_option("sparkguard-sweep", &parser, ARGP_IN_ORDER, argv);
        exit(SWEEP_USAGE);
    }
    if (sweep->is_fresh && (sweep->wants_resume || sweep->wants_retry))
        refuse("--fresh discards what --resume and --retry continue");
    if (sweep->fits.path == NULL && sweep->fits.option != NULL)
        refuse("%s goes with --fits", sweep->fits.option);
    if (sweep->fits.path != NULL && (sweep->command != NULL || sweep->parameter_count > 0))
        refuse("--fits runs and measures nothing: give it no program and no --param");
    if (sweep->fits.path == NULL && sweep->command == NULL)
        refuse("which program? for example: sparkguard-sweep -p batch=1,2,4 -- python3 train.py {batch}");
    if (sweep->command != NULL && sweep->parameter_count == 0)
        refuse("which values? for example: --param batch=1,2,4,8");
    defaults_take("sparkguard-sweep");
    const char *wrong = sweep_plan(sweep);
    if (wrong != NULL)
        refuse("%s", wrong);
}
