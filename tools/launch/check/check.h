/*
 * check.h - sparkguard --check: says whether a program would be guarded here, by trying it. Single-threaded.
 *
 * Each subject is one line: what was found, and what to do about it. Nothing of the user's program runs. Two probes run
 * under the library: one with the user's options, which shows where statistics are kept, and one under a small limit,
 * which shows that requests are refused and counted. With --cuda a third one alone, which takes memory of the GPU.
 */
#ifndef SG_TOOLS_LAUNCH_CHECK_CHECK_H
#define SG_TOOLS_LAUNCH_CHECK_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "common/style.h"
#include "launch/check/finding.h"
#include "launch/launch.h"
#include "model/model.h"

/* Exit codes of --check, part of the user interface. With --cuda: all that matters is proved, something is disproved,
 * not all could be told. */
enum { CHECK_EXIT_GUARDED = 0, CHECK_EXIT_UNGUARDED = 1, CHECK_EXIT_UNKNOWN = 3 };

struct check {
    const struct launch *launch;
    char *library; /* NULL: not found */
    struct launch_program program;
    bool has_program;
    char *loaded; /* the files that the program's dynamic linker loads, one a line; NULL: they were not looked for */
    char version[32];      /* of the library, by a probe's record; "": unknown */
    const char *verdict;   /* of --cuda: the last sentence; NULL: whether the program would be guarded */
    uint32_t driver_facts; /* of --cuda: as in struct sg_machine */
    struct findings findings;
};

/* ---- answer.c: what a probe finds out about itself, and says through a pipe ---- */

enum check_entry { CHECK_EXPORT, CHECK_DLSYM, CHECK_PROC_ADDRESS, CHECK_ENTRY_COUNT };

struct check_answer {
    bool is_active;
    bool is_counted;        /* a block was granted, and appeared in the probe's own figures if it is limited */
    bool is_malloc_refused; /* 64 MiB under a limit of 32 MiB */
    bool is_mmap_refused;   /* likewise */
    bool is_hooked[CHECK_ENTRY_COUNT]; /* the ways to the driver that lead through the guard */
    char driver[256];                  /* path of libcuda.so.1; "": it could not be loaded */
    char driver_fault[256];            /* why libcuda.so.1 could not be loaded; "": there is none */
    /* Of the probe that measures: */
    char device[64]; /* name of the GPU; "": the driver knows none */
    int is_integrated, cuda_version;
    char failed_call[32]; /* the first call that failed; "": none */
    int error;            /* its answer; -1: the driver has no such function */
};

enum check_probe {
    CHECK_PROBE_PLAIN,   /* holds a little, and looks for the CUDA driver */
    CHECK_PROBE_LIMITED, /* asks for more than its limit */
    CHECK_PROBE_CUDA,    /* takes and frees memory of the GPU */
};

#define CHECK_MEASURE_BYTES ((size_t)256 << 20)

/* measure.c: the work of CHECK_PROBE_CUDA. */
void check_measure(struct check_answer *answer);

#define CHECK_INSIDE_OPTION "--in-check="

/* Becomes a probe if the first argument says so; otherwise returns. Call it first in main(). */
void check_answer_inside(char **argv);

/* ---- trial.c: runs a program that may hang, and reads what it says ---- */

struct check_variable {
    const char *name, *value; /* a NULL value removes the variable; a NULL name ends a list */
};

struct check_trial {
    pid_t pid; /* 0: none */
    int words; /* memory file with stdout and stderr */
    int answers, hold;
    int64_t patience_ns; /* how long it may take to answer, and to end; 10 s unless it is changed */
};

/* Starts this tool as a probe, with the library preloaded. Returns false on failure; check_trial_end() is due in any
 * case. */
bool check_trial_start_probe(struct check_trial *trial, const char *library, enum check_probe kind,
                             const struct check_variable *variables);
/* Waits for the probe's answer; the probe stays. Returns false if none comes in time. */
bool check_trial_hear(struct check_trial *trial, struct check_answer *answer);
/* Returns what the program has printed so far. */
char *check_trial_words(const struct check_trial *trial);
/* Lets the program end, ends it if it does not in time, and returns what it printed. *status becomes its wait
 * status. */
char *check_trial_end(struct check_trial *trial, int *status);

/* ---- lines.c ---- */

/* Adds a line: its subject, its state, what to do (NULL: nothing), and a sentence formatted as by printf. */
#define check_add(check, id, ...) finding_say(finding_add(&(check)->findings, id), __VA_ARGS__)

bool check_is_guarded(const struct check *check);
void check_render_text(const struct check *check, const struct style *style);
void check_render_json(const struct check *check, FILE *stream);

/* ---- loads.c: what the dynamic linker would load, by the files' tables; nothing is run ---- */

struct check_loads {
    char *fault;     /* why the program, or the library in it, would not be loaded; NULL: it would */
    bool is_library; /* the fault is the library's */
    char *auditor;   /* the first auditor that a file names; NULL: none */
};

/* Finds the files that the program loads with the library preloaded, and stores them in check->loaded. */
void check_loads_find(struct check *check, struct check_loads *loads);
/* Returns whether an entry of LD_PRELOAD would be found. */
bool check_loads_has(const struct check *check, const char *entry);

/* ---- loading.c: the program, the library, the dynamic linker, other preloaded libraries ---- */

void check_loading_library(struct check *check);
void check_loading_program(struct check *check);
void check_loading_linker(struct check *check);
void check_loading_others(struct check *check);

/* ---- guarding.c: what the probes show ---- */

/* Adds the lines about decisions, the place of statistics, sharing and the CUDA driver. */
void check_guarding(struct check *check);
/* Returns the record of a probe that runs; NULL if there is none. */
const struct model_process *check_find_probe(const struct model *model, pid_t probe);

/* ---- facts.c: --cuda ---- */

/* Measures what is assumed of the driver, adds a line for each fact, and returns the exit status. */
int check_facts(struct check *check);

/* ---- surroundings.c: cgroups, history, defaults, options ---- */

void check_surroundings_cgroups(struct check *check);
void check_surroundings_history(struct check *check);
void check_surroundings_defaults(struct check *check);
void check_surroundings_options(struct check *check);

/* ---- check.c ---- */

/* Runs all checks, prints them, and returns the exit status. launch_parse() has filled `launch`. */
int check_run(struct launch *launch);

#endif
