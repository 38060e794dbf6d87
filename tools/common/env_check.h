/*
 * env_check.h - checks whether an environment variable is an option of sparkguard with a valid value.
 */
#ifndef SG_TOOLS_COMMON_ENV_CHECK_H
#define SG_TOOLS_COMMON_ENV_CHECK_H

#include "sparkguard_options.h"

enum env_check {
    ENV_CHECK_OTHER,   /* not SPARKGUARD_..., or set by the guard itself */
    ENV_CHECK_GOOD,    /* an option with a valid value, or with an empty one, which means unset */
    ENV_CHECK_BAD,     /* an option with an invalid value */
    ENV_CHECK_UNKNOWN, /* SPARKGUARD_... that is no option */
};

/* Checks an environment entry "NAME=value". For GOOD and BAD, *option becomes the named option. For UNKNOWN, *option
 * becomes the option with the most similar name. */
enum env_check env_check_judge(const char *entry, enum sg_option *option);

/* Returns a constant text such as "not a size" that says why the value of an option is invalid. */
const char *env_check_fault(enum sg_option option, const char *value);

/* Prints a sentence on stderr for each size in the environment that a tool computes with and that is invalid
 * (SPARKGUARD_RESERVE, _LIMIT, _FLOOR), and says that the default applies. */
void env_check_warn_of_sizes(const char *tool);

#endif
