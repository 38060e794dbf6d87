/*
 * pressure.h - --on-pressure: a command that makes a program give memory back which has no callback of its own
 * (sparkguard_on_pressure() of sparkguard.h).
 *
 * A helper process of the launcher runs under the library as a part of the job. When it is asked, it runs the command.
 * It ends with the launcher.
 */
#ifndef SG_TOOLS_LAUNCH_PRESSURE_H
#define SG_TOOLS_LAUNCH_PRESSURE_H

#include <stdbool.h>
#include <sys/types.h>

struct launch;

/* A helper process of the launcher, for --on-pressure or --on-refusal. */
struct launch_helper {
    const char *command; /* of the option; NULL: none */
    pid_t pid;           /* 0: none */
    int to_helper;       /* a pipe; the helper ends when this end is closed */
};

/* Starts a helper, which begins in `run` and does not return; none where the option has no command. Prints a warning if
 * it cannot be started: `lost` says what there is not then. The program runs all the same. */
void launch_helper_start(struct launch *launch, struct launch_helper *helper, const char *option, const char *lost,
                         void (*run)(const struct launch *launch, int pipe_end));

/* Returns whether a shell finds a command; true where its first word is more than a name. */
bool launch_pressure_is_command(const char *command);

/* Starts the helper; the job's name must be known. */
void launch_pressure_begin(struct launch *launch);

/* Ends the helper and a command that still runs. */
void launch_pressure_end(struct launch *launch);

#endif
