/*
 * context_estimate.h - what making a CUDA context takes: expected before, measured around the call, remembered for the
 * machine.
 *
 * The measure is the fall of MemAvailable, less what guarded programs touched of their promises meanwhile. It can still
 * be far off, both ways: an unguarded program took or gave back memory, a promise went untouched, the driver's state
 * was warm. So what is believed of one is bounded, and what the next context is asked for is the median of the last
 * three. Any thread, without the decision lock.
 */
#ifndef SG_PRELOAD_ADMIT_CONTEXT_ESTIMATE_H
#define SG_PRELOAD_ADMIT_CONTEXT_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

/* What the next context is to be asked for. Takes the registry entry among the others if there is one to be had. */
uint64_t sg_context_estimate_expected_bytes(void);

/* What two looks at the machine are compared by. */
struct sg_context_estimate_look {
    uint64_t available_bytes;
    uint64_t asked_bytes;    /* ever, on the machine */
    uint64_t own_bytes;      /* granted to this process, and there */
    uint64_t promised_bytes; /* by the others */
    bool is_quiet;           /* nothing is in flight but `own_flight` bytes of our own */
};

/* Looks closely: costs up to 3 ms per GiB of this process that is not resident, and up to 0.1 s where others have
 * promised something: they are asked to look, too. */
struct sg_context_estimate_look sg_context_estimate_look(uint64_t own_flight);

/* What was taken between the two and is in nobody's books, as far as they tell; 0 if they do not. */
uint64_t sg_context_estimate_measure(const struct sg_context_estimate_look *before,
                                     const struct sg_context_estimate_look *after);

/* What a context made between the two has taken, as far as they tell; 0 if they do not. Remembered in the registry. */
uint64_t sg_context_estimate_learn(const struct sg_context_estimate_look *before,
                                   const struct sg_context_estimate_look *after);

#endif
