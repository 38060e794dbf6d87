/*
 * unguarded.h - the steps by which unguarded.c finds unguarded processes and containers.
 */
#ifndef SG_TOOLS_MODEL_UNGUARDED_H
#define SG_TOOLS_MODEL_UNGUARDED_H

#include "model/model.h"

/* Sums of all containers in which an unguarded process was seen. */
struct model_unguarded_sums {
    struct model_unguarded_container *at;
    size_t count;
};

/* Adds an unguarded process to the sum of its container, if it is in one. `status` is its /proc/PID/status. */
void model_unguarded_sums_add(struct model_unguarded_sums *sums, const struct model *model,
                              const struct model_unguarded *process, const char *status);
/* Moves the largest sums of `least_bytes` or more into the model, and frees the others. */
void model_unguarded_sums_keep(struct model_unguarded_sums *sums, struct model *model, uint64_t least_bytes);

/* Returns why a process is unguarded: the reason that the runtime of its container wrote down, else what the process
 * shows; NULL if unknown. `record` may be NULL. The caller frees. */
char *model_unguarded_reason(const struct host_container *record, uint32_t pid);

#endif
