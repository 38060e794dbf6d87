/*
 * command.h - commands that messages suggest.
 */
#ifndef SG_TOOLS_COMMON_COMMAND_H
#define SG_TOOLS_COMMON_COMMAND_H

/* Returns how the tool `name` is typed where this one was, for commands that messages suggest: "sparkguard-report" if
 * PATH has it, else beside this one, as "build/sparkguard-report". */
char *command_of_tool(const char *name);

#endif
