/*
 * sparkguard.h - the C API by which a guarded program names its phases and reads its own figures.
 *
 *     sparkguard_mark("epoch 3");
 *
 * Linking: no library is linked. The functions are weak symbols that LD_PRELOAD=libsparkguard.so provides. Calls by the
 * names below also work without the guard: sparkguard_active() returns 0, all other functions return -ENOSYS. The
 * address of a function is NULL without the guard. In code that clang compiles with -fno-pie for x86-64 the address is
 * NULL under the guard too; such code must look up the functions with dlsym(3).
 *
 * Results: 0, or a negative errno number. errno itself does not change.
 * Thread-safety: any thread may call any function, also from a signal handler, except sparkguard_on_pressure().
 * Cost: sparkguard_mark() and sparkguard_stats() read the kernel's figures, which takes tens of microseconds. Mark the
 * steps of a program, not each iteration of an inner loop.
 * Units: all sizes are bytes. Live figures are exact while no other thread allocates. Peaks are never too low, and at
 * most 1 MiB too high for each thread.
 * fork: a child starts with its parent's figures, and without a phase.
 */
#ifndef SPARKGUARD_H
#define SPARKGUARD_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPARKGUARD_UNKNOWN UINT64_MAX

/* noplt makes the dynamic linker look up the functions at program start, also for code that is not
 * position-independent. There the static linker would otherwise bind an undefined weak function to NULL for good. clang
 * has no such attribute. */
#if defined(__GNUC__) && !defined(__clang__)
#define SPARKGUARD_WEAK __attribute__((weak, noplt))
#else
#define SPARKGUARD_WEAK __attribute__((weak))
#endif

struct sparkguard_domain_stats {
    uint64_t live_bytes;
    uint64_t peak_bytes; /* highest since program start or the last sparkguard_reset_peak() */
};

/* Later versions may append fields. `size` tells caller and library which fields the other one knows. */
struct sparkguard_stats {
    uint64_t size;       /* in: size of the struct, set by the macro sparkguard_stats(); out: bytes filled in */
    uint64_t live_bytes; /* sum over the domains */
    uint64_t peak_bytes; /* highest sum since program start or the last sparkguard_reset_peak() */
    uint64_t refused_count;
    uint64_t refused_bytes;
    uint64_t usable_bytes;  /* left on the machine now; the reserve is not subtracted; or SPARKGUARD_UNKNOWN */
    uint64_t reserve_bytes; /* part of usable_bytes that large requests may not take; or SPARKGUARD_UNKNOWN */
    int64_t unified; /* 1: device memory is taken from the machine's memory; 0: not; -1: unknown until CUDA is used */
    struct sparkguard_domain_stats heap;    /* malloc and its family */
    struct sparkguard_domain_stats mapped;  /* writable memory mapped through mmap */
    struct sparkguard_domain_stats pinned;  /* host memory allocated by CUDA */
    struct sparkguard_domain_stats managed; /* cudaMallocManaged */
    struct sparkguard_domain_stats device;  /* cudaMalloc and the rest */
    uint64_t thread_refused_count;          /* requests of the calling thread that were refused */
};

/* Returns 1 under the guard, 0 without the guard or with SPARKGUARD_DISABLE=1. */
int sparkguard_active(void) SPARKGUARD_WEAK;

/* Ends the current phase and begins one with this name. The report keeps the last 64 phases, each with its live bytes
 * at the end and its peak bytes. It keeps 63 bytes of the name, cut between UTF-8 characters. Returns 0, or -EINVAL
 * for a missing name. */
int sparkguard_mark(const char *name) SPARKGUARD_WEAK;

/* Fills in the figures of this process, and the machine's from a new snapshot. Returns 0, or -EINVAL where out->size is
 * too small to hold even the field `size`. */
int sparkguard_stats(struct sparkguard_stats *out) SPARKGUARD_WEAK;

/* Sets the peaks that sparkguard_stats() and the current phase show to the present live bytes. The report's peak of the
 * process does not change. Returns 0. */
int sparkguard_reset_peak(void) SPARKGUARD_WEAK;

/* Has `callback` called when a request of another job cannot be met: `wanted_bytes` are missing. The callback frees
 * what the program can do without, and returns; whatever it does, the other request is decided within SPARKGUARD_WAIT,
 * or 2 s. The processes with a callback are asked one after another, first those of the job that holds the most
 * beyond its claim, divided by its share (sparkguard --share). A job that holds no more than its claim is not asked.
 *
 * The callback runs on a thread that the first call makes, with all signals blocked, and never inside an allocation. It
 * may allocate; its own requests ask nobody. It must not throw. A new callback replaces the old one; NULL ends it. A
 * forked child has none. Returns 0, -ENOSYS without the guard, or another negative errno number if there can be no
 * thread. Not from a signal handler. */
int sparkguard_on_pressure(void (*callback)(uint64_t wanted_bytes, void *data), void *data) SPARKGUARD_WEAK;

/* ---- calls that need no guard ------------------------------------------------------------------------------------ */

static inline int sparkguard_call_active(void)
{
    return sparkguard_active != NULL ? sparkguard_active() : 0;
}

static inline int sparkguard_call_mark(const char *name)
{
    return sparkguard_mark != NULL ? sparkguard_mark(name) : -ENOSYS;
}

static inline int sparkguard_call_stats(struct sparkguard_stats *out)
{
    memset(out, 0, sizeof *out);
    out->size = sizeof *out;
    out->usable_bytes = out->reserve_bytes = SPARKGUARD_UNKNOWN;
    out->unified = -1;
    return sparkguard_stats != NULL ? sparkguard_stats(out) : -ENOSYS;
}

static inline int sparkguard_call_reset_peak(void)
{
    return sparkguard_reset_peak != NULL ? sparkguard_reset_peak() : -ENOSYS;
}

static inline int sparkguard_call_on_pressure(void (*callback)(uint64_t wanted_bytes, void *data), void *data)
{
    return sparkguard_on_pressure != NULL ? sparkguard_on_pressure(callback, data) : -ENOSYS;
}

#define sparkguard_active() sparkguard_call_active()
#define sparkguard_mark(name) sparkguard_call_mark(name)
#define sparkguard_stats(out) sparkguard_call_stats(out)
#define sparkguard_reset_peak() sparkguard_call_reset_peak()
#define sparkguard_on_pressure(callback, data) sparkguard_call_on_pressure(callback, data)

#ifdef __cplusplus
}
#endif

#endif
