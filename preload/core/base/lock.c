/*
 * lock.c - see base/lock.h. The protocol is the classic three-state futex mutex (Drepper, "Futexes Are Tricky",
 * mutex2).
 */
#include "base/lock.h"

#include "base/atomics.h"
#include "base/clock.h"
#include "base/syscall.h"

#include <linux/futex.h>
#include <signal.h>

/* Signals are blocked from a thread's first lock until its last. A handler that interrupts this bookkeeping itself,
 * while depth is 0, may take locks, but leaves `blocked` as it was. */
static SG_THREAD_LOCAL struct {
    uint64_t signals; /* the mask to restore */
    uint32_t depth;   /* locks held, plus calls of sg_lock_hold_signals not undone */
} blocked;

/* Blocks all signals but SIGSYS. A sandbox answers a system call of this thread with SIGSYS, which would end the
 * process if it were blocked. */
void sg_lock_hold_signals(void)
{
    const uint64_t all = ~(UINT64_C(1) << (SIGSYS - 1));
    if (blocked.depth == 0 && sg_sys_sigprocmask(0 /* SIG_BLOCK */, &all, &blocked.signals) != 0)
        blocked.signals = 0;
    blocked.depth++;
}

void sg_lock_let_signals(void)
{
    if (--blocked.depth == 0)
        (void)sg_sys_sigprocmask(2 /* SIG_SETMASK */, &blocked.signals, NULL);
}

bool sg_lock_acquire_within(struct sg_lock *lock, struct sg_lock_state *state, uint64_t timeout_ns)
{
    *state = (struct sg_lock_state){.is_held = true};
    uint64_t deadline = UINT64_MAX;
    uint32_t wanted = 1;
    for (;;) {
        uint32_t free_word = 0;
        sg_lock_hold_signals();
        if (SG_LIKELY(sg_cas_u32(&lock->word, &free_word, wanted)))
            return true;
        wanted = 2; /* after a wait: other threads may be waiting, too, and must be woken at the release */
        if (sg_exchange(&lock->word, 2u) == 0)
            return true;
        sg_lock_let_signals();
        struct timespec wait = {1, 0};
        if (timeout_ns != UINT64_MAX) {
            uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
            if (deadline == UINT64_MAX)
                deadline = now + timeout_ns;
            if (now >= deadline) {
                state->is_held = false;
                return false;
            }
            if (deadline - now < 1000000000u)
                wait = (struct timespec){0, (long)(deadline - now)};
        }
        (void)sg_sys_futex(&lock->word, FUTEX_WAIT_PRIVATE, 2, &wait); /* signals are not blocked while waiting */
    }
}

void sg_lock_acquire(struct sg_lock *lock, struct sg_lock_state *state)
{
    (void)sg_lock_acquire_within(lock, state, UINT64_MAX);
}

void sg_lock_release(struct sg_lock *lock, const struct sg_lock_state *state)
{
    if (!state->is_held)
        return;
    if (sg_exchange(&lock->word, 0u) == 2)
        (void)sg_sys_futex(&lock->word, FUTEX_WAKE_PRIVATE, 1, NULL);
    sg_lock_let_signals();
}

void sg_lock_reset(struct sg_lock *lock)
{
    if (sg_load(&lock->word) != 0) /* a forked child would get a page of its own by writing what is there */
        sg_store(&lock->word, 0u);
}
