/*
 * pressure.h - --on-pressure and --pressure-socket: a command, or systemd's protocol (pressure_socket.h), that makes a
 * program give memory back which has no callback of its own (sparkguard_on_pressure() of sparkguard.h).
 *
 * A helper process of the launcher runs under the library as a part of the job. When it is asked, it runs the command
 * and tells the programs at the socket. It ends with the launcher.
 */
#ifndef SG_TOOLS_LAUNCH_PRESSURE_H
#define SG_TOOLS_LAUNCH_PRESSURE_H

#include <stdbool.h>
#include <sys/types.h>

struct launch;

struct launch_pressure {
    const char *command;   /* --on-pressure; NULL: none */
    bool is_socket_wanted; /* --pressure-socket */
    char *socket_path;     /* NULL: none */
    int listener;          /* the socket; -1 once the helper has it; valid if there is a path */
    pid_t helper;          /* 0: none */
    int to_helper;         /* a pipe; the helper ends when this end is closed */
};

/* Makes the socket, if it is wanted, and names it in the environment, which the program is about to inherit. Prints a
 * warning if there is none: the program runs all the same. */
void launch_pressure_prepare(struct launch *launch);

/* Starts the helper; the job's name must be known. Prints a warning if it cannot be started: the program runs all the
 * same. */
void launch_pressure_begin(struct launch *launch);

/* Ends the helper and a command that still runs, and removes the socket. */
void launch_pressure_end(struct launch *launch);

#endif
