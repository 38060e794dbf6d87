/*
 * env_check.c - see env_check.h.
 */
#include "common/env_check.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/bad_value.h"
#include "common/text.h"

static const char *const kind_words[] = {
    [SG_KIND_SIZE] = "not a size",           [SG_KIND_TIME] = "not a time",
    [SG_KIND_CHOICE] = "unknown value",      [SG_KIND_TEXT] = "a name has 1 to 63 characters and no '/'",
    [SG_KIND_PATH] = "not an absolute path", [SG_KIND_NUMBER] = "not a number from -1000 to 1000",
};

const char *env_check_fault(enum sg_option option, const char *value)
{
    if (sg_option_table[option].kind == SG_KIND_SIZE && sg_is_beyond_all(value))
        return "more than 100%";
    if (sg_option_table[option].kind == SG_KIND_PATH && value[0] == '/')
        return "longer than 1023 bytes";
    if (sg_option_table[option].kind == SG_KIND_TEXT && strlen(value) > 63)
        return "longer than 63 bytes";
    return kind_words[sg_option_table[option].kind];
}

/* Returns the option named in an environment entry "NAME=value", or -1. */
static int find_variable(const char *entry)
{
    for (int i = 0; i < SG_OPTION_COUNT; i++) {
        size_t length = strlen(sg_option_table[i].variable);
        if (strncmp(entry, sg_option_table[i].variable, length) == 0 && entry[length] == '=')
            return i;
    }
    return -1;
}

enum env_check env_check_judge(const char *entry, enum sg_option *option)
{
    const char *equals = strchr(entry, '=');
    if (strncmp(entry, SG_VARIABLE_PREFIX, sizeof SG_VARIABLE_PREFIX - 1) != 0 || equals == NULL)
        return ENV_CHECK_OTHER;
    int found = find_variable(entry);
    if (found >= 0) {
        *option = (enum sg_option)found;
        return equals[1] == '\0' || sg_is_valid(*option, equals + 1) ? ENV_CHECK_GOOD : ENV_CHECK_BAD;
    }
    char *name = text_copy(entry, (size_t)(equals - entry));
    bool is_own = strcmp(name, SG_VARIABLE_FIRST) == 0 || strcmp(name, SG_VARIABLE_RECORD) == 0 ||
                  strcmp(name, SG_VARIABLE_REQUIRED) == 0 || strcmp(name, SG_VARIABLE_NEXT_RUNTIME) == 0 ||
                  strcmp(name, SG_VARIABLE_RUNTIME_CONF) == 0;
    *option = sg_option_nearest(name);
    return is_own ? ENV_CHECK_OTHER : ENV_CHECK_UNKNOWN;
}

void env_check_warn_of_sizes(const char *tool)
{
    static const enum sg_option sizes[] = {SG_OPTION_RESERVE, SG_OPTION_LIMIT, SG_OPTION_FLOOR};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const struct sg_option_info *info = &sg_option_table[sizes[i]];
        const char *value = getenv(info->variable), *otherwise = info->fallback;
        char now[64];
        if (value == NULL || value[0] == '\0' || sg_is_valid(sizes[i], value))
            continue;
        if (otherwise[0] == '\0')
            otherwise = sizes[i] == SG_OPTION_LIMIT ? "no limit" : "the default";
        snprintf(now, sizeof now, "using %s", otherwise);
        bad_value_say(tool, info->variable, value, env_check_fault(sizes[i], value), info->example, now);
    }
}
