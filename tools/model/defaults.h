/*
 * defaults.h - the user's file of defaults, ~/.config/sparkguard.conf (sparkguard_defaults.h), in the tools.
 */
#ifndef SG_TOOLS_MODEL_DEFAULTS_H
#define SG_TOOLS_MODEL_DEFAULTS_H

#include "base/options.h"

/* Puts the defaults into the environment, for options that no variable sets: this tool then has them wherever it
 * looks, and so have the programs that it starts. Says on stderr that the file, or its first wrong line, has no
 * effect, and that a size of 0 is none; NULL as the name of the tool: says nothing. Further calls do nothing. */
void defaults_take(const char *tool);

/* Returns the file as defaults_take() has found it. */
const struct sg_defaults *defaults_file(void);

/* Returns whether the variable of an option has its value from the file. */
bool defaults_have_set(enum sg_option option);

/* Returns the sentence about what of the file has no effect, NULL if there is none. */
char *defaults_fault(void);

#endif
