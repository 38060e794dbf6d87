/*
 * need.h - sparkguard-doctor --need SIZE: a gate in front of a command. It waits until a request of that size would be
 * granted, and says meanwhile which processes hold memory, first of all those that an earlier job left behind.
 * Single-threaded.
 *
 * The gate takes nothing: what it saw may be gone when the command asks for it.
 */
#ifndef SG_TOOLS_DOCTOR_NEED_NEED_H
#define SG_TOOLS_DOCTOR_NEED_NEED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "sparkguard_options.h"

/* Exit codes, part of the user interface: those of env(1) and timeout(1) for the command. */
enum {
    NEED_EXIT_ENOUGH = 0,
    NEED_EXIT_NEVER = 1,   /* this machine, or the cgroup, cannot have that much */
    NEED_EXIT_UNKNOWN = 3, /* the kernel's figures cannot be read, or the output cannot be written */
    NEED_EXIT_LATE = 124,
    NEED_EXIT_NOT_EXECUTABLE = 126,
    NEED_EXIT_NOT_FOUND = 127,
};

/* No end of the wait. */
#define NEED_ENDLESS INT64_MAX

struct need_request {
    struct sg_size size;
    int64_t wait_ns; /* NEED_ENDLESS: without end */
    bool is_json;
    char **command;                 /* NULL: none */
    void (*inherited_sigpipe)(int); /* what the command gets back */
};

/* ---- gate.c: when to measure again, and when there is enough ---- */

struct need_gate {
    uint64_t need_bytes;
    int64_t start_ns, wait_ns;
    unsigned looks;
    bool was_enough; /* at the last measurement */
};

enum need_verdict { NEED_ENOUGH, NEED_AGAIN, NEED_LATE };

/* Judges one measurement: `free_bytes` would be granted at `now_ns`. For NEED_AGAIN, *pause_ns becomes the time until
 * the next measurement. Enough at the first one is enough; after a wait it takes two in succession, because a job that
 * restarts gives its memory back for a moment. */
enum need_verdict need_gate_look(struct need_gate *gate, uint64_t free_bytes, int64_t now_ns, bool is_under_pressure,
                                 int64_t *pause_ns);

/* ---- holders.c: who holds memory ---- */

enum need_kind { NEED_LEFTOVER, NEED_FILE, NEED_LARGE };

struct need_holder {
    enum need_kind kind;
    uint32_t pid; /* 0: a file */
    uint64_t bytes;
    char user[33];
    char *name;
    const char *why; /* "its launcher has ended" */
    char *end;       /* the command that ends it; never run */
};

enum { NEED_HOLDER_CAPACITY = 12 };

struct need_holders {
    struct need_holder at[NEED_HOLDER_CAPACITY];
    size_t count;
};

/* Finds leftovers first, then large processes, each by size. */
void need_holders_find(struct need_holders *holders);

/* ---- need.c ---- */

/* Waits, then becomes the command if there is one. Returns the exit status. */
int need_run(const struct need_request *request);

#endif
