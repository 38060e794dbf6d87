/*
 * raw_thread.h - a thread of the process that the C library does not know of: made by clone(2), in memory of our own.
 *
 * The state that the C library keeps for threads stays as it was: __libc_single_threaded, thread-local storage,
 * pthread keys, the heap. So a program of one thread goes on as one, and a thread may be begun inside any call of
 * the program, whatever the program holds.
 *
 * The thread has thread-local storage of its own, with room for ours, for errno and for those of the executable and
 * the libraries loaded before the libc (a handler of SIGSYS may run on it). All of it begins as zero. It must call
 * nothing that allocates, nothing of pthread, and no hook. It has all signals blocked but SIGSYS, and the credentials
 * and processors that its maker has at that moment, but never its real-time scheduling: it must not keep the program
 * waiting.
 */
#ifndef SG_PRELOAD_ADMIT_RAW_THREAD_H
#define SG_PRELOAD_ADMIT_RAW_THREAD_H

#include <stdbool.h>
#include <stdint.h>

/* All zero: there is none. */
struct sg_raw_thread {
    uint32_t is_running; /* (atomic, futex) from before it is made; the kernel clears it when the thread has ended */
    uint32_t known; /* (atomic) its number, written by the kernel before it runs, until the kernel counts it no more */
    char *memory;   /* its stack and its thread-local storage, kept for the next one */
    uint64_t bytes;
};

/* Begins it; `run` returns at its end. False: the last one has not ended, or there is no memory or no thread to be
 * had. One at a time. */
bool sg_raw_thread_begin(struct sg_raw_thread *thread, void (*run)(void *), void *argument);

/* The same as a process of its own, a child of this one that only a wait with __WCLONE or __WALL sees, in this one's
 * memory: a stop of this process does not stop it, and it can be killed by itself. False under a filter of the
 * program's own, of system calls (seccomp.h). */
bool sg_raw_thread_begin_apart(struct sg_raw_thread *thread, void (*run)(void *), void *argument);

/* Waits until the kernel counts the thread no more, `most_ms` at most. False: it did not when we came. */
bool sg_raw_thread_wait(struct sg_raw_thread *thread, unsigned most_ms);

/* Takes the end of one that stood apart, and sets `pid`, its number, to 0; or it is to be tried again. */
void sg_raw_thread_reap(uint32_t *pid);

/* In a forked child there is none. */
void sg_raw_thread_refork(struct sg_raw_thread *thread);

#endif
