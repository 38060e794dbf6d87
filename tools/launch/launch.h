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

#include "common/elf.h"
#include "launch/claim.h"
#include "launch/pressure.h"
#include "sparkguard_bounds.h"
#include "sparkguard_options.h"

struct sg_slot;

/* Exit codes, as those of env(1) and timeout(1). */
enum {
    LAUNCH_USAGE = 2,
    LAUNCH_NO_CLAIM = 124,
    LAUNCH_FAILED = 125,
    LAUNCH_NOT_EXECUTABLE = 126,
    LAUNCH_NOT_FOUND = 127
};

/* The summary reports a resident size that exceeds every guarded process by this much, and unguarded processes from
 * this size on. */
#define LAUNCH_UNGUARDED_BYTES (UINT64_C(64) << 20)

/* Facts about the descendants of the launcher, collected while the program runs. */
struct launch_children {
    uint64_t guarded_bytes;   /* largest resident size of a guarded process */
    uint64_t unguarded_bytes; /* largest resident size of an unguarded process, without files; 0: none was seen */
    uint32_t unguarded_pid;
    char unguarded_name[64];
    const char *unguarded_advice; /* why it ran unguarded, and what to do; the end of a sentence that its name begins */
};

struct launch {
    const char *value[SG_OPTION_COUNT]; /* values from the command line, else NULL */
    const char *library;                /* --library */
    const char *library_name;           /* base name of the library's file */
    bool is_quiet;
    const char *set_job;           /* --set: then `program` is what is to be set */
    bool is_set;                   /* `sparkguard set`: the first argument is the job */
    bool is_forced;                /* --force */
    bool is_check;                 /* --check */
    bool is_json;                  /* --json */
    bool is_cuda;                  /* --cuda */
    bool has_hints;                /* --hints */
    uint64_t jail_bytes;           /* --jail; 0: none */
    struct launch_claim claim;     /* --claim and what belongs to it */
    struct launch_helper pressure; /* --on-pressure */
    struct launch_helper refusal;  /* --on-refusal */
    unsigned complaints;           /* number of invalid values */
    char **program;                /* program and arguments, NULL-terminated */

    bool is_new_job; /* the child is the job's first process */
    char job[64];
    char *directory;   /* directory of the segments */
    int jail_words[2]; /* pipe with the messages of systemd-run */
    pid_t child;
    uint64_t child_ticks;
    int64_t started_ns;
    uint64_t oom_kills; /* the kernel's count when the program began; SG_UNKNOWN if unknown */
    int wait_status;
    uint64_t children_bytes; /* largest resident size of the child and of its descendants that were waited for */
    struct launch_children children;
    bool has_no_claim; /* the child was killed while it waited for the claim: it was no program yet */
    bool is_guarded;   /* the program can load the library, and the guard is not disabled */
    bool may_guard;    /* the same, or programs that it starts may load it */
};

/* ---- options.c ---- */

/* Parses the command line up to the program's arguments. Exits 2 on a usage error, 0 after --help. */
void launch_parse(struct launch *launch, int argc, char **argv);
/* Checks the SPARKGUARD_ variables that no option overrides, and warns of unknown names. Counts invalid values in
 * launch->complaints. */
void launch_check_environment(struct launch *launch);
/* Puts the options into the environment, for the child and for the launcher's own modules. Fills job, is_new_job and
 * directory. */
void launch_export(struct launch *launch);

/* ---- subcommand.c: "sparkguard report" ---- */

/* Replaces the first argument where it is a subcommand: "run" and "set" go away, "check" becomes an option, and for
 * report, watch, sweep and doctor this process becomes the tool beside this one. Any other first argument is left as it
 * is. Returns the new number of arguments. Exits 125 after a message on stderr if the tool cannot be started. */
int launch_subcommand(struct launch *launch, int argc, char **argv);
/* What was typed, for messages: "--set", or "set" of `sparkguard set`. */
extern const char *launch_set_name;
/* Returns whether a word is a tool's subcommand with dashes before it, such as "--watch". */
bool launch_subcommand_is_option(const char *word);
/* Returns the subcommand, or the option, that `word` nearly is or is called elsewhere, NULL if there is none. */
const char *launch_subcommand_near(const char *word);

/* ---- library.c ---- */

/* Returns the absolute path of libsparkguard.so, which LD_PRELOAD can hold, or NULL with a sentence in *why. */
char *launch_find_library(const struct launch *launch, char **why);
/* Stores the folder of this tool; the library folder if it is not known. */
void launch_own_folder(char folder[PATH_MAX]);
/* Returns the path of the library beside this tool, else in the library folder; NULL if in neither. `folder` becomes
 * the folder of this tool. */
