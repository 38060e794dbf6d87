/*
 * seccomp.h - whether a filter of system calls (seccomp) may end this process for a call of ours.
 *
 * A filter that lists what is allowed seldom knows what few programs need: neither systemd's @system-service nor
 * Chromium's knows mincore. What it does about other calls cannot be asked: trying is fatal. So under a filter,
 * whichever it is, we keep to calls that everybody's allow, or answer with an error.
 */
#ifndef SG_PRELOAD_BASE_SECCOMP_H
#define SG_PRELOAD_BASE_SECCOMP_H

#include <stdbool.h>

/* A look at /proc/self/status, about 5 us; nothing once there is a filter, for filters stay. Silence means a sandbox.
 * Any thread. */
bool sg_seccomp_is_on(void);

/* Whether a filter may end this process for making another one: one that the program set up (no_new_privs). A
 * container's, which its administrator set up, knows that programs fork. */
bool sg_seccomp_bars_processes(void);

#endif
