/*
 * lock.h - a small futex lock for the slow paths of one process.
 *
 * All signals but SIGSYS are blocked while it is held (not while it is waited for, unless hold_signals was called):
 * a handler on the holder's thread can neither deadlock on it nor be parked inside it by a stop-the-world collector
 * (Boehm, the JVM) while others wait. Nothing under it allocates through a hook, blocks without bound, or may fault.
 *
 * No lock is held across a fork (lifecycle.c), nor where code outside the library can wait. Processes never share a
 * lock: a forked child resets it, and forgets what the lock guards if another thread held it.
 */
#ifndef SG_PRELOAD_BASE_LOCK_H
#define SG_PRELOAD_BASE_LOCK_H

#include <stdbool.h>
#include <stdint.h>

struct sg_lock {
    uint32_t word; /* 0 free, 1 held, 2 held and somebody waits */
};

struct sg_lock_state {
    bool is_held;
};

void sg_lock_acquire(struct sg_lock *lock, struct sg_lock_state *state);
void sg_lock_release(struct sg_lock *lock, const struct sg_lock_state *state);

/* Signals stay blocked beyond the locks of this thread, until they are let go of: where what a lock guards is half done
 * when it is released, and a handler that leaves by a longjmp would leave it so. Under a lock it costs no system call.
 * Pairs, which nest. */
void sg_lock_hold_signals(void);
void sg_lock_let_signals(void);

/* While they are blocked: one of them has come that would be taken. */
bool sg_lock_is_signal_due(void);

/* As acquire, but gives up after `timeout_ns`: false, and nothing is held or blocked. */
bool sg_lock_acquire_within(struct sg_lock *lock, struct sg_lock_state *state, uint64_t timeout_ns);

/* In a forked child: whoever held it does not exist here. */
void sg_lock_reset(struct sg_lock *lock);

#endif