char *launch_own_library(char folder[PATH_MAX]);
/* Returns whether a file is readable and an ELF file. *is_ours: the file has this tool's architecture. */
bool launch_is_library(const char *path, bool *is_ours);
/* Puts the library first in LD_PRELOAD, before the libraries already named there. Where LD_PRELOAD names it, it stays
 * where it is. Also sets SG_VARIABLE_COMMIT, if it is not set. */
void launch_preload(const char *library);

/* ---- program.c ---- */

/* Why a program cannot be guarded. */
enum launch_obstacle {
    LAUNCH_NO_OBSTACLE,
    LAUNCH_NOWHERE,     /* no such file */
    LAUNCH_UNSTARTABLE, /* the file cannot be executed */
    LAUNCH_PRIVILEGED,  /* set-user-ID, set-group-ID or capabilities: the dynamic linker ignores LD_PRELOAD */
    LAUNCH_FOREIGN,     /* another architecture than the library's */
    LAUNCH_STATIC,      /* no dynamic linker */
    LAUNCH_MUSL,        /* the dynamic linker of musl: beside it the library passes every call through */
    LAUNCH_OBSTACLE_COUNT
};

struct launch_program {
    char *path;             /* the binary that runs in the end; the name as given if it was not found */
    char *script;           /* the script whose interpreter `path` is; NULL: none */
    bool has_no_line;       /* the script names no interpreter: the shell runs it */
    struct elf_facts facts; /* of `path` */
    enum launch_obstacle obstacle;
};

/* Ends of the sentence "FILE ...", for an obstacle. */
extern const char *const launch_obstacle_text[LAUNCH_OBSTACLE_COUNT];

/* Finds the program as execvp(3) does, follows "#!" lines, also through env(1), and looks for an obstacle. Prints
 * nothing. */
void launch_program_judge(const char *name, const char *library, struct launch_program *program);
/* Returns whether a name is that of a file that Python runs, by its suffix. */
bool launch_program_is_python(const char *name);
/* Prints why a program cannot be run, and what was probably meant, in one line on stderr. `failure` is the errno of
 * execvp(3). Returns the exit code: LAUNCH_NOT_FOUND or LAUNCH_NOT_EXECUTABLE. */
int launch_program_say_failed(const char *tool, const char *name, int failure);
/* Returns why the program would run unguarded, after a message on stderr. A program that cannot be started at all has
 * no obstacle: starting it tells. */
enum launch_obstacle launch_program_warn(const char *name, const char *library);

/* ---- directory.c ---- */

/* Returns why the library cannot keep segments in a directory, by the library's own rules; NULL if it can. */
const char *launch_directory_fault(const char *path);

/* Opens each record in a directory of this ABI version that belongs to this user, or to root where `takes_root`, and
 * calls a function with the file and the record's slot. Nobody but its owner writes a record, and who owns a file
 * cannot be forged. */
void launch_each_record(const char *directory, bool takes_root,
                        void (*function)(int fd, const struct sg_slot *slot, void *data), void *data);
/* Reads a part of a record, whole or not at all. */
bool launch_read_at(int fd, size_t offset, void *to, size_t bytes);

/* ---- child.c ---- */

/* Runs the program, forwards signals, and fills child, wait_status and children_bytes. Returns 0, or after a message on
 * stderr the exit code for a program that could not be run. */
int launch_run(struct launch *launch);
/* Ends the launcher with the exit status or the signal of the child. */
void launch_end_like(int wait_status) __attribute__((noreturn));

/* ---- children.c ---- */

/* Makes a thread that will scan /proc for unguarded descendants; called before the program may use up the memory, and
 * once for each program. All signals that the launcher takes are blocked. */
void launch_children_prepare(const struct launch *launch);
/* Lets the scans begin: launch->child runs the program. */
void launch_children_begin(void);
/* Ends the scans and stores in launch->children what they have found. A thread that is stuck in the kernel for longer
 * than 0.2 s is left behind. */
void launch_children_end(struct launch *launch);

/* ---- on_refusal.c: --on-refusal ---- */

/* Starts the helper; job, directory and started_ns must be known. */
void launch_refusal_begin(struct launch *launch);
/* Lets the helper look at the records for a last time, and waits for it, but not for a command that it has started. */
void launch_refusal_end(struct launch *launch);

/* ---- jail.c: --jail ---- */

/* Parses the argument of --jail. Returns false if the argument is neither a size above 0 nor "none". */
bool launch_jail_take(struct launch *launch, const char *text);
/* Returns the memory that percentages refer to: MemTotal less the memory set aside for huge pages; 0: unknown. */
uint64_t launch_machine_bytes(void);
/* Prepares the jail; called in the launcher before fork. Returns false after a message on stderr. */
bool launch_jail_prepare(struct launch *launch);
/* Becomes systemd-run; called in the child in place of exec. The result arrives through failure_pipe. */
void launch_jail_enter(const struct launch *launch, int failure_pipe) __attribute__((noreturn));
/* Waits in the launcher until the child is in the jail. After true, failure_pipe carries the errno of exec as without a
 * jail. Returns false after a message on stderr. */
