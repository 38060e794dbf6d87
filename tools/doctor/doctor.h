/*
 * doctor.h - the findings of sparkguard-doctor, and functions that its checks share. Single-threaded.
 *
 * A check reads files below `root` and adds findings; it changes nothing on the machine. Sentences may contain names
 * that other users chose, so renderers escape them. Script text never contains such names. Each check is one function
 * in the list of examine.c. Findings of equal state are shown in the order of that list.
 */
#ifndef SG_TOOLS_DOCTOR_DOCTOR_H
#define SG_TOOLS_DOCTOR_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/style.h"
#include "model/model.h"

/* Exit codes, part of the user interface. An UNKNOWN finding counts as a warning. */
enum { DOCTOR_EXIT_FINE = 0, DOCTOR_EXIT_WARNINGS = 1, DOCTOR_EXIT_USAGE = 2, DOCTOR_EXIT_DANGERS = 4 };

enum doctor_state { DOCTOR_FINE, DOCTOR_UNKNOWN, DOCTOR_WARNING, DOCTOR_DANGER, DOCTOR_STATE_COUNT };
extern const char *const doctor_state_name[DOCTOR_STATE_COUNT];

enum { DOCTOR_FIGURE_CAPACITY = 6, DOCTOR_FINDING_CAPACITY = 64, DOCTOR_TEXT_CAPACITY = 65536 };

struct doctor_figure {
    const char *key; /* with its unit: "swap_total_bytes" */
    int64_t value;   /* INT64_MIN: null */
};

struct doctor_finding {
    const char *id;
    enum doctor_state state;
    char *sentence;
    const char *why;    /* one sentence: why the finding matters */
    char *fix;          /* the fix: a command; NULL if nothing is wrong or no command fixes it */
    const char *script; /* shell code of the fix; NULL: not automated */
    const char *undo;   /* how to undo the script, in words */
    const char *absent; /* what is not here, so that the check does not apply: "no SSH server"; NULL: it applies */
    struct doctor_figure figure[DOCTOR_FIGURE_CAPACITY];
    size_t figure_count;
};

struct doctor_process {
    uint32_t pid, parent_pid;
    char state; /* of proc(5): 'Z' is a zombie */
    bool is_roots;
    char name[64];
};

struct doctor {
    const char *root; /* "" for the machine's own */
    struct model *model;
    char *meminfo;  /* "" where it cannot be read */
    int unified;    /* 1, 0, or -1: not known */
    char *how;      /* by which evidence `unified` was determined */
    bool is_forced; /* SPARKGUARD_UNIFIED overrides the evidence */
    bool has_driver;
    bool has_gpu;       /* false: the PCI bus can be read and has no NVIDIA device, and no driver is loaded */
    bool is_contained;  /* this is a container: the machine's services and boot belong to its host */
    bool has_processes; /* /proc could be listed */
    struct doctor_process *processes;
    size_t process_count;
    struct doctor_finding finding[DOCTOR_FINDING_CAPACITY];
    size_t count;
};

/* examine.c: collects facts about the machine; runs all checks. */
struct doctor *doctor_learn(void);
struct doctor *doctor_examine(void);
size_t doctor_count(const struct doctor *doctor, enum doctor_state state);
int doctor_exit_status(const struct doctor *doctor);

/* Adds a finding with a sentence formatted as by printf. */
struct doctor_finding *doctor_add(struct doctor *doctor, const char *id, enum doctor_state state, const char *format,
                                  ...) __attribute__((format(printf, 4, 5)));
void doctor_figure(struct doctor_finding *finding, const char *key, uint64_t value); /* SG_UNKNOWN: null */
void doctor_figure_signed(struct doctor_finding *finding, const char *key, int64_t value);
/* Adds a fine finding of a check that does not apply here. */
struct doctor_finding *doctor_add_absent(struct doctor *doctor, const char *id, const char *absent);

/* Reads a text file below the root. Returns its length, or -errno. */
long doctor_read(const struct doctor *doctor, const char *path, char *text, size_t capacity);
/* Reads a file with one whole number, or with "max", which becomes INT64_MAX. Returns false if there is no number. */
bool doctor_read_number(const struct doctor *doctor, const char *path, int64_t *value);
bool doctor_exists(const struct doctor *doctor, const char *path);
/* Returns a figure of /proc/meminfo, converted from kB to bytes; SG_UNKNOWN if absent. */
uint64_t doctor_meminfo(const struct doctor *doctor, const char *key);

/* Returns whether, as far as is known, a job can freeze the machine with device memory. */
bool doctor_is_at_risk(const struct doctor *doctor);
/* Returns the first process with this name, or NULL. Anybody can name a process so. */
const struct doctor_process *doctor_process_named(const struct doctor *doctor, const char *name);
/* Returns the first process with this name that root runs, or that is in the system's unit of this name; or NULL. */
const struct doctor_process *doctor_daemon_named(const struct doctor *doctor, const char *name);

/* Collect facts before any check runs. facts.c: meminfo and processes. check_cuda.c: driver and unified memory. */
void doctor_learn_machine(struct doctor *doctor);
void doctor_learn_unified(struct doctor *doctor);

/* systemd_units.c: reads the value of a key of a systemd unit from the unit's file and drop-ins. */
enum doctor_unit { DOCTOR_UNIT_ABSENT, DOCTOR_UNIT_UNREADABLE, DOCTOR_UNIT_UNSET, DOCTOR_UNIT_SET };
enum doctor_unit doctor_unit_value(const struct doctor *doctor, const char *unit, const char *key, char value[64]);

/* A check. It registers itself, so that a new one touches its own file and no list: DOCTOR_CHECK(120, check_name). The
 * place is that of its finding among those of equal state. The program links every tools/doctor/check_*.c. */
struct doctor_check {
    int place;
    void (*run)(struct doctor *doctor);
};
#define DOCTOR_CHECK(place, function) \
    static const struct doctor_check function##_registered \
        __attribute__((used, section("doctor_checks"))) = {place, function}

/* Returns whether the driver is known to keep freed pages of the machine's memory in a pool. */
bool doctor_has_driver_pools(const struct doctor *doctor);

/* Print the findings: for people, as JSON, and the fixes as a shell script. */
void doctor_render_text(const struct doctor *doctor, const struct style *style);
void doctor_render_json(const struct doctor *doctor, FILE *stream);
void doctor_render_script(const struct doctor *doctor, FILE *stream);

#endif
