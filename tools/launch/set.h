/*
 * set.h - --set JOB NAME=VALUE...: changes the limit, the reserve or the claim of a running job.
 */
#ifndef SG_TOOLS_LAUNCH_SET_H
#define SG_TOOLS_LAUNCH_SET_H

struct launch;

/* Exit codes of --set, besides LAUNCH_USAGE and LAUNCH_FAILED. */
enum { SET_DONE = 0, SET_NO_JOB = 1, SET_NOT_ALLOWED = 3, SET_SEVERAL };

/* Changes what launch->program lists (NAME=VALUE, NULL-terminated) for the job launch->set_job. Prints what is in force
 * afterwards, or why nothing was changed. Returns the exit code. */
int launch_set(const struct launch *launch);

#endif
