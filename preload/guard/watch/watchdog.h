/*
 * watchdog.h - the watchdog: a service thread that checks the machine while the program makes no calls.
 *
 * The watchdog publishes this process's promises, and ends the process if it is the victim (victim.h,
 * SPARKGUARD_WATCHDOG). Processes have one that use CUDA, hold 256 MiB, or are of a family
 * that may hold so much by copies after fork. It reads only /proc and cgroups,
 * allocates nothing, and locks its memory where RLIMIT_MEMLOCK allows.
 *
 * It rests while the program forks. It ends before a fork that counts the program's threads, and is back right after it
 * (hooks/python_fork.h). A forked child whose parent holds 256 MiB gets a watchdog at once. It also ends when no other
 * thread of the program is left.
 */
#ifndef SG_PRELOAD_WATCH_WATCHDOG_H
#define SG_PRELOAD_WATCH_WATCHDOG_H

#include <stdbool.h>

/* Starts the watchdog and the history thread, where this process needs them. Call it after a request, outside all
 * layers and locks. */
void sg_watchdog_consider(void);

/* In a forked child, after set-up: gives a child that inherited much its segment, registry entry and watchdog now. Such
 * a child may grow by copying inherited pages, without any request. Costs 0.2 to 0.8 ms. The heap is not used: in the
 * child of a process with threads another thread's heap lock may be held for ever (only exec is safe there, and an
 * allocator need not handle fork). */
void sg_watchdog_begin_child(void);

/* Around a fork: the watchdog and the history thread rest from hold to let. hold waits until they do, 200 ms and 50 ms
 * at most. */
void sg_watchdog_hold_helpers(void);
void sg_watchdog_let_helpers(void);

/* After sg_watchdog_end_helpers: starts the threads again at once, without waiting for a request. */
void sg_watchdog_resume_helpers(void);

/* Before calls that the library's threads must not see: asks the watchdog and the history thread to
 * end. Waits until the kernel has removed both, 200 ms and 50 ms at most. False: there was none. */
bool sg_watchdog_end_helpers(void);

/* The same before the process changes its credentials: waits up to five seconds until both have ended. A thread that
 * did not end in time once is not waited for again. */
void sg_watchdog_end_helpers_surely(void);

/* In a forked child there is no watchdog. */
void sg_watchdog_atfork_child(void);

#endif
