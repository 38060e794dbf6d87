/*
 * bad_value.c - see bad_value.h.
 */
#include "common/bad_value.h"

#include <stdio.h>
#include <string.h>

#include "common/text.h"
#include "sparkguard_options.h"

void bad_value_say(const char *tool, const char *name, const char *value, const char *fault, const char *example,
                   const char *now)
{
    char *printable = text_printable(value, false);
    const char *before = strchr(example, '|') != NULL ? "use one of " : "for example ";
    fprintf(stderr, "%s: %s=%s: %s; %s%s; %s\n", tool, name, printable, fault, before, example, now);
}

void bad_value_warn_of_unit(const char *tool, const char *name, const char *value, const char *example)
{
    char unit = sg_unit_missing(value, example[strlen(example) - 1]);
    if (unit != '\0')
        fprintf(stderr, "%s: %s=%s is %s bytes; did you mean %s%c?\n", tool, name, value, value, value, unit);
}

void bad_value_warn_of_zero(const char *tool, const char *name, const char *value)
{
    if (sg_is_zero(value))
        fprintf(stderr, "%s: %s=%s" SG_ZERO_IS_NONE "\n", tool, name, value);
}
