/*
 * launch.h - the parts of the launcher, sparkguard(1): options, library, program, child, record, summary.
 */
#ifndef SG_TOOLS_LAUNCH_LAUNCH_H
#define SG_TOOLS_LAUNCH_LAUNCH_H

#include <argp.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "sparkguard_options.h"

/* Exit codes of a program that runs programs, as with env(1) and timeout(1). */
enum { LAUNCH_USAGE = 2, LAUNCH_FAILED = 125, LAUNCH_NOT_EXECUTABLE = 126, LAUNCH_NOT_FOUND = 127 };

/* A resident size that exceeds all guarded processes by this much is reported, and an unguarded process from this
 * size on. */
#define LAUNCH_UNGUARDED_BYTES (UINT64_C(64) << 20)

/* Facts about the descendants, collected while the program ran. */
struct launch_children {
    const char *library_name; /* of the library's file, without folders */
    uint64_t guarded_bytes;   /* the largest resident size of a guarded process */
    uint64_t unguarded_bytes; /* the most that an unguarded process held, without files; 0: none was seen */
    uint32_t unguarded_pid;
    char unguarded_name[64];
    int64_t next_ns; /* when to look again */
};

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
    uint64_t oom_kills; /* of the machine, when the program began; SG_UNKNOWN */
    int wait_status;
    uint64_t children_bytes; /* the kernel's largest resident size of a descendant that was waited for; SG_UNKNOWN */
    struct launch_children children;
    bool is_guarded; /* neither does the program keep the library out, nor is that disabled */
};

/* launch/options.c: everything up to the program's name; exits 2 on bad usage, 0 after --help. */
void launch_parse(struct launch *launch, int argc, char **argv);
/* Checks what the environment says where no option overrides it, warns of unknown names. */
void launch_check_environment(struct launch *launch);
/* Puts options into the environment, for the child and for the tool's own modules. */
void launch_export(struct launch *launch);

/* summary.c: how many processes the kernel's out-of-memory killer has ended since the machine's start, or
 * SG_UNKNOWN. */
uint64_t launch_oom_kills(void);

/* launch/library.c: the absolute path of libsparkguard.so, or NULL after saying why. The caller frees. */
char *launch_find_library(const struct launch *launch);
/* The library beside this tool, else in the library folder; NULL if in neither. `folder` gets the tool's own. */
char *launch_own_library(char folder[PATH_MAX]);
/* Whether a file can be read as a shared library; is_ours: of this tool's architecture. */
bool launch_is_library(const char *path, bool *is_ours);
/* Puts it first in LD_PRELOAD, before what is there; false after saying why. */
bool launch_preload(const char *library);
/* Says in one line if the program cannot be guarded; true if it can, as far as is known. */
bool launch_check_program(const char *program, const char *library);

/* child.c: runs the program, passes signals on, fills child, wait_status and children_bytes.
 * 0, or the exit code where it could not be run (said why). */
int launch_run(struct launch *launch);
/* Ends as the child did. */
void launch_end_like(int wait_status) __attribute__((noreturn));

/* children.c: looks for unguarded descendants if it is time; nanoseconds to the next time, INT64_MAX: never. */
int64_t launch_children_look(struct launch *launch);

/* jail.c: --jail. Takes its argument; false if that is no size. */
bool launch_jail_take(struct launch *launch, const char *text);

/* The memory that percentages are of: the machine's minus the pool of huge pages; 0: unknown. */
uint64_t launch_machine_bytes(void);
/* In the launcher, before fork; false after saying why. */
bool launch_jail_prepare(struct launch *launch);
/* In the child, instead of exec: what comes of it goes through the failure pipe. */
void launch_jail_enter(const struct launch *launch, int failure_pipe) __attribute__((noreturn));
/* In the launcher: true when the child is in the jail, and the pipe goes on as without one; false after saying why. */
bool launch_jail_wait(struct launch *launch, int failure_pipe);
/* At the begin of main: where systemd-run has started us, becomes the program; else returns. */
void launch_jail_inside(char **argv);

/* record.c: adds to the child's segment what only its parent has seen: how it ended. */
void launch_record(const struct launch *launch);

/* summary.c: one to seven lines on stderr. */
void launch_summarize(const struct launch *launch);

#endif
