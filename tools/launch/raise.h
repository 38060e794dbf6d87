/*
 * raise.h - sparkguard --set JOB claim=SIZE with a larger size than now. Only the library can decide on it, so the
 * launcher executes itself under the library, as a process of the job (inside.h).
 */
#ifndef SG_TOOLS_LAUNCH_RAISE_H
#define SG_TOOLS_LAUNCH_RAISE_H

#include <stdint.h>

struct launch;

/* Raises the claim of a job of this user. Returns 0, or another exit code of --set after a message on stderr. */
int launch_raise(const struct launch *launch, uint64_t bytes);

/* Raises the claim and ends, if the first argument says so; else returns at once. */
void launch_raise_inside(char **argv);

#endif
