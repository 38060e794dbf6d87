/*
 * refusal.h - counts and reports refused requests.
 */
#ifndef SG_PRELOAD_ADMIT_REFUSAL_H
#define SG_PRELOAD_ADMIT_REFUSAL_H

#include "admit/admission.h"
#include "base/atomics.h"
#include "base/compiler.h"
#include "base/options.h"

/* What is known of the driver of the machine's device memory (hooks/measure/self_check.h). */
enum sg_driver_trust {
    SG_DRIVER_TRUSTED,
    SG_DRIVER_OBSERVED, /* the driver has surprised the guard three times: nothing is refused */
    SG_DRIVER_ALONE,    /* it is not the machine's memory: the driver alone judges */
};
extern uint32_t sg_refusal_trust SG_INTERNAL; /* (atomic) enum sg_driver_trust; only self_check.c writes it */

/* Whether nothing is refused to the request: in observe mode, and after three surprises. Any thread. */
static inline bool sg_refusal_is_observed(const struct sg_request *request)
{
    return sg_options.mode_observe || (request->domain == SG_DOMAIN_DEVICE && request->card.identity == 0 &&
                                       SG_UNLIKELY(sg_load_relaxed(&sg_refusal_trust) == SG_DRIVER_OBSERVED));
}

/* Counts a refused request (in observe mode, one that would have been refused) and adds it to the segment; `answer` has
 * the reason. A large one also gets two lines on stderr, unless some were written a moment ago. Any thread, without the
 * decision lock. */
void sg_refusal_report(const struct sg_request *request, const struct sg_answer *answer);

/* Whether the request repeats a refusal that still holds (repeat.h). True: it is refused, counted and recorded. No line
 * is written, no lock taken and no system call made. Any thread. */
bool sg_refusal_repeats(const struct sg_request *request);

/* Bytes that were missing for the request by the constraint that decided; 0: it asks for more than there is, or
 * unknown. Any thread. */
uint64_t sg_refusal_missing_bytes(const struct sg_request *request, const struct sg_answer *answer);

/* The last line of this process. Approximate while two threads print at once. For refusal.c and the functions below. */
extern struct sg_refusal_last {
    uint64_t reported_ns;    /* (atomic) CLOCK_MONOTONIC; 0: nothing */
    uint64_t reported_count; /* (atomic) refusals up to then */
} sg_refusal_last SG_INTERNAL;

/* Prints how many requests were refused since the last line, if any were. */
void sg_refusal_report_rest(void);

/* At the end of the process. Any thread. Inline: most processes were refused nothing, and each page of code that an end
 * or a fork touches costs a page fault. */
static inline void sg_refusal_end(void)
{
    if (sg_load_relaxed(&sg_refusal_last.reported_ns) != 0)
        sg_refusal_report_rest();
}

/* In a forked child: the parent tells its own refusals. */
static inline void sg_refusal_atfork_child(void)
{
    sg_store_relaxed(&sg_refusal_last.reported_ns, UINT64_C(0));
}

#endif
