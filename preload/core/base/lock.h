/*
 * lock.h - a futex lock for the slow paths of one process.
 *
 * All signals but SIGSYS are blocked while the lock is held. They are not blocked while a thread waits for the lock,
 * unless that thread has called sg_lock_hold_signals. Without blocked signals, two failures are possible: a handler on
 * the holder's thread would deadlock on the lock, and a stop-the-world collector (Boehm, the JVM) could stop the holder
 * while other threads wait.
 * Code under a lock must not allocate through a hook, block without bound, or fault.
 *
 * No lock is held across a fork (lifecycle.c), or while code outside the library may wait. Processes never share a
 * lock. A forked child resets each lock; if another thread of the parent held it, the child forgets the data it
 * protects.
 *
 * Any thread, also in signal handlers.
 */
#ifndef SG_PRELOAD_BASE_LOCK_H
#define SG_PRELOAD_BASE_LOCK_H

#include <stdbool.h>
#include <stdint.h>

struct sg_lock {
    uint32_t word; /* 0 free, 1 held, 2 held and there may be waiting threads */
};

struct sg_lock_state {
    bool is_held;
};

/* Waits for the lock without limit, and sets *state for sg_lock_release. Not recursive. */
void sg_lock_acquire(struct sg_lock *lock, struct sg_lock_state *state);

/* Releases the lock and wakes one waiting thread. Does nothing if *state says that the lock was not acquired. */
void sg_lock_release(struct sg_lock *lock, const struct sg_lock_state *state);

/* Block and unblock signals in this thread beyond its locks. Use them where a lock is released in the middle of a
 * change: a handler that left by longjmp would leave the change half done. Pairs may be nested. Under a lock,
 * hold_signals makes no system call. */
void sg_lock_hold_signals(void);
void sg_lock_let_signals(void);

/* As sg_lock_acquire, but gives up after `timeout_ns`: then false, the lock is not held and signals are not blocked. */
bool sg_lock_acquire_within(struct sg_lock *lock, struct sg_lock_state *state, uint64_t timeout_ns);

/* In a forked child: frees the lock. Its holder may have been a thread that exists only in the parent. */
void sg_lock_reset(struct sg_lock *lock);

#endif
