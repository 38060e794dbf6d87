/*
 * atomics.h - the only file that names memory orders.
 *
 * A suffix names the order: _relaxed, _acquire, _release; without a suffix it is sequentially consistent. All functions
 * work on plain fixed-width integers, because the same words are in shared memory (include/sparkguard_abi.h). Any
 * thread, any time, also in signal handlers.
 */
#ifndef SG_PRELOAD_BASE_ATOMICS_H
#define SG_PRELOAD_BASE_ATOMICS_H

#include "base/compiler.h"

#include <stdbool.h>
#include <stdint.h>

#define sg_load_relaxed(ptr) __atomic_load_n((ptr), __ATOMIC_RELAXED)
#define sg_load_acquire(ptr) __atomic_load_n((ptr), __ATOMIC_ACQUIRE)
#define sg_load(ptr) __atomic_load_n((ptr), __ATOMIC_SEQ_CST)
#define sg_store_relaxed(ptr, value) __atomic_store_n((ptr), (value), __ATOMIC_RELAXED)
#define sg_store_release(ptr, value) __atomic_store_n((ptr), (value), __ATOMIC_RELEASE)
#define sg_store(ptr, value) __atomic_store_n((ptr), (value), __ATOMIC_SEQ_CST)
#define sg_fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define sg_exchange(ptr, value) __atomic_exchange_n((ptr), (value), __ATOMIC_SEQ_CST)
#define sg_fetch_add(ptr, value) __atomic_fetch_add((ptr), (value), __ATOMIC_SEQ_CST)
#define sg_fetch_sub(ptr, value) __atomic_fetch_sub((ptr), (value), __ATOMIC_SEQ_CST)
#define sg_fetch_or(ptr, value) __atomic_fetch_or((ptr), (value), __ATOMIC_SEQ_CST)
#define sg_fetch_and(ptr, value) __atomic_fetch_and((ptr), (value), __ATOMIC_SEQ_CST)
#define sg_add_relaxed(ptr, value) ((void)__atomic_fetch_add((ptr), (value), __ATOMIC_RELAXED))

/* Compare-and-swap: stores `desired` if *ptr equals *expected. If not, returns false and sets *expected to the present
 * value. */
static inline bool sg_cas_u64(uint64_t *ptr, uint64_t *expected, uint64_t desired)
{
    return __atomic_compare_exchange_n(ptr, expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static inline bool sg_cas_u32(uint32_t *ptr, uint32_t *expected, uint32_t desired)
{
    return __atomic_compare_exchange_n(ptr, expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* Subtracts `value` and stops at zero. Returns the part that could not be subtracted. */
static inline uint64_t sg_sub_clamped(uint64_t *ptr, uint64_t value)
{
    uint64_t now = sg_load_relaxed(ptr);
    while (!sg_cas_u64(ptr, &now, now >= value ? now - value : 0))
        ;
    return now >= value ? 0 : value - now;
}

/* Sets *ptr to the larger of *ptr and `value`. */
static inline void sg_raise_to(uint64_t *ptr, uint64_t value)
{
    uint64_t now = sg_load_relaxed(ptr);
    while (now < value && !sg_cas_u64(ptr, &now, value))
        ;
}

/*
 * Adds to a word that only this thread and its signal handlers write. Returns the new value.
 * On x86-64 a signal cannot split the one read-modify-write instruction, so no lock prefix is needed. On aarch64 a
 * plain load-add-store could lose the handler's update, so the addition is a relaxed atomic. Other threads read whole
 * words in both cases.
 */
static inline int64_t sg_owner_add(int64_t *ptr, int64_t value)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    __asm__ volatile("addq %1, %0" : "+m"(*ptr) : "er"(value) : "cc");
    return sg_load_relaxed(ptr);
#else
    return __atomic_add_fetch(ptr, value, __ATOMIC_RELAXED);
#endif
}

/* Adds 1 in the same way. */
static inline void sg_owner_count(uint64_t *ptr)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    __asm__ volatile("incq %0" : "+m"(*ptr) : : "cc");
#else
    sg_add_relaxed(ptr, 1);
#endif
}

/* Subtracts `value` as sg_owner_add does. True if the word is negative then. The result comes from the instruction's
 * flags, because loading the word again would cost malloc's fast path at least one instruction. */
static inline bool sg_owner_take_is_short(int64_t *ptr, int64_t value)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    bool is_negative;
    __asm__ volatile("subq %2, %0" : "+m"(*ptr), "=@ccs"(is_negative) : "er"(value) : "memory");
    return is_negative;
#else
    return sg_owner_add(ptr, -value) < 0;
#endif
}

/* Adds `value` as sg_owner_add does. True if the word is then larger than `max` (at least 0) or negative. */
static inline bool sg_owner_add_is_beyond(int64_t *ptr, int64_t value, int32_t max)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    bool is_above;
    __asm__ volatile("addq %2, %0\n\tcmpq %3, %0"
                     : "+m"(*ptr), "=@cca"(is_above)
                     : "er"(value), "er"((int64_t)max)
                     : "memory");
    return is_above;
#else
    return (uint64_t)sg_owner_add(ptr, value) > (uint64_t)max;
#endif
}

/* Whether `value` is less than *limit: a relaxed load and a comparison in one instruction. */
static inline bool sg_is_below(uint64_t value, const uint64_t *limit)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    bool is_below;
    __asm__ volatile("cmpq %1, %2" : "=@ccb"(is_below) : "m"(*limit), "r"(value));
    return is_below;
#else
    return value < sg_load_relaxed(limit);
#endif
}

#endif
