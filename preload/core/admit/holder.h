/*
 * holder.h - names the process that holds most of what a refused request would have needed.
 */
#ifndef SG_PRELOAD_ADMIT_HOLDER_H
#define SG_PRELOAD_ADMIT_HOLDER_H

#include "admit/admission.h"
#include "base/text.h"

/* Appends "; largest other: python3 8798, 71.2 GiB, unguarded", or nothing if no other process holds a 64th of what the
 * constraint has. Guarded processes are those of the registry. Unguarded ones are searched in /proc for 20 ms at
 * most, and not under a filter that the program itself installed. On unified memory, device memory of unguarded
 * programs belongs to no process; it is named if it is the largest part. The PID of a guarded process in another PID
 * namespace says nothing here, so the line names its job: "; largest other: job serve, 71.2 GiB". Any thread, without
 * the decision lock. Allocates nothing. */
void sg_holder_add(struct sg_text *text, const struct sg_request *request, const struct sg_answer *answer);

#endif
