/*
 * raw_thread.h - raw threads: threads of this process that the C library does not know of. They are made by clone(2)
 * in memory that the library maps itself.
 *
 * The C library's state for threads stays unchanged: __libc_single_threaded, thread-local storage, pthread keys, the
 * heap. A program with one thread therefore continues as such. A raw thread may be started inside any call of the
 * program, whatever locks the program holds.
 *
 * The thread has its own thread-local storage, all zero at first. It holds the library's variables, errno, and those of
 * the executable and of libraries loaded before libc, because a handler of SIGSYS may run on the thread. The thread
 * must not allocate, must not call pthread functions, and must not call hooks.
 *
 * All signals but SIGSYS are blocked. The thread keeps its maker's present credentials and CPU affinity, but never the
 * maker's real-time scheduling, under which it could keep the program waiting.
 */
#ifndef SG_PRELOAD_ADMIT_RECLAIM_RAW_THREAD_H
#define SG_PRELOAD_ADMIT_RECLAIM_RAW_THREAD_H

#include <stdbool.h>
#include <stdint.h>

/* All zero: no thread. */
struct sg_raw_thread {
    uint32_t is_running; /* (atomic, futex) set before the thread is made; the kernel clears it at the thread's end */
    uint32_t tid;        /* (atomic) written by the kernel before the thread runs; 0 once the kernel has removed it */
    char *memory;        /* its stack and thread-local storage, kept for the next thread */
    uint64_t bytes;      /* of memory */
};

/* Starts a thread that calls `run` and ends when that returns. False: the last thread has not ended, or memory or a
 * thread cannot be had. One caller at a time. */
bool sg_raw_thread_begin(struct sg_raw_thread *thread, void (*run)(void *), void *argument);

/* Waits until the kernel has removed the thread, `timeout_ms` at most. False: there was no thread at the time of the
 * call. After a timeout the result is true as well; is_running tells whether the thread has ended. */
bool sg_raw_thread_wait(struct sg_raw_thread *thread, unsigned timeout_ms);

/* In a forked child there is no such thread. */
void sg_raw_thread_atfork_child(struct sg_raw_thread *thread);

#endif
