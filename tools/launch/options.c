/*
 * options.c - the launcher's command line. Each line of options.def makes one option --name for SPARKGUARD_NAME.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launch/launch.h"
#include "model/model.h"
#include "common/bad_value.h"
#include "model/defaults.h"
#include "common/text.h"
#include "common/tool.h"
#include "common/env_check.h"
#include "common/option.h"
#include "common/suggest.h"

#define NOT_STARTED "the program is not started"
#define SET_FLAG(member) OPTION_FLAG(struct launch, member)
#define SET_TEXT(member) OPTION_TEXT(struct launch, member)

enum {
    KEY_QUIET = 'q',
    KEY_OPTION = 256,
    KEY_JAIL = KEY_OPTION + SG_OPTION_COUNT,
    KEY_ON_PRESSURE,
    KEY_ON_REFUSAL,
    KEY_CLAIM
};

static void complain_of_value(struct launch *launch, enum sg_option option, const char *what, const char *value)
{
    bad_value_say("sparkguard", what, value, env_check_fault(option, value), sg_option_table[option].example,
                  NOT_STARTED);
    launch->complaints++;
}

/* Warns of a valid value that was probably not meant. The library prints the same warning, except under a launcher. */
static void warn(enum sg_option option, const char *what, const char *value)
{
    struct sg_size size = {0};
    bool is_low = option == SG_OPTION_LIMIT && sg_is_low_limit(value); /* check_limit() tells that */
    if (sg_option_table[option].kind == SG_KIND_SIZE && !is_low)
        bad_value_warn_of_unit("sparkguard", what, value, sg_option_table[option].example);
    if (sg_is_told_zero(option, value))
        bad_value_warn_of_zero("sparkguard", what, value);
    if (option != SG_OPTION_RESERVE || sg_parse_size(value, &size) != 0)
        return;
    uint64_t machine = launch_machine_bytes();
    if (machine != 0 && sg_size_of(size, machine) >= machine)
        fprintf(stderr,
                "sparkguard: %s=%s keeps %s of the %s that this machine has: every large request will be refused\n",
                what, value, text_size(sg_size_of(size, machine)), text_size(machine));
}

static void take_option(struct launch *launch, enum sg_option option, char *value)
{
    launch->value[option] = value;
    char *name = text_format("--%s", sg_option_table[option].name);
    if (sg_is_valid(option, value))
        warn(option, name, value);
    else
        complain_of_value(launch, option, name, value);
}

static void take_jail(struct launch *launch, const char *value)
{
    static const char example[] = "100G";
    if (launch_jail_take(launch, value)) {
        bad_value_warn_of_unit("sparkguard", "--jail", value, example);
        bad_value_warn_of_zero("sparkguard", "--jail", value);
        return;
    }
    bad_value_say("sparkguard", "--jail", value, env_check_fault(SG_OPTION_LIMIT, value), example, NOT_STARTED);
    launch->complaints++;
}

static void take_claim(struct launch *launch, enum launch_claim_option option, const char *value)
{
    const struct launch_claim_option_info *info = &launch_claim_options[option];
    char *name = text_format("--%s", info->name);
    if (!launch_claim_take(&launch->claim, option, value)) {
        const char *fault = option == CLAIM_SHARE ? "not a number from 1 to 1000" : env_check_fault(info->kind, value);
        bad_value_say("sparkguard", name, value, fault, info->example, NOT_STARTED);
        launch->complaints++;
    } else if (option == CLAIM_SIZE) {
        bad_value_warn_of_unit("sparkguard", name, value, info->example);
        bad_value_warn_of_zero("sparkguard", name, value);
    }
}

static void check_command(struct launch *launch, const char *name, const char *command)
{
    if (launch_pressure_is_command(command))
        return;
    bad_value_say("sparkguard", name, command, "the shell knows no such command", "'kill -USR1 4711'", NOT_STARTED);
    launch->complaints++;
}

/* Returns 0, or EINVAL after a message about options that do not go together. */
static error_t check_together(const struct launch *launch)
{
    if (launch->is_json && !launch->is_check) {
        fputs("sparkguard: --json belongs to --check\n", stderr);
        return EINVAL;
    }
    if (launch->is_cuda && (!launch->is_check || launch->program != NULL)) {
        fputs("sparkguard: --cuda belongs to --check, and takes no program\n", stderr);
        return EINVAL;
    }
    if (!launch->claim.is_wanted && !launch->claim.is_none && launch->claim.has_details) {
        fputs("sparkguard: --claim-wait, --claim-ttl, --priority and --share belong to --claim\n", stderr);
        return EINVAL;
    }
    return 0;
}

