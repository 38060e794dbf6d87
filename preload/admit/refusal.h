/*
 * refusal.h - what becomes of a refused request.
 */
#ifndef SG_PRELOAD_ADMIT_REFUSAL_H
#define SG_PRELOAD_ADMIT_REFUSAL_H

#include "admit/admission.h"

/* Counts, records and says what has been refused (or would have been, in observe mode). */
void sg_refusal_report(const struct sg_request *request);

#endif
