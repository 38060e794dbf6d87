/*
 * unguarded_containers.h - sums up what unguarded processes hold in each container. A container of many small
 * processes has none among the largest of the machine.
 */
#ifndef SG_TOOLS_MODEL_UNGUARDED_CONTAINERS_H
#define SG_TOOLS_MODEL_UNGUARDED_CONTAINERS_H

#include "model/model.h"

/* Sums of all containers in which an unguarded process was seen. */
struct model_unguarded_sums {
    struct model_unguarded_container *at;
    size_t count;
};

/* Adds an unguarded process to the sum of its container, if it is in one. `status` is its /proc/PID/status. */
void model_unguarded_containers_add(struct model_unguarded_sums *sums, const struct model *model,
                                    const struct model_unguarded *process, const char *status);
/* Moves the largest sums of `least_bytes` or more into the model. */
void model_unguarded_containers_keep(struct model_unguarded_sums *sums, struct model *model, uint64_t least_bytes);

#endif
