/*
 * repeat.h - requests that repeat a refusal of a moment ago.
 *
 * A program that is refused often asks again at once, thousands of times a second. Each decision reads some ten files.
 * So a refusal holds for 5 ms for the requests of this process that are as large or larger, unless this process has
 * freed what may be enough for them, or sparkguard --set has changed the job. They cost no lock and no system call.
 *
 * This is for host memory only: device memory may come back unseen, from the driver's pools. A process that asks to
 * wait for memory (SPARKGUARD_WAIT) waits with each large request. Observe mode refuses nothing. Any thread, also in
 * signal handlers.
 */
#ifndef SG_PRELOAD_ADMIT_REPEAT_H
#define SG_PRELOAD_ADMIT_REPEAT_H

#include "admit/admission.h"

/* Notes that a decision has refused the request. `missing_bytes`: what would have been enough, 0 if unknown. */
void sg_repeat_note(const struct sg_request *request, const struct sg_answer *answer, uint64_t missing_bytes);

/* Whether a refusal that still holds covers the request. True: *answer is that refusal's. */
bool sg_repeat_is_refused(const struct sg_request *request, struct sg_answer *answer);

/* Ends what holds: memory has come back that is not in this process's sums. */
void sg_repeat_forget(void);

/* In a forked child. */
void sg_repeat_atfork_child(void);

#endif
