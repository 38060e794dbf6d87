/*
 * watchdog.h - a thread of this process that looks when nobody calls: it publishes what is promised, and ends the process if
 * it is the one that has to go (rescue.h, SPARKGUARD_WATCHDOG).
 *
 * Exists only in processes that use CUDA or hold 256 MiB. It does no file I/O but on /proc and cgroups, allocates nothing,
 * and its memory is locked where RLIMIT_MEMLOCK allows. It ends before fork, since
 * Python warns about threads there, and comes back with a request a second later; in a forked child with the first. It ends when no other thread of the program is left.
 */
#ifndef SG_WATCHDOG_H
#define SG_WATCHDOG_H

/* Starts it if there is reason to. Behind a request, outside all layers and locks. */
void sg_watchdog_consider(void);

/* Before a fork: asks it to end, and waits a moment until it does nothing any more. */
void sg_watchdog_stop(void);

/* In a forked child there is none. */
void sg_watchdog_refork(void);

#endif