/* Asks for what is missing, by what was typed. */
static error_t ask_for_argument(const struct launch *launch)
{
    bool has_job = launch->set_job != NULL && strchr(launch->set_job, '=') == NULL;
    if (launch->set_job != NULL || launch->is_set)
        fprintf(stderr, "sparkguard: %s: which %s? for example: sparkguard %s train limit=60G\n", launch_set_name,
                has_job ? "value" : "job", launch_set_name);
    else
        fputs("sparkguard: which program? for example: sparkguard python3 train.py\n", stderr);
    return EINVAL;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    static char one[] = "1";
    struct launch *launch = state->input;
    switch (key) {
    case KEY_QUIET:
        launch->is_quiet = true;
        return 0;
    case KEY_ON_PRESSURE:
        launch->pressure.command = argument;
        check_command(launch, "--on-pressure", argument);
        return 0;
    case KEY_ON_REFUSAL:
        launch->refusal.command = argument;
        check_command(launch, "--on-refusal", argument);
        return 0;
    case KEY_JAIL:
        take_jail(launch, argument);
        return 0;
    case ARGP_KEY_INIT:
        state->err_stream = NULL; /* getopt's error line is enough; drops argp's two further lines about --help */
        return 0;
    case ARGP_KEY_ARG: /* the program, or what is to be set; all further arguments belong to it */
        if (launch->is_set && launch->set_job == NULL) {
            launch->set_job = argument;
            return 0;
        }
        launch->program = state->argv + state->next - 1;
        state->next = state->argc;
        return 0;
    case ARGP_KEY_END:
        return launch->program == NULL && !launch->is_check ? ask_for_argument(launch) : check_together(launch);
    default:
        if (key >= KEY_CLAIM && key < KEY_CLAIM + CLAIM_OPTION_COUNT) {
            take_claim(launch, (enum launch_claim_option)(key - KEY_CLAIM), argument);
            return 0;
        }
        if (key < KEY_OPTION || key >= KEY_JAIL)
            return option_set(launch, key, argument);
        take_option(launch, (enum sg_option)(key - KEY_OPTION), argument != NULL ? argument : one);
        return 0;
    }
}

static const char *argument_word(const struct sg_option_info *info)
{
    switch (info->kind) {
    case SG_KIND_SIZE:
        return "SIZE";
    case SG_KIND_TIME:
        return "TIME";
    case SG_KIND_CHOICE:
        return info->example;
    case SG_KIND_TEXT:
        return "NAME";
    case SG_KIND_PATH:
        return "DIR";
    case SG_KIND_NUMBER:
        return "NUMBER";
    }
    return "VALUE";
}

/* The two parts of --help. */
enum { COMMON = 1, ADVANCED };

/* The options that set no variable of their own. --memory is what docker run calls it. */
static const struct argp_option own_options[] = {
    {NULL, 0, NULL, 0, "What most people need:", COMMON},
    {"memory", KEY_OPTION + SG_OPTION_LIMIT, "SIZE", 0, "the same as --limit", COMMON},
    {NULL, 0, NULL, 0, "Advanced:", ADVANCED},
    {"library", SET_TEXT(library), "FILE", 0,
     "preload FILE instead of the libsparkguard.so that belongs to this launcher", ADVANCED},
    {"quiet", KEY_QUIET, NULL, 0, "no line at the start, no summary at the end", COMMON},
    {"jail", KEY_JAIL, "SIZE", 0,
     "in a scope of systemd with MemoryMax=SIZE and without swap: the kernel then bounds heap, mapped, pinned and "
     "managed memory, and the guard bounds device memory (cudaMalloc)",
     COMMON},
    {"check", SET_FLAG(is_check), NULL, 0,
     "say whether PROGRAM would be guarded here, and what to do if not; start nothing", COMMON},
    {"json", SET_FLAG(is_json), NULL, 0, "with --check: print JSON", ADVANCED},
    {"cuda", SET_FLAG(is_cuda), NULL, 0,
     "with --check: measure what is assumed of the driver, with 256 MiB of the GPU's memory", ADVANCED},
    {"set", SET_TEXT(set_job), "JOB", 0,
     "change limit=SIZE, reserve=SIZE or claim=SIZE of a running job; SIZE may be none", COMMON},
    {"force", SET_FLAG(is_forced), NULL, 0, "also a limit below 16 MiB; with --set, also one below what the job holds",
     ADVANCED},
    {"hints", SET_FLAG(has_hints), NULL, 0,
     "tell PROGRAM's runtime its limit: sets GOMEMLIMIT, and -XX:MaxRAM in JAVA_TOOL_OPTIONS", ADVANCED},
    {"on-pressure", KEY_ON_PRESSURE, "COMMAND", 0,
     "run COMMAND when a request of another job cannot be met; SPARKGUARD_WANTED_BYTES says what is missing", ADVANCED},
    {"on-refusal", KEY_ON_REFUSAL, "COMMAND", 0,
     "run COMMAND after a request was refused, at most once a second; SPARKGUARD_REFUSED_BYTES, _CALL, _REASON and "
     "_PID say which",
     ADVANCED},
};
enum { OWN_COUNT = sizeof own_options / sizeof own_options[0] };

