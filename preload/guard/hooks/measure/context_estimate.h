/*
 * context_estimate.h - what creating a CUDA context takes: estimated before the call, measured around it, and
 * remembered for the machine.
 *
 * The measurement is the fall of MemAvailable, less the promises that guarded programs touched meanwhile. It can be far
 * too high or too low: an unguarded program took or freed memory, a promise stayed untouched, or the driver had state
 * left from earlier contexts, or pages in its pool. Therefore one measurement is bounded, and the next estimate is the
 * median of three.
 *
 * Any thread, without the decision lock.
 */
#ifndef SG_PRELOAD_HOOKS_MEASURE_CONTEXT_ESTIMATE_H
#define SG_PRELOAD_HOOKS_MEASURE_CONTEXT_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes to request for the next context. Takes the registry entry if one can be had. */
uint64_t sg_context_estimate_expected_bytes(void);

/* The figures of the machine that a measurement compares. */
struct sg_context_estimate_figures {
    uint64_t available_bytes;
    uint64_t asked_bytes;    /* all that was ever asked for on the machine */
    uint64_t own_bytes;      /* granted to this process, without its promises */
    uint64_t promised_bytes; /* to the other processes */
    bool has_pool;           /* the driver keeps freed pages (driver_pool.h) */
    uint64_t pooled_bytes;   /* what it may have of them, beyond the noise */
    bool is_quiet;           /* nothing is in flight but `own_flight` bytes of this process */
};

/* Takes a thorough snapshot. `own_flight`: bytes that this thread has in flight. */
struct sg_context_estimate_figures sg_context_estimate_read(uint64_t own_flight);

/* Bytes that were taken between two snapshots and that no process counts; 0: the snapshots do not tell. */
uint64_t sg_context_estimate_measure(const struct sg_context_estimate_figures *before,
                                     const struct sg_context_estimate_figures *after);

/* The same for a context that was created between the two snapshots. Remembers the result in the registry, unless the
 * driver's pool may have served a part of the context, and less was measured than is expected. */
uint64_t sg_context_estimate_learn(const struct sg_context_estimate_figures *before,
                                   const struct sg_context_estimate_figures *after);

#endif
