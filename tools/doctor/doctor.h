/*
 * doctor.h - the findings of sparkguard-doctor, and functions that its checks share. Single-threaded.
 *
 * A check reads files below `root` and says what it finds; it changes nothing on the machine.
 */
#ifndef SG_TOOLS_DOCTOR_DOCTOR_H
#define SG_TOOLS_DOCTOR_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/style.h"
#include "launch/check/finding.h"
#include "model/model.h"

/* Exit codes, part of the user interface. An UNKNOWN finding counts as a warning. */
enum { DOCTOR_EXIT_FINE = 0, DOCTOR_EXIT_WARNINGS = 1, DOCTOR_EXIT_USAGE = 2, DOCTOR_EXIT_DANGERS = 4 };

extern const char *const doctor_state_name[FINDING_STATE_COUNT];

enum { DOCTOR_TEXT_CAPACITY = 65536 };

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
    struct findings findings;
};

/* examine.c: collects facts about the machine; runs all checks. */
struct doctor *doctor_learn(void);
struct doctor *doctor_examine(void);
int doctor_exit_status(const struct doctor *doctor);

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

/* A check. It registers itself, so that a new one touches its own file and no list:
 * DOCTOR_CHECK(120, check_name, "name", "Why it matters."). The place is that of its finding among those of equal
 * state. A check that says nothing has no finding. The program links every tools/doctor/check_*.c. */
struct doctor_check {
    int place;
    void (*run)(struct doctor *doctor, struct finding *finding);
    const char *id, *why;
};
#define DOCTOR_CHECK(place, function, id, why) \
    static const struct doctor_check function##_registered \
        __attribute__((used, section("doctor_checks"))) = {place, function, id, why}

/* Returns whether the driver is known to keep freed pages of the machine's memory in a pool. */
bool doctor_has_driver_pools(const struct doctor *doctor);

/* Print the findings: for people, as JSON, and the fixes as a shell script. */
void doctor_render_text(const struct doctor *doctor, const struct style *style);
void doctor_render_json(const struct doctor *doctor, FILE *stream);
void doctor_render_script(const struct doctor *doctor, FILE *stream);

#endif
