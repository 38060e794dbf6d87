/*
 * dlsym.h - what entry_points.S, dlsym.c and runtime.c say to each other.
 */
#ifndef SG_PRELOAD_HOOKS_DLSYM_H
#define SG_PRELOAD_HOOKS_DLSYM_H

#include "hooks/real.h"

/* The answer of dlsym: a pointer; SG_DLSYM_ABSENT for NULL; or NULL: ask the libc. Called from entry_points.S. */
void *sg_dlsym_filter(void *handle, const char *name);

#define SG_DLSYM_ABSENT ((void *)-1)

/* Where dlopen and dlmopen are to jump to, and with which mode. Returned in two registers. Called from entry_points.S. */
struct sg_dlopen_answer {
    sg_function real;
    uint64_t mode;
};
struct sg_dlopen_answer sg_dlopen_filter(const char *file, int mode);
struct sg_dlopen_answer sg_dlmopen_filter(long space, const char *file, int mode);

/* A function that lends the runtime function's name to what happens below `real`, or `real` itself if there are more
 * runtimes in the process than we keep apart. */
sg_function sg_runtime_thunk(enum sg_hook hook, sg_function real);

#endif
