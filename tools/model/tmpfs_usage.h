/*
 * tmpfs_usage.h - what several running processes hold or were promised together: shared memory counts once however
 * many map it, and memory that children have from a parent that is gone counts once for all of them.
 */
#ifndef SG_TOOLS_MODEL_TMPFS_USAGE_H
#define SG_TOOLS_MODEL_TMPFS_USAGE_H

#include "model/model.h"

/* A sum. All zero is one of nobody. */
struct model_same_bytes {
    const struct model_process **process;
    size_t count, room;
};

void model_same_bytes_add(struct model_same_bytes *sum, const struct model_process *process);

/* The bytes that they hold and were promised, together. `model`: where parents are looked for. */
uint64_t model_same_bytes_live(const struct model_same_bytes *sum, const struct model *model);
uint64_t model_same_bytes_promised(const struct model_same_bytes *sum, const struct model *model);

void model_same_bytes_free(struct model_same_bytes *sum);

#endif
