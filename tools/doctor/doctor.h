/*
 * doctor.h - sparkguard-doctor's model: what was found, and what the checks share.
 *
 * A check looks at files below `root` and adds findings; it changes nothing. Sentences may hold names that others made
 * up: renderers escape them. What goes into the script never holds any. Each check is one function of the list in
 * examine.c, which also is the order within a state.
 */
#ifndef SG_TOOLS_DOCTOR_DOCTOR_H
#define SG_TOOLS_DOCTOR_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/style.h"
#include "model/model.h"

/* Exit codes, part of the interface. What cannot be known is not known to be fine: as a warning. */
enum { DOCTOR_EXIT_FINE = 0, DOCTOR_EXIT_WARNINGS = 1, DOCTOR_EXIT_USAGE = 2, DOCTOR_EXIT_DANGERS = 4 };

enum doctor_state { DOCTOR_FINE, DOCTOR_UNKNOWN, DOCTOR_WARNING, DOCTOR_DANGER, DOCTOR_STATE_COUNT };
extern const char *const doctor_state_name[DOCTOR_STATE_COUNT];

enum { DOCTOR_FIGURE_CAPACITY = 6, DOCTOR_FINDING_CAPACITY = 32, DOCTOR_TEXT_CAPACITY = 65536 };

struct doctor_figure {
    const char *key; /* with its unit: "swap_total_bytes" */
    int64_t value;   /* INT64_MIN: null */
};

struct doctor_finding {
    const char *id;
    enum doctor_state state;
    char *sentence;
    const char *why;    /* it matters: one sentence */
    char *mend;         /* a command, NULL where there is nothing to mend or no command for it */
    const char *script; /* shell that does it, NULL: a person has to */
    const char *undo;   /* of the script, in words */
    struct doctor_figure figure[DOCTOR_FIGURE_CAPACITY];
    size_t figure_count;
};

struct doctor_process {
    uint32_t pid, parent_pid;
    char state; /* of proc(5): 'Z' is a zombie */
    char name[64];
};

struct doctor {
    const char *root; /* "" for the machine's own */
    struct model *model;
    char *meminfo;  /* "" where it cannot be read */
    int unified;    /* 1, 0, or -1: not known */
    char *how;      /* that was found */
    bool is_forced; /* by SPARKGUARD_UNIFIED, against what is known */
    bool has_driver;
    bool has_processes; /* /proc could be listed */
    struct doctor_process *processes;
    size_t process_count;
    struct doctor_finding finding[DOCTOR_FINDING_CAPACITY];
    size_t count;
};

/* examine.c: runs all checks. */
struct doctor *doctor_examine(void);
void doctor_free(struct doctor *doctor);
size_t doctor_count(const struct doctor *doctor, enum doctor_state state);
int doctor_exit_status(const struct doctor *doctor);

/* Adds a finding. */
struct doctor_finding *doctor_add(struct doctor *doctor, const char *id, enum doctor_state state, const char *format,
                                  ...) __attribute__((format(printf, 4, 5)));
void doctor_figure(struct doctor_finding *finding, const char *key, uint64_t value); /* SG_UNKNOWN: null */
void doctor_figure_signed(struct doctor_finding *finding, const char *key, int64_t value);

/* Reads a file below the root: its length, or -errno. */
long doctor_read(const struct doctor *doctor, const char *path, char *text, size_t room);
/* A file that holds one whole number, or "max", which is INT64_MAX; false where there is none. */
bool doctor_read_number(const struct doctor *doctor, const char *path, int64_t *value);
bool doctor_exists(const struct doctor *doctor, const char *path);
/* A figure of /proc/meminfo that is given in kB, in bytes; SG_UNKNOWN where it is not there. */
uint64_t doctor_meminfo(const struct doctor *doctor, const char *key);

/* Whether a job can freeze the machine with device memory, as far as is known. */
bool doctor_is_at_risk(const struct doctor *doctor);
/* The first process of that name, NULL if none. */
const struct doctor_process *doctor_process_named(const struct doctor *doctor, const char *name);

/* facts.c: meminfo and processes; check_cuda.c: driver, and whether memory is unified. Before any check. */
void doctor_learn_machine(struct doctor *doctor);
void doctor_learn_unified(struct doctor *doctor);

/* systemd_units.c: a key of a systemd unit, from its file and drop-ins. */
enum doctor_unit { DOCTOR_UNIT_ABSENT, DOCTOR_UNIT_UNREADABLE, DOCTOR_UNIT_UNSET, DOCTOR_UNIT_SET };
enum doctor_unit doctor_unit_value(const struct doctor *doctor, const char *unit, const char *key, char value[64]);

/* The checks. */
void doctor_check_memory(struct doctor *doctor);
void doctor_check_page_cache(struct doctor *doctor);
void doctor_check_huge_pages(struct doctor *doctor);
void doctor_check_fragmentation(struct doctor *doctor);
void doctor_check_swap(struct doctor *doctor);
void doctor_check_swap_at_boot(struct doctor *doctor);
void doctor_check_swappiness(struct doctor *doctor);
void doctor_check_ssh_oom(struct doctor *doctor);
void doctor_check_ssh_memory(struct doctor *doctor);
void doctor_check_oom_score(struct doctor *doctor);
void doctor_check_jail(struct doctor *doctor);
void doctor_check_earlyoom(struct doctor *doctor);
void doctor_check_oomd(struct doctor *doctor);
void doctor_check_zombies(struct doctor *doctor);
void doctor_check_leftovers(struct doctor *doctor);
void doctor_check_unguarded(struct doctor *doctor);
void doctor_check_driver(struct doctor *doctor);
void doctor_check_driver_pools(struct doctor *doctor);
void doctor_check_toolkit(struct doctor *doctor);
void doctor_check_architecture(struct doctor *doctor);
void doctor_check_unified(struct doctor *doctor);
void doctor_check_library(struct doctor *doctor);
void doctor_check_ledger(struct doctor *doctor);
void doctor_check_history(struct doctor *doctor);
void doctor_check_settings(struct doctor *doctor);

/* What came of it: for people, for programs, as a shell script. */
void doctor_render_text(const struct doctor *doctor, const struct style *style);
void doctor_render_json(const struct doctor *doctor, FILE *stream);
void doctor_render_script(const struct doctor *doctor, FILE *stream);

#endif
