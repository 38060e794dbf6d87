/*
 * sparkguard.h - what a program may tell and ask the guard it runs under: phases, statistics, peaks.
 *
 *     sparkguard_mark("epoch 3");
 *
 * Nothing is linked: the functions are weak and come with LD_PRELOAD=libsparkguard.so. Without the guard they may be
 * called all the same: sparkguard_active() says 0 and the others -ENOSYS. (Called by these names; the address of one is
 * then NULL. In what clang compiles with -fno-pie for x86-64 it is NULL under the guard too: there, look them up by
 * dlsym(3).)
 *
 * Results are 0 or a negative number of errno.h; errno itself stays. Any thread, also in signal handlers. A mark costs
 * a look at the machine, tens of microseconds: for steps of a program, not for each of its loops.
 * Sizes are bytes. Live figures are exact while no other thread allocates; peaks are never too low, and for each thread
 * at most 1 MiB too high. A forked child begins with its parent's figures, and without a phase.
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

/* noplt: looked up when the program starts, also by code that is not position-independent, where the linker would else
 * take a weak function that it does not see for NULL for ever. clang has no such attribute. */
#if defined(__GNUC__) && !defined(__clang__)
#define SPARKGUARD_WEAK __attribute__((weak, noplt))
#else
#define SPARKGUARD_WEAK __attribute__((weak))
#endif

struct sparkguard_domain_stats {
    uint64_t live_bytes;
    uint64_t peak_bytes; /* since the program began, or since sparkguard_reset_peak */
};

/* It may grow at its end: `size` says as far as which field it is filled in. */
struct sparkguard_stats {
    uint64_t size;       /* in: of the struct, as sparkguard_stats() sets it; out: of what was filled in */
    uint64_t live_bytes; /* the sum of the domains */
    uint64_t peak_bytes; /* the highest sum, since the program began or since sparkguard_reset_peak */
    uint64_t refused_count;
    uint64_t refused_bytes;
    uint64_t usable_bytes;  /* what the machine has left now, before the reserve; or SPARKGUARD_UNKNOWN */
    uint64_t reserve_bytes; /* what of it is kept; or SPARKGUARD_UNKNOWN */
    int64_t unified;        /* 1: device memory comes out of the machine's; 0: not; -1: not known before CUDA is used */
    struct sparkguard_domain_stats heap;    /* malloc and its family */
    struct sparkguard_domain_stats mapped;  /* writable memory mapped through mmap */
    struct sparkguard_domain_stats pinned;  /* host memory allocated by CUDA */
    struct sparkguard_domain_stats managed; /* cudaMallocManaged */
    struct sparkguard_domain_stats device;  /* cudaMalloc and the rest */
};

/* 1 under the guard, 0 without it or with SPARKGUARD_DISABLE. */
int sparkguard_active(void) SPARKGUARD_WEAK;

/* Ends the present phase and begins another. The report keeps the last 64, each with live bytes at its end and peak
 * bytes. Of the name it keeps 63 bytes, in whole characters of UTF-8. -EINVAL: no name. */
int sparkguard_mark(const char *name) SPARKGUARD_WEAK;

/* Fills in the figures of this process, and the machine's by a look of now. -EINVAL: `size` holds not even itself. */
int sparkguard_stats(struct sparkguard_stats *out) SPARKGUARD_WEAK;

/* The peaks that sparkguard_stats and the present phase show become what is live; the report's own peak stays. */
int sparkguard_reset_peak(void) SPARKGUARD_WEAK;

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

#define sparkguard_active() sparkguard_call_active()
#define sparkguard_mark(name) sparkguard_call_mark(name)
#define sparkguard_stats(out) sparkguard_call_stats(out)
#define sparkguard_reset_peak() sparkguard_call_reset_peak()

#ifdef __cplusplus
}
#endif

#endif
