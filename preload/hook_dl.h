/*
 * hook_dl.h - what dlsym.S, hook_dl.c and hook_runtime.c say to each other.
 */
#ifndef SG_HOOK_DL_H
#define SG_HOOK_DL_H

#include "real.h"

/* What dlsym is to answer: a pointer; SG_DLSYM_ABSENT for NULL; or NULL: ask the libc. Called from dlsym.S. */
void *sg_dlsym_filter(void *handle, const char *name);

#define SG_DLSYM_ABSENT ((void *)-1)

/* A function that lends the runtime function's name to what happens below `real`, or `real` itself if there are more
 * runtimes in the process than we keep apart. */
sg_function sg_runtime_thunk(enum sg_hook hook, sg_function real);

#endif
