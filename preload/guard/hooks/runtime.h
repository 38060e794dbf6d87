/*
 * runtime.h - the functions of CUDA runtimes that a program asked for by name.
 */
#ifndef SG_PRELOAD_HOOKS_RUNTIME_H
#define SG_PRELOAD_HOOKS_RUNTIME_H

#include "hooks/real.h"

/* Returns a function that calls `real`, a function of a CUDA runtime, and records its name as the program's call for
 * the duration. Returns `real` itself if the process has more runtimes than are told apart. Any thread. */
sg_function sg_runtime_thunk(enum sg_hook hook, sg_function real);

#endif
