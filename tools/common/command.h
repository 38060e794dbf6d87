/*
 * command.h - how the tools are called in messages, and how they can be typed again. Call these functions from one thread.
 */
#ifndef SG_TOOLS_COMMON_COMMAND_H
#define SG_TOOLS_COMMON_COMMAND_H

/* Makes getopt(3) print the base name of the tool instead of the path in argv[0], as the tool's own messages do. Call
 * this function first in main(). */
void command_set_name(char **argv);
/* Returns how the tool `name` is typed where this one was, for commands that messages suggest: "sparkguard-report" if PATH
 * has it, else beside this one, as "build/sparkguard-report". The caller frees. */
char *command_of(const char *name);

#endif
