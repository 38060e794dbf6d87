/*
 * tmpfs_usage.h - sums live and promised bytes over several running processes. Shared memory counts once, however many
 * processes map it. Memory that children inherited from a parent that has ended counts once for all of them.
 */
#ifndef SG_TOOLS_MODEL_TMPFS_USAGE_H
#define SG_TOOLS_MODEL_TMPFS_USAGE_H

#include "model/model.h"

/* The processes of a sum. All zero: no process. */
struct model_same_bytes {
    const struct model_process **process;
    size_t count, capacity;
};

/* Adds a running process. The process must outlive the sum. */

void model_same_bytes_add(struct model_same_bytes *sum, const struct model_process *process);

/* Return the live bytes and the promised bytes of the processes together. Parents are looked up in `model`. */
uint64_t model_same_bytes_live(const struct model_same_bytes *sum, const struct model *model);
uint64_t model_same_bytes_promised(const struct model_same_bytes *sum, const struct model *model);

void model_same_bytes_free(struct model_same_bytes *sum);

#endif
