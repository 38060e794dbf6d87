/*
 * command.h - commands that messages suggest.
 */
#ifndef SG_TOOLS_COMMON_COMMAND_H
#define SG_TOOLS_COMMON_COMMAND_H

/* The first argument of a launcher that waits for a claim, with the number of its socket. The program follows. */
#define COMMAND_IN_CLAIM "--in-claim="

/* Returns the program's command line in that of a launcher that waits for a claim; NULL: it is none of such a
 * launcher. */
char *command_in_claim(char *command);

/* Returns how the tool `name` is typed where this one was, for commands that messages suggest: "sparkguard-report" if
 * PATH has it, else beside this one, as "build/sparkguard-report". */
char *command_of_tool(const char *name);

#endif
