/*
 * defaults.c - see defaults.h.
 */
#include "model/defaults.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/bad_value.h"
#include "common/text.h"

static struct sg_defaults file;
static bool has_read, has_set[SG_OPTION_COUNT];

const struct sg_defaults *defaults_file(void)
{
    return &file;
}

bool defaults_have_set(enum sg_option option)
{
    return has_set[option];
}

char *defaults_fault(void)
{
    const char *fault = sg_defaults_fault(file.state);
    if (fault == NULL && file.wrong_line == 0)
        return NULL;
    char *path = text_printable(file.path, false);
    const char *near = sg_defaults_nearest(&file);
    if (fault != NULL)
        return text_format("%s %s", path, fault);
    return near != NULL
               ? text_format("%s:%u: cannot be read and has no effect; did you mean %s?", path, file.wrong_line, near)
               : text_format("%s:%u: cannot be read and has no effect; expected " SG_DEFAULTS_EXPECTED, path,
                             file.wrong_line);
}

void defaults_take(const char *tool)
{
    if (has_read)
        return;
    has_read = true;
    char path[SG_DEFAULTS_PATH_BYTES];
    sg_options_name_defaults(path, getenv("XDG_CONFIG_HOME"), getenv("HOME"));
    (void)sg_options_read_defaults(&file, path);
    for (int i = 0; i < SG_OPTION_COUNT; i++) {
        const char *variable = sg_option_table[i].variable, *now = getenv(variable);
        has_set[i] =
            file.value[i] != NULL && (now == NULL || now[0] == '\0') && setenv(variable, file.value[i], 1) == 0;
    }
    const char *fault = tool != NULL ? defaults_fault() : NULL;
    if (fault != NULL)
        fprintf(stderr, "%s: %s\n", tool, fault);
    for (int i = 0; i < SG_OPTION_COUNT; i++)
        if (tool != NULL && has_set[i] && sg_is_told_zero((enum sg_option)i, file.value[i]))
            bad_value_warn_of_zero(
                tool, text_format("%s:%u: %s", text_printable(file.path, false), file.line[i], sg_option_table[i].name),
                file.value[i]);
}
