/*
 * trim.h - lets glibc's heap give freed memory back before a request of this process, or of another one of the same
 * user, is refused for the reserve.
 *
 * glibc keeps what programs free: in the middle of an arena, and in the arenas of other threads. malloc_trim gives it
 * back, but takes the locks of all arenas, and the thread that asks may hold one: its request may come from a signal
 * handler that interrupted malloc. Another thread may hold one and not go on before this one does, as when a collector
 * has stopped it. Therefore a raw thread calls malloc_trim, and nobody waits for that longer than a second.
 *
 * A process that never had a second thread has a heap without locks. There the thread that asks calls malloc_trim
 * itself, unless it runs a signal handler, which may have interrupted the heap (stack.h). Nobody else asks such a
 * heap.
 */
#ifndef SG_PRELOAD_ADMIT_RECLAIM_TRIM_H
#define SG_PRELOAD_ADMIT_RECLAIM_TRIM_H

#include <stdbool.h>
#include <stdint.h>

/* Tells that the heap of this process is glibc's. Before that nothing is done. Any thread. */
void sg_trim_set_heap(void);

/* Lets the heap give back what it can, if its free memory could cover `missing_bytes`; at most once a second. True: it
 * has given some back, so the request may be judged again. Any thread, also in signal handlers, without a lock. */
bool sg_trim_heap(uint64_t missing_bytes);

/* On the watchdog's thread, each round: answers a question of another process for memory (givers.h) by letting the heap
 * give back what it can. Waits for nothing. */
void sg_trim_answer(void);

/* On the watchdog's thread, once a second: shows in this process's entry whether its heap may have much to give. */
void sg_trim_show(void);

#endif
