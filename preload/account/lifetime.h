/*
 * lifetime.h - the end of this process in what it published: its segment, its time line and its registry entry.
 */
#ifndef SG_PRELOAD_ACCOUNT_LIFETIME_H
#define SG_PRELOAD_ACCOUNT_LIFETIME_H

#include "sparkguard_abi.h"

/* Marks the end: state, and exit code or -1. Removes the files if the process leaves nothing worth keeping. Does
 * nothing in a process that did not make the segment (a vfork child). */
void sg_lifetime_end(enum sg_state state, int exit_code);

/* Takes back sg_lifetime_end: exec, or the fork of daemon(3), has failed. */
void sg_lifetime_resume(void);

#endif
