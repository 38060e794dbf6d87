/*
 * filler.h - memory that this process populates only to take it from the machine for a moment.
 *
 * A process of its own populates it, which shares this one's memory: so it is this process's resident memory, and yet a
 * stop of this process does not stop the other. It gives everything back, and ends, when this process is gone or has
 * not been heard of for half a second: stopped, in a handler of signals, or in one that jumped out of the call. Where
 * there may be no such process (under a program's own filter of system calls, or an emulator) a thread does it; a stop
 * of this process then stops that, too. A cgroup that is frozen freezes both.
 *
 * Any thread, one user at a time. No lock of others', and signals are open.
 */
#ifndef SG_PRELOAD_ADMIT_FILLER_H
#define SG_PRELOAD_ADMIT_FILLER_H

#include <stdbool.h>
#include <stdint.h>

/* Address space that only MADV_POPULATE_WRITE fills, and no forked child has; NULL: there is none. */
char *sg_filler_reserve(uint64_t bytes);

/* Reserves it. `let_go` is called when all has been given back, by the filling process: it may do no more than store.
 * The number to be told to the functions below; 0: not now, or not here. */
uint32_t sg_filler_begin(uint64_t bytes, void (*let_go)(void));

/* Populates so many bytes more (0: says only that this process goes on). False: not all of it, or there is nobody any
 * more. */
bool sg_filler_fill(uint32_t number, uint64_t bytes);

/* Gives all back; returns when that is done, or after five seconds. */
void sg_filler_end(uint32_t number);

/* The same for whoever uses it, and it ends for certain: before this process changes whom it acts for. */
void sg_filler_stop(void);

/* In a forked child there is none. */
void sg_filler_refork(void);

#endif