void launch_parse(struct launch *launch, int argc, char **argv)
{
    struct argp_option options[SG_OPTION_COUNT + OWN_COUNT + CLAIM_OPTION_COUNT + 1] = {0};
    struct argp_option *next = options;
    char *help[SG_OPTION_COUNT];
    for (int i = 0; i < SG_OPTION_COUNT; i++) {
        const struct sg_option_info *info = &sg_option_table[i];
        const char *fallback = i == SG_OPTION_REPORT ? "exit" : info->fallback; /* the launcher's own default */
        help[i] =
            fallback[0] ? text_format("%s (%s)", info->help, fallback) : text_copy(info->help, strlen(info->help));
        bool is_common = i == SG_OPTION_JOB || i == SG_OPTION_LIMIT || i == SG_OPTION_RESERVE;
        *next++ = (struct argp_option){info->name,
                                       KEY_OPTION + i,
                                       argument_word(info),
                                       i == SG_OPTION_DISABLE ? OPTION_ARG_OPTIONAL : 0,
                                       help[i],
                                       is_common ? COMMON : ADVANCED};
    }
    for (int i = 0; i < CLAIM_OPTION_COUNT; i++) {
        const struct launch_claim_option_info *info = &launch_claim_options[i];
        bool is_common = i == CLAIM_SIZE || i == CLAIM_WAIT;
        *next++ = (struct argp_option){info->name, KEY_CLAIM + i, info->argument,
                                       0,          info->help,    is_common ? COMMON : ADVANCED};
    }
    memcpy(next, own_options, sizeof own_options);
    const struct argp parser = {
        .options = options,
        .parser = parse_option,
        .args_doc = "PROGRAM [ARGUMENT...]\n--check [PROGRAM [ARGUMENT...]]\n--check --cuda\n--set JOB NAME=VALUE...",
        .doc =
            "Runs a program under the guard: memory requests that would take the machine down are refused by the "
            "call that makes them.\n\n"
            "  sparkguard python3 train.py         run it; a summary at its end\n"
            "  sparkguard report                   what runs now, what ran last\n"
            "  sparkguard watch                    the same, live\n"
            "  sparkguard sweep|doctor --help      two more tools\v"
            "An option sets the variable of its name, as SPARKGUARD_LIMIT, if there is one.\n"
            "TIME: 30 (seconds), 90s, 5m, 2h.\n"
            "SIZE: 12G, 512M, 64KiB (powers of 1024), 12GB (of 1000), bytes, or 10% of the machine's memory.\n"
            "Exit status: the program's; 124 no claim, 125 the launcher failed, 126 the program cannot be run, 127 not "
            "found, 2 usage. With --check: 0 it would be guarded, 1 it would not; with --cuda: 0 all is so, 1 "
            "something is not, 3 "
            "it could not be told. With --set: 0 it is set, 1 no such "
            "job runs, 3 not allowed.",
    };
    if (tool_parse(&parser, argc, argv, ARGP_IN_ORDER, launch) != 0) { /* argp has printed the reason */
        if (argc > 1 && launch_subcommand_is_option(argv[1]) && (argc == 2 || strcmp(argv[1], "--report") != 0))
            fprintf(stderr, "sparkguard: did you mean: sparkguard %s\n", argv[1] + 2);
        else
            suggest_option("sparkguard", &parser, ARGP_IN_ORDER, argv);
        exit(LAUNCH_USAGE);
    }
}

static bool is_disabled(const struct launch *launch)
{
    const char *value = launch->value[SG_OPTION_DISABLE];
    value = value != NULL ? value : getenv(sg_option_table[SG_OPTION_DISABLE].variable);
    return value != NULL && strcmp(value, "1") == 0;
}

