/*
 * bad_value.c - see bad_value.h.
 */
#include "common/bad_value.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/text.h"
#include "sparkguard_options.h"

/* Returns whether a text can stand where the example does: as a time, else as a size. */
static bool is_of_kind(const char *text, const char *example)
{
    struct sg_size size;
    uint64_t nanoseconds;
    if (sg_parse_time(example, &nanoseconds) == 0)
        return sg_parse_time(text, &nanoseconds) == 0;
    return sg_parse_size(example, &size) == 0 && sg_parse_size(text, &size) == 0;
}

/* Returns the size or time that was probably meant: without blanks, with a point for a comma, and of a limit "none" for
 * other tools' words. NULL: it cannot be told, or the value can be read and is wrong otherwise. */
static char *probably_meant(const char *name, const char *value, const char *example)
{
    static const char *const unlimited[] = {"max", "unlimited", "infinity", "inf", "off", "no", "-1"};
    char *text = text_copy(value, SIZE_MAX), *to = text;
    const char last = example[strlen(example) - 1];
    bool is_limit =
        strcmp(name, "--limit") == 0 || strcmp(name, "SPARKGUARD_LIMIT") == 0 || strcmp(name, "--jail") == 0;
    for (size_t i = 0; is_limit && i < sizeof unlimited / sizeof *unlimited; i++)
        if (strcmp(value, unlimited[i]) == 0)
            return text_copy("none", SIZE_MAX);
    for (const char *from = value; *from != '\0'; from++)
        if (*from != ' ')
            *to++ = *from == ',' ? '.' : *from;
    *to = '\0';
    bool has_unit = last < '0' || last > '9';
    return has_unit && strcmp(text, value) != 0 && is_of_kind(text, example) ? text : NULL;
}

void bad_value_say(const char *tool, const char *name, const char *value, const char *fault, const char *example,
                   const char *now)
{
    char *printable = text_printable(value, false), *meant = probably_meant(name, value, example);
    const char *before = strchr(example, '|') != NULL ? "use one of " : "for example ";
    fprintf(stderr, "%s: %s=%s: %s; %s%s; %s\n", tool, name, printable, fault, before, meant != NULL ? meant : example,
            now);
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
