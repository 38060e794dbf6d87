/*
 * refusal.h - counts and reports refused requests.
 */
#ifndef SG_PRELOAD_ADMIT_REFUSAL_H
#define SG_PRELOAD_ADMIT_REFUSAL_H

#include "admit/admission.h"

/* Counts a refused request (in observe mode, one that would have been refused), for which `answer` is why, and adds it to the segment. A large one
 * also gets a line on stderr, unless one was written a moment ago. Any thread, without the decision lock. */
void sg_refusal_report(const struct sg_request *request, const struct sg_answer *answer);

#endif
