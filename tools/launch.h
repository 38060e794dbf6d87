/*
 * launch.h - the parts of the launcher, sparkguard(1): options, library and program, the child, its record, the summary.
 */
#ifndef SPARKGUARD_TOOLS_LAUNCH_H
#define SPARKGUARD_TOOLS_LAUNCH_H

#include <argp.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "sparkguard_options.h"

/* Exit codes of a program that runs programs, as with env(1) and timeout(1). */
enum { LAUNCH_USAGE = 2, LAUNCH_FAILED = 125, LAUNCH_NOT_EXECUTABLE = 126, LAUNCH_NOT_FOUND = 127 };

struct launch {
    const char *value[SG_OPTION_COUNT]; /* given on the command line, else NULL */
    const char *library;                /* --library */
    bool is_quiet;
    uint64_t jail_bytes; /* --jail, 0: none */
    unsigned complaints; /* values that cannot be read */
    char **program;      /* with its arguments, NULL behind the last */

    bool is_new_job; /* the child is the job's first process */
    char job[64];
    char *directory;   /* of the segments */
    int jail_words[2]; /* a pipe: what systemd-run says */
    pid_t child;
    uint64_t child_ticks;
    int64_t started_ns;
    int wait_status;
    bool is_guarded; /* neither does the program keep the library out, nor is that disabled */
};

/* launch_options.c: everything up to the program's name; exits 2 on bad usage, 0 after --help. */
void launch_parse(struct launch *launch, int argc, char **argv);
/* Checks what the environment says where no option overrides it, warns of unknown names. */
void launch_check_environment(struct launch *launch);
/* Puts options into the environment, for the child and for the tool's own modules. */
void launch_export(struct launch *launch);

/* launch_library.c: the absolute path of libsparkguard.so, or NULL after saying why. The caller frees. */
char *launch_find_library(const struct launch *launch);
/* The library beside this tool, else in the library folder; NULL if in neither. `folder` gets the tool's own. */
char *launch_own_library(char folder[PATH_MAX]);
/* Whether a file can be read as a shared library; is_ours: of this tool's architecture. */
bool launch_is_library(const char *path, bool *is_ours);
/* Puts it first in LD_PRELOAD, before what is there; false after saying why. */
bool launch_preload(const char *library);
/* Says in one line if the program cannot be guarded; true if it can, as far as is known. */
bool launch_check_program(const char *program, const char *library);

/* launch_child.c: runs the program, passes signals on, fills child and wait_status. 0, or the exit code where it could
 * not be run (said why). */
int launch_run(struct launch *launch);
/* Ends as the child did. */
void launch_end_like(int wait_status) __attribute__((noreturn));

/* launch_jail.c: --jail. Takes its argument; false if that is no size. */
bool launch_jail_take(struct launch *launch, const char *text);
/* In the launcher, before fork; false after saying why. */
bool launch_jail_prepare(struct launch *launch);
/* In the child, instead of exec: what comes of it goes through the failure pipe. */
void launch_jail_enter(const struct launch *launch, int failure_pipe) __attribute__((noreturn));
/* In the launcher: true when the child is in the jail, and the pipe goes on as without one; false after saying why. */
bool launch_jail_wait(struct launch *launch, int failure_pipe);
/* At the begin of main: where systemd-run has started us, becomes the program; else returns. */
void launch_jail_inside(char **argv);

/* launch_record.c: adds to the child's segment what only its parent has seen: how it ended. */
void launch_record(const struct launch *launch);

/* launch_summary.c: one to five lines on stderr. */
void launch_summarize(const struct launch *launch);

#endif
