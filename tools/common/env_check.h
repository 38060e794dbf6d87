/*
 * env_check.h - whether an entry of the environment is one of ours, and one that the library understands.
 */
#ifndef SG_TOOLS_COMMON_ENV_CHECK_H
#define SG_TOOLS_COMMON_ENV_CHECK_H

#include "sparkguard_options.h"

enum env_check {
    ENV_CHECK_OTHER,   /* not SPARKGUARD_..., or set by the guard itself */
    ENV_CHECK_GOOD,    /* or empty, which is unset */
    ENV_CHECK_BAD,     /* a value that cannot be read */
    ENV_CHECK_UNKNOWN, /* a name that is none of ours */
};

/* Judges "NAME=value"; `option` is which, and of an unknown name the one that is spelt most like it. */
enum env_check env_check_judge(const char *entry, enum sg_option *option);

/* "not a size": what is wrong with a value that cannot be read. */
const char *env_check_fault(enum sg_option option, const char *value);

#endif