/* No program runs within a limit below SG_LIMIT_LEAST. A limit of 0 is none. */
static void check_limit(struct launch *launch)
{
    const char *option = launch->value[SG_OPTION_LIMIT], *variable = sg_option_table[SG_OPTION_LIMIT].variable;
    const char *value = option != NULL ? option : getenv(variable), *name = option != NULL ? "--limit" : variable;
    if (value == NULL || !sg_is_low_limit(value))
        return;
    if (launch->is_forced) {
        fprintf(stderr,
                "sparkguard: %s=%s is less than any program needs (16 MiB): nearly every request will be refused\n",
                name, value);
        return;
    }
    const char unit = sg_missing_unit(SG_OPTION_LIMIT, value);
    if (unit != '\0')
        fprintf(stderr, "sparkguard: %s=%s is %s bytes, less than any program needs (16 MiB); did you mean %s%c?; %s\n",
                name, value, value, value, unit, NOT_STARTED);
    else
        bad_value_say("sparkguard", name, value, "less than any program needs (16 MiB)",
                      sg_option_table[SG_OPTION_LIMIT].example, NOT_STARTED);
    launch->complaints++;
}

void launch_check_environment(struct launch *launch)
{
    if (is_disabled(launch))
        return;
    check_limit(launch);
    for (char **entry = environ; *entry != NULL; entry++) {
        enum sg_option option;
        enum env_check verdict = env_check_judge(*entry, &option);
        const char *equals = strchr(*entry, '=');
        if (verdict == ENV_CHECK_BAD && launch->value[option] == NULL)
            complain_of_value(launch, option, sg_option_table[option].variable, equals + 1);
        if (verdict == ENV_CHECK_GOOD && launch->value[option] == NULL)
            warn(option, sg_option_table[option].variable, equals + 1);
        if (verdict != ENV_CHECK_UNKNOWN)
            continue;
        fprintf(stderr, "sparkguard: %s is not a variable of sparkguard; did you mean %s?\n",
                text_printable(text_copy(*entry, (size_t)(equals - *entry)), false), sg_option_table[option].variable);
    }
}

/* The limit of the job, as the library will apply it; 0: none. */
static uint64_t limit_bytes(void)
{
    struct sg_size size = {0};
    uint64_t machine = launch_machine_bytes(), bound = sg_size_of(launch_bounds_of(getuid()).limit, machine);
    const char *text = getenv(sg_option_table[SG_OPTION_LIMIT].variable);
    uint64_t limit = text != NULL && sg_parse_size(text, &size) == 0 ? sg_size_of(size, machine) : 0;
    return bound != 0 && (limit == 0 || bound < limit) ? bound : limit;
}

/* --hints: tells runtimes the limit in the variables that they read. What the user has set stays. Go collects garbage
 * before its heap reaches GOMEMLIMIT, which knows nothing of other memory: a tenth is left for that. The JVM takes a
 * part of MaxRAM for its heap. */
static void export_hints(void)
{
    uint64_t limit = limit_bytes();
    const char *java = getenv("JAVA_TOOL_OPTIONS");
    if (limit == 0) {
        fputs("sparkguard: --hints has no effect: the job has no limit (--limit)\n", stderr);
        return;
    }
    char *go_limit = text_format("%" PRIu64 "B", limit - limit / 10);
    char *all = text_format("%s%s-XX:MaxRAM=%" PRIu64, java != NULL ? java : "", java != NULL ? " " : "", limit);
    setenv("GOMEMLIMIT", go_limit, 0);
    if (java == NULL || strstr(java, "-XX:MaxRAM=") == NULL)
        setenv("JAVA_TOOL_OPTIONS", all, 1);
}

void launch_export(struct launch *launch)
{
    const char *model = launch->value[SG_OPTION_REPORT];
    if (model == NULL)
        model = getenv(sg_option_table[SG_OPTION_REPORT].variable);
    launch->is_quiet = launch->is_quiet || (model != NULL && strcmp(model, "off") == 0);
    for (int i = 0; i < SG_OPTION_COUNT; i++)
        if (launch->value[i] != NULL)
            setenv(sg_option_table[i].variable, launch->value[i], 1);
    if (!is_disabled(launch))
        defaults_take(launch->is_check ? NULL : "sparkguard");
    if (launch->jail_bytes != 0) /* a systemd scope does not accept OOMScoreAdjust= */
        setenv(sg_option_table[SG_OPTION_OOM_SCORE_ADJ].variable, "500", 0);
    if (launch->has_hints)
        export_hints();
    setenv(sg_option_table[SG_OPTION_REPORT].variable, "off", 1); /* the launcher prints the summary, not the library */

    /* A launcher started inside a job adds its program to that job, unless --job gives another name. */
    const char *job = getenv(sg_option_table[SG_OPTION_JOB].variable);
    if (job != NULL && job[0] != '\0')
        snprintf(launch->job, sizeof launch->job, "%s", job);
    launch->is_new_job =
        launch->value[SG_OPTION_JOB] != NULL || launch->job[0] == '\0' || getenv(SG_VARIABLE_FIRST) == NULL;
    launch->directory = model_default_directory();
}
