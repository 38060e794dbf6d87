/*
 * lifetime.h - publishes the end of this process: in its segment, its time line and its registry entry.
 */
#ifndef SG_PRELOAD_WATCH_LIFETIME_H
#define SG_PRELOAD_WATCH_LIFETIME_H

#include "sparkguard_abi.h"

/* Records the end of this process. `exit_code`: -1 if there is none. Removes the files if the process leaves nothing
 * worth keeping. Does nothing in a process that did not make the segment (a vfork child). */
void sg_lifetime_end(enum sg_state state, int exit_code);

/* Undoes sg_lifetime_end after exec, or the fork of daemon(3), has failed. */
void sg_lifetime_resume(void);

#endif
