/*
 * history.h - the history: copies of this process's segment and time line in SPARKGUARD_HISTORY, at most 5 s old, which
 * survive the process and a power cut.
 *
 * A service thread of its own (service_thread.h) writes them, in processes that leave evidence
 * (sg_segment_is_evidence). The disk's file system may block for any time. Other threads therefore wait for the service
 * thread only for a moment, before fork and at the process's end. The thread has its own table of descriptors: the
 * program cannot close its descriptors, and they take none of the program's numbers.
 *
 * Regular copies pause while usable memory is below the reserve (is_memory_short in history.c).
 */
#ifndef SG_PRELOAD_WATCH_HISTORY_H
#define SG_PRELOAD_WATCH_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

/* Starts the history thread, if this process needs one. Call it after a request, outside all layers and locks. */
void sg_history_consider(void);

/* Has the final record saved, and waits for that 100 ms at most. Call it after the record was marked with the process's
 * end. `may_begin`: start the thread if it is not running; false in a signal handler. */
void sg_history_end(bool may_begin);

/* Has the record saved soon, and waits for nothing. Call it when a process goes on whose end was saved: its exec
 * failed. */
void sg_history_ask(void);

/* Asks the history thread to end, and waits for that 50 ms at most. False: there was none. */
bool sg_history_stop(void);

/* Before a fork: waits until the history thread is at rest (service_thread.h), 50 ms at most. */
void sg_history_await_rest(void);

/* After sg_history_stop: starts the thread again, if this process needs one. */
void sg_history_resume(void);

/* After sg_history_stop: waits for the thread's end until `until_ns` (CLOCK_MONOTONIC). */
void sg_history_await(uint64_t until_ns);

/* In a forked child there is no history thread, and nothing was saved. */
void sg_history_atfork_child(void);

#endif
