/*
 * dlsym.h - the interface between entry_points.S and dlsym.c.
 */
#ifndef SG_PRELOAD_HOOKS_DLSYM_H
#define SG_PRELOAD_HOOKS_DLSYM_H

#include "hooks/real.h"

/* What dlsym and dlvsym answer; the result comes in two registers. */
struct sg_dlsym_answer {
    void *found;      /* the answer, which may be NULL; then dlerror() tells of it */
    sg_function next; /* NULL, or the libc's function, which must be asked instead */
};

/* Decide the answers of dlsym and dlvsym. `caller` is the return address of the call. Called from entry_points.S, by
 * any thread. */
struct sg_dlsym_answer sg_dlsym_filter(void *handle, const char *name, const char *unused, const void *caller);
struct sg_dlsym_answer sg_dlsym_filter_version(void *handle, const char *name, const char *version, const void *caller);

/* Return the real dlopen or dlmopen, and the mode to call it with; the result comes in two registers. Called from
 * entry_points.S, by any thread. */
struct sg_dlopen_answer {
    sg_function real;
    uint64_t mode;
};
struct sg_dlopen_answer sg_dlsym_filter_dlopen(const char *file, int mode);
struct sg_dlopen_answer sg_dlsym_filter_dlmopen(long space, const char *file, int mode);

#endif
