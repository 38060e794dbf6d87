/*
 * bad_value.h - the sentence of all tools about a value on the command line or in the environment that cannot be used:
 * what was given, what is wrong, a good example, and what happens now.
 */
#ifndef SG_TOOLS_COMMON_BAD_VALUE_H
#define SG_TOOLS_COMMON_BAD_VALUE_H

/* Prints "TOOL: NAME=VALUE: FAULT; for example EXAMPLE; NOW" on stderr. `name` is an option with its dashes or a
 * variable. The value may hold any bytes. Of a size or time that is nearly right, the example is that one: "64GiB" for
 * "64 GiB". An example with '|' between words is a list: "use one of off|warn|term". */
void bad_value_say(const char *tool, const char *name, const char *value, const char *fault, const char *example,
                   const char *now);

/* Prints "TOOL: NAME=64 is 64 bytes; did you mean 64G?" if a size probably lacks its unit; `example` has the unit that
 * is meant for few bytes. */
void bad_value_warn_of_unit(const char *tool, const char *name, const char *value, const char *example);

/* Prints "TOOL: NAME=0 is read as none" if the size is 0 and not written so. */
void bad_value_warn_of_zero(const char *tool, const char *name, const char *value);

#endif