bool launch_jail_wait(struct launch *launch, int failure_pipe);
/* Becomes the program if systemd-run started this process (first argument --in-jail=); otherwise returns. Call it first
 * in main(). */
void launch_jail_inside(char **argv);

/* ---- inside.c: the launcher as a process under the library ----
 *
 * It executes itself with the library loaded, and calls what the library exports for it (sparkguard_abi.h). */

/* Returns the path of this program, or its name where the path is unknown. */
char *launch_own_path(void);
/* Finds a function that the library exports. *function, a pointer to a function of `size` bytes, becomes NULL in a
 * process without the library: the launcher does not link it. */
void launch_find_export(const char *name, void *function, size_t size);
/* Becomes a shell that runs a command, unguarded: it must not be refused memory now. */
void launch_become_shell(const char *command) __attribute__((noreturn));

/* ---- claim_inside.c, pressure_inside.c: what such a process does. Call them first in main() ---- */

/* Claims and becomes the program if the first argument says so; otherwise returns. */
void launch_claim_inside(char **argv);
/* The first argument of the helper of --on-pressure, with the number of its end of the pipe; the second one is the
 * command, then come the directory of the segments and the hash of the job's name. */
#define LAUNCH_PRESSURE_INSIDE "--in-pressure="
/* Becomes that helper if the first argument says so; otherwise returns. */
void launch_pressure_inside(char **argv);

/* ---- set.c: --set JOB NAME=VALUE... changes the limit, the reserve or the claim of a running job ---- */

/* Exit codes of --set, besides LAUNCH_USAGE and LAUNCH_FAILED. */
enum { SET_DONE = 0, SET_NO_JOB = 1, SET_NOT_ALLOWED = 3, SET_SEVERAL };

/* Changes what launch->program lists (NAME=VALUE, NULL-terminated) for the job launch->set_job. Prints what is in force
 * afterwards, or why nothing was changed. Returns the exit code. */
int launch_set(const struct launch *launch);

/* ---- raise.c: --set JOB claim=SIZE with a larger size than now ----
 *
 * Only the library can decide on it, so the launcher executes itself under the library, as a process of the job. */

/* Raises the claim of a job of this user. Returns 0, or another exit code of --set after a message on stderr. */
int launch_raise(const struct launch *launch, uint64_t bytes);
/* Raises the claim and ends, if the first argument says so; else returns at once. */
void launch_raise_inside(char **argv);

/* ---- bounds.c: the administrator's bounds (/etc/sparkguard.conf) for --set ----
 *
 * The library applies them in any case; the launcher says so instead of setting what would have no effect. */

/* Returns the bounds of a user; a bound that no line sets is not set. Not thread-safe. */
struct sg_bounds launch_bounds_of(uid_t user);
/* Returns whether a job of this user may have this limit (0: it is not set, SG_UNKNOWN: none) and this reserve (0: it
 * is not set); if not, after a message on stderr. Root's --set is bounded as well. Not thread-safe. */
bool launch_bounds_allow(uid_t user, uint64_t limit_bytes, uint64_t reserve_bytes, uint64_t machine_bytes);

/* ---- record.c ---- */

/* Returns a hash of a command line, never 0, by which --claim=auto finds earlier runs. */
uint32_t launch_command_hash(char *const *program);

/* Writes into the child's segment how the child ended, which only its parent knows, and the hash of the command line
 * into all records of the run. */
void launch_record(const struct launch *launch);

/* ---- summary.c ---- */

struct model_process;
/* Returns whether a process belongs to this run of the job: the child, and processes that name the child as the job's
 * first process. */
bool launch_is_of_run(const struct launch *launch, const struct model_process *process);
/* Returns the line that tells on a terminal that the job begins guarded, and with how much memory. NULL: stderr is no
 * terminal, the launcher is quiet, the job had begun, or its program is not guarded. */
char *launch_start_text(const struct launch *launch);
/* Prints the summary of this run of the job, one to eight lines on stderr. */
void launch_summarize(const struct launch *launch);
/* Takes a process into the largest resident size of a run. A process that was killed has not recorded its own: the
 * largest one is then SG_UNKNOWN. */
void launch_take_resident(uint64_t *largest_bytes, const struct model_process *process);
/* Returns how many processes the kernel's out-of-memory killer has ended since boot, or SG_UNKNOWN. */
uint64_t launch_oom_kills(void);

#endif
