/*
 * filler.h - memory that is populated only to take it from the machine for a moment.
 *
 * A separate filler process populates it. The filler shares this process's address space, so the pages are resident
 * memory of this process. Stopping this process does not stop the filler. The filler releases everything and ends when
 * this process is gone, or has not been heard of for half a second. That happens when this process is stopped, runs a
 * signal handler, or left the call by longjmp.
 *
 * Where no such process may exist (the program filters system calls, or runs in an emulator), a thread fills instead.
 * Stopping this process then stops the thread, too. A frozen cgroup freezes both.
 *
 * Any thread, one user at a time. The caller holds no lock, and signals are not blocked.
 */
#ifndef SG_PRELOAD_ADMIT_RECLAIM_FILLER_H
#define SG_PRELOAD_ADMIT_RECLAIM_FILLER_H

#include <stdbool.h>
#include <stdint.h>

/* Maps `bytes` of address space that only MADV_POPULATE_WRITE fills (mlockall does not) and that no forked child gets.
 * NULL: no address space. */
char *sg_filler_reserve(uint64_t bytes);

/* Reserves `bytes` and starts the filler. The filler calls `let_go` after it has released all memory; `let_go` may only
 * store words. Returns the number to pass to the functions below; 0: a filler is running, or none can be started. */
uint32_t sg_filler_begin(uint64_t bytes, void (*let_go)(void));

/* Populates `bytes` more, and returns when that is done or after two seconds. 0 bytes: only tells the filler that this
 * process goes on, and does not wait. False: not all bytes were populated, or the filler is gone. */
bool sg_filler_fill(uint32_t number, uint64_t bytes);

/* Releases all populated memory. Returns when that is done, or after five seconds. */
void sg_filler_end(uint32_t number);

/* Ends the filler whichever thread uses it, and kills it after two seconds if it does not end. For a process that is
 * about to change its credentials or to become another program. */
void sg_filler_stop(void);

/* In a forked child there is no filler. */
void sg_filler_atfork_child(void);

#endif
