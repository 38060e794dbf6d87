/*
 * setup.h - sparkguard-doctor --setup: prints one shell script that guards the whole machine, or takes that back. The
 * script is tools/install/system/setup.sh behind the settings of this machine; it is not run here. Single-threaded.
 */
#ifndef SG_TOOLS_DOCTOR_SETUP_SETUP_H
#define SG_TOOLS_DOCTOR_SETUP_SETUP_H

#include <stdbool.h>
#include <stdio.h>

#include "doctor/doctor.h"

/* Exit codes: printed; something is left out that a person must decide; nothing was printed. */
enum { SETUP_DONE = 0, SETUP_PARTIAL = 1, SETUP_NONE = 3 };

#define SETUP_SHARED "/run/sparkguard/shared"
#define SETUP_CONFIGURATION "/etc/sparkguard/runtime.conf"
#define SETUP_WRAPPERS "/usr/local/lib/sparkguard"

/* setup.c: prints the script that sets up, or the one that undoes. Returns an exit code. */
int setup_print(const struct doctor *doctor, bool is_undo, FILE *stream);
/* Returns the path of the library without the root, or NULL after a message on stderr: not there, or not root's alone
 * to replace. */
char *setup_find_library(const struct doctor *doctor);

/* cdi.c: prints a CDI specification for this machine's library and shared directory. Returns an exit code. */
int setup_print_cdi(struct doctor *doctor, FILE *stream);

/* daemon_json.c: for the script. Reads Docker's daemon.json from a descriptor and prints: "add" it with the guard's
 * runtime as the default, "take" it without, with the default that the file of the other descriptor has, "name" it with
 * a default runtime in any case, "next" the runtime that containers get now, "others" the program and the name of each
 * further runtime. "add" and "take" may be followed by ",NAME=PROGRAM" for each of these that has a wrapper of its own.
 * Returns an exit code, SETUP_NONE after the end of a sentence on stderr. */
enum { SETUP_EARLIER_FD = 3 };
int setup_daemon_json(const char *what, int fd, int earlier_fd, FILE *stream);

#endif
