/*
 * watchdog.h - a thread of this process that looks when nobody calls: it publishes what is promised, and ends the
 * process if it is the one that has to go (victim.h, SPARKGUARD_WATCHDOG).
 *
 * Exists only in processes that use CUDA or hold 256 MiB. It does no file I/O but on /proc and cgroups, allocates
 * nothing, and its memory is locked where RLIMIT_MEMLOCK allows. It ends before fork, since Python warns about threads
 * there, and comes back with a request a second later; the child has one of its own at once. It ends when no other
 * thread of the program is left.
 */
#ifndef SG_PRELOAD_WATCH_WATCHDOG_H
#define SG_PRELOAD_WATCH_WATCHDOG_H

#include <stdbool.h>

/* Starts it, and the history's helper, if there is reason to. Behind a request, outside all layers and locks. */
void sg_watchdog_consider(void);

/* In a forked child, when it has begun: whoever inherited enough may grow by copying it, without any request, so it
 * gets its segment, its registry entry and its watchdog now. Asks the heap for nothing: in the child of a process with
 * threads its lock may be held for ever (only exec is safe there, and an allocator need not take part in fork). Costs
 * the child 0.2 to 0.8 ms. */
void sg_watchdog_begin_child(void);

/* Before a fork, and before other calls that only a process without threads of ours may make: asks the watchdog and
 * the history's helper to end, and waits a moment until the kernel counts neither. False: there was none. */
bool sg_watchdog_end_helpers(void);

/* The same before the process changes whom it acts for: waits until they have ended, up to five seconds. A helper that
 * was waited for in vain is not waited for again. */
void sg_watchdog_end_helpers_surely(void);

/* In a forked child there is none. */
void sg_watchdog_refork(void);

#endif
