/*
 * told.h - messages printed once for a whole job, also where its processes share no memory to note that in. Any thread.
 */
#ifndef SG_PRELOAD_SHARED_TOLD_H
#define SG_PRELOAD_SHARED_TOLD_H

#include <stdbool.h>
#include <stdint.h>

/* Whether this process is the job's first to ask; true where that cannot be found out. With signals blocked.
 *
 * A forked child knows whether its parent asked. A child that a sandbox keeps from all files still maps the ledger
 * that its parent is in: a flag of the parent's entry answers. All other processes use a small file,
 * `.sparkguard-UID.jobs`, in /dev/shm or else /tmp. Without either, or where another user made that file, each
 * process is the first. */
bool sg_told_first(void);

/* In a forked child: the flags of its parent's registry entry; NULL: the parent had none, or the registry that it is in
 * is not mapped any more. */
void sg_told_set_parent(uint32_t *flags);

#endif
