/*
 * dlsym.h - the interface between entry_points.S and dlsym.c.
 */
#ifndef SG_PRELOAD_HOOKS_DLSYM_H
#define SG_PRELOAD_HOOKS_DLSYM_H

#include "hooks/real.h"

/* Decides the answer of dlsym. Returns the pointer to answer, SG_DLSYM_ABSENT to answer NULL, or NULL to ask the libc's
 * dlsym. Called from entry_points.S, by any thread. */
void *sg_dlsym_filter(void *handle, const char *name);

#define SG_DLSYM_ABSENT ((void *)-1)

/* Return the real dlopen or dlmopen, and the mode to call it with; the result comes in two registers. Called from
 * entry_points.S, by any thread. */
struct sg_dlopen_answer {
    sg_function real;
    uint64_t mode;
};
struct sg_dlopen_answer sg_dlsym_filter_dlopen(const char *file, int mode);
struct sg_dlopen_answer sg_dlsym_filter_dlmopen(long space, const char *file, int mode);

#endif
