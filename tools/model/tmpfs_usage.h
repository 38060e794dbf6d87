/*
 * tmpfs_usage.h - what several running processes hold or were promised together: shared memory counts once however
 * many map it, and memory that children have from a parent that is gone counts once for all of them.
 */
#ifndef SG_TOOLS_MODEL_TMPFS_USAGE_H
#define SG_TOOLS_MODEL_TMPFS_USAGE_H

#include "model/model.h"

/* A sum. All zero is one of nobody. */
struct report_same_bytes {
    const struct report_process **process;
    size_t count, room;
};

void report_same_bytes_add(struct report_same_bytes *sum, const struct report_process *process);

/* The bytes that they hold and were promised, together. `report`: where parents are looked for. */
uint64_t report_same_bytes_live(const struct report_same_bytes *sum, const struct report *report);
uint64_t report_same_bytes_promised(const struct report_same_bytes *sum, const struct report *report);

void report_same_bytes_free(struct report_same_bytes *sum);

#endif
