/*
 * surroundings.c - what bounds and records the program from outside: cgroups, history, defaults, options.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launch/check/check.h"
#include "launch/check/history.h"
#include "admit/cgroup.h"
#include "base/options.h"
#include "common/bytes.h"
#include "sparkguard_bounds.h"
#include "model/defaults.h"
#include "common/env_check.h"
#include "common/text.h"
#include "model/model.h"

enum { LEVELS_SHOWN = 3 };

static void append_limit(const char **list, const char *file, uint64_t bytes)
{
    if (bytes != SG_UNKNOWN)
        text_append(list, ", ", text_format("%s %s", file, text_size(bytes)));
}

/* The limits of the cgroups that were visited. */
struct limits {
    const char *text; /* of the first levels that set one */
    size_t count;
};

static void add_limits(const char *directory, const char *path, bool is_v2, void *data)
{
    struct limits *limits = data;
    const char *one = "";
    append_limit(&one, "memory.max", sg_cgroup_limit(directory, is_v2 ? "memory.max" : "memory.limit_in_bytes"));
    append_limit(&one, "memory.high", is_v2 ? sg_cgroup_limit(directory, "memory.high") : SG_UNKNOWN);
    append_limit(&one, "swap.max", is_v2 ? sg_cgroup_limit(directory, "memory.swap.max") : SG_UNKNOWN);
    if (one[0] != '\0' && limits->count++ < LEVELS_SHOWN)
        limits->text = text_format("%s%s%s in %s", limits->text, limits->text[0] != '\0' ? "; " : "", one,
                                   path[0] != '\0' ? path : "/");
}

void check_surroundings_cgroups(struct check *check)
{
    static const char id[] = "cgroups";
    struct limits limits = {"", 0};
    sg_options_read_quietly(environ);
    sg_cgroup_visit_all(add_limits, &limits);
    if (limits.count == 0)
        check_add(check, id, FINDING_NONE, NULL, "none limits memory here");
    else
        check_add(check, id, FINDING_FINE, NULL, "%s%s; the guard keeps a reserve in each", limits.text,
                  limits.count > LEVELS_SHOWN ? "; and more above" : "");
}

void check_surroundings_history(struct check *check)
{
    static const char id[] = "history";
    const char *variable = getenv(sg_option_table[SG_OPTION_HISTORY].variable);
    char *path = model_history_directory();
    const struct history_folder folder = path != NULL ? history_judge(path) : (struct history_folder){0};
    const char *fault = folder.failure != 0 && folder.fault == NULL ? strerror(folder.failure) : folder.fault;
    if (path == NULL && variable != NULL && strcmp(variable, "off") == 0)
        check_add(check, id, FINDING_NONE, NULL, "off (%s)",
                  defaults_have_set(SG_OPTION_HISTORY) ? defaults_file()->path : "SPARKGUARD_HISTORY");
    else if (launch_directory_fault(check->launch->directory) != NULL) /* the history is a copy of the statistics */
        check_add(check, id, FINDING_NONE, NULL, "not kept without statistics");
    else if (path == NULL)
        check_add(check, id, FINDING_WARNING, "set HOME, or --history=DIR", "not kept: HOME is not set");
    else if (fault != NULL)
        check_add(check, id, FINDING_WARNING, "--history=DIR, a folder that you can write, or off", "not kept: %s: %s",
                  path, fault);
    else
        check_add(check, id, FINDING_FINE, NULL, "%s", path);
}

/* Adds a line about the user's file of defaults, if there is one: which of them apply. */
void check_surroundings_defaults(struct check *check)
{
    static const char id[] = "defaults";
    const struct sg_defaults *file = defaults_file();
    const char *applied = "", *given = "", *fault = defaults_fault();
    if (file->state == SG_DEFAULTS_NONE)
        return;
    if (file->state == SG_DEFAULTS_FOREIGN) {
        check_add(check, id, FINDING_NONE, NULL, "%s belongs to another user and has no effect", file->path);
        return;
    }
    if (fault != NULL)
        check_add(check, id, FINDING_WARNING, "mend the file", "%s", fault);
    for (int i = 0; i < SG_OPTION_COUNT; i++) {
        const struct sg_option_info *info = &sg_option_table[i];
        if (file->value[i] == NULL)
            continue;
        if (defaults_have_set((enum sg_option)i))
            text_append(&applied, ", ", text_format("%s=%s", info->name, file->value[i]));
        else
            text_append(&given, ", ",
                        text_format("%s gives way to %s%s", info->name, check->launch->value[i] != NULL ? "--" : "",
                                    check->launch->value[i] != NULL ? info->name : info->variable));
    }
    if (file->state == SG_DEFAULTS_READ && (fault == NULL || applied[0] != '\0' || given[0] != '\0'))
        check_add(check, id, FINDING_FINE, NULL, "%s: %s%s%s", file->path,
                  applied[0] != '\0' ? applied : "nothing applies", given[0] != '\0' ? "; " : "", given);
}

