/*
 * env_check.h - whether an entry of the environment is one of ours, and one that the library understands.
 */
#ifndef SG_TOOLS_COMMON_ENV_CHECK_H
#define SG_TOOLS_COMMON_ENV_CHECK_H

#include "sparkguard_options.h"

enum report_variable {
    REPORT_VARIABLE_OTHER,   /* not SPARKGUARD_..., or set by the guard itself */
    REPORT_VARIABLE_GOOD,    /* or empty, which is unset */
    REPORT_VARIABLE_BAD,     /* a value that cannot be read */
    REPORT_VARIABLE_UNKNOWN, /* a name that is none of ours */
};

/* Judges "NAME=value"; `option` is which, and of an unknown name the one that is spelt most like it. */
enum report_variable report_variable_judge(const char *entry, enum sg_option *option);

/* "not a size": what is wrong with a value that cannot be read. */
const char *report_variable_fault(enum sg_option option, const char *value);

#endif