/* Adds a line for one variable if its value is wrong or was probably not meant. Returns whether the value counts. */
static bool judge_variable(struct check *check, const char *entry)
{
    static const char id[] = "options";
    enum sg_option option;
    enum env_check verdict = env_check_judge(entry, &option);
    const char *equals = strchr(entry, '=');
    if (verdict == ENV_CHECK_OTHER)
        return false;
    const struct sg_option_info *info = &sg_option_table[option];
    if (verdict == ENV_CHECK_BAD)
        check_add(check, id, FINDING_DANGER,
                  text_format(info->kind == SG_KIND_CHOICE ? "use one of %s" : "for example %s", info->example),
                  "%s: %s; sparkguard does not start a program with it", entry, env_check_fault(option, equals + 1));
    if (verdict == ENV_CHECK_UNKNOWN)
        check_add(check, id, FINDING_WARNING, text_format("did you mean %s?", info->variable),
                  "%.*s is not a variable of sparkguard", (int)(equals - entry), entry);
    if (verdict != ENV_CHECK_GOOD || equals[1] == '\0')
        return false;
    char unit = sg_missing_unit(option, equals + 1);
    if (unit != '\0')
        check_add(check, id, FINDING_WARNING, text_format("did you mean %s%c?", equals + 1, unit), "%s is %s bytes",
                  entry, equals + 1);
    if (option == SG_OPTION_MODE && strcmp(equals + 1, "observe") == 0)
        check_add(check, id, FINDING_WARNING, "unset SPARKGUARD_MODE, once you have seen what it would refuse",
                  "%s: nothing is refused, what would have been is recorded", entry);
    if (option == SG_OPTION_DISABLE && strcmp(equals + 1, "1") == 0)
        check_add(check, id, FINDING_DANGER, "unset SPARKGUARD_DISABLE", "%s: nothing is refused", entry);
    if (option == SG_OPTION_JOB && getenv(SG_VARIABLE_FIRST) != NULL)
        return false; /* this tool runs within a job; the name is not the user's */
    /* The launcher sets REPORT itself, two have lines of their own, and so have the user's defaults. */
    return !defaults_have_set(option) && option != SG_OPTION_REPORT && option != SG_OPTION_DIR &&
           option != SG_OPTION_HISTORY;
}

/* Adds a line about --claim=SIZE. */
static void judge_claim(struct check *check, const struct model *model, uint64_t left_bytes, uint64_t most_bytes)
{
    const struct launch_claim *claim = &check->launch->claim;
    const char *mode = getenv(sg_option_table[SG_OPTION_MODE].variable);
    bool is_observing = mode != NULL && strcmp(mode, "observe") == 0;
    size_t before = 0;
    if (!claim->is_wanted || claim->is_auto || is_observing || !check_is_guarded(check))
        return;
    for (size_t i = 0; i < model->claims.count; i++)
        before += model->claims.at[i].is_queued && model->claims.at[i].priority >= claim->priority;
    const char *size = text_size(claim->bytes);
    if (claim->bytes <= left_bytes && before != 0)
        check_add(check, "claim", FINDING_WARNING, "--claim-wait=10m waits for it",
                  "%s cannot be claimed now: claims before it: %zu", size, before);
    else if (claim->bytes <= left_bytes)
        check_add(check, "claim", FINDING_FINE, NULL, "%s can be claimed now", size);
    else if (claim->bytes > most_bytes)
        check_add(check, "claim", FINDING_WARNING, "a smaller claim", "%s can never be claimed here, at most %s", size,
                  text_size(most_bytes));
    else
        check_add(check, "claim", FINDING_WARNING, "--claim-wait=10m waits for it",
                  "%s cannot be claimed now, at most %s", size, text_size(left_bytes));
}

void check_surroundings_options(struct check *check)
{
    static const char id[] = "options";
    const struct model_scope scope = {.is_all = true,
                                      .joins = model_own_job(check->launch->job, check->launch->is_new_job)};
    struct model *model = model_build(&scope);
    const struct model_machine *machine = &model->machine;
    const char *set = "all as by default", *list = "";
    for (char **entry = environ; *entry != NULL; entry++)
        if (judge_variable(check, *entry))
            text_append(&list, ", ", *entry + sizeof SG_VARIABLE_PREFIX - 1);
    if (list[0] != '\0')
        set = text_format("set: %s", list);
    bool is_known = machine->usable_bytes != SG_UNKNOWN && machine->reserve_bytes != SG_UNKNOWN;
    if (is_known) {
        uint64_t limit = model->observed.limit_bytes != 0 ? model->observed.limit_bytes : SG_UNKNOWN;
        uint64_t usable_bytes = bytes_less(machine->usable_bytes, machine->reserve_bytes),
                 left = bytes_min(usable_bytes, machine->limit_left_bytes);
        check_add(check, id, left == 0 ? FINDING_WARNING : FINDING_FINE,
                  usable_bytes == 0 ? "end what holds memory (sparkguard-report), or lower SPARKGUARD_RESERVE" : NULL,
                  "%s; reserve %s%s, room %s now", set, text_size(machine->reserve_bytes),
                  machine->is_limit_bound ? ", limit by " SG_BOUNDS_FILE : "", text_size(left));
        judge_claim(check, model, left, bytes_min(limit, machine->most_bytes));
    } else {
        check_add(check, id, FINDING_FINE, NULL, "%s; the room is not known", set);
    }
}
