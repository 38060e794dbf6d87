/*
 * managed_pages.h - managed memory that the GPU touched first, so that it counts once.
 *
 * Managed memory is lazy. Until it is touched it is promised; then it takes the machine's memory. Pages that a
 * processor touches are in the CPU's page tables, and a scan takes them off the promise (tracker.h). Pages that the
 * GPU touches first are there only where the driver maps them for the CPU, too. Where it does not, the promise would
 * stay whole while MemAvailable falls: the same bytes would count twice.
 *
 * The rule needs no knowledge of the driver. Pages of managed memory are in no counter of /proc/meminfo. So what no
 * counter explains, less what it was before there was managed memory, less what is known of CUDA (device and pinned
 * memory, contexts, pages in the driver's pools, managed memory that the CPU's page tables show), is managed memory
 * that only the GPU has touched. So much less is outstanding of all promises together. In a cgroup, to which managed
 * memory is charged, memory.stat tells the same of its members.
 *
 * Memory that an unguarded CUDA program takes while there is managed memory passes for touched pages. The watchdog
 * is there for that. Under the decision lock.
 */
#ifndef SG_PRELOAD_ADMIT_MANAGED_PAGES_H
#define SG_PRELOAD_ADMIT_MANAGED_PAGES_H

#include "admit/snapshot.h"

/* Around sg_snapshot_refresh: fills in touched_bytes of each constraint. */
void sg_managed_pages_begin_look(struct sg_snapshot *look);
void sg_managed_pages_end_look(struct sg_snapshot *look);

/* A context takes, or gives back, memory that no counter explains. Any thread, without the lock. */
void sg_managed_pages_note_context(uint64_t bytes);
void sg_managed_pages_note_context_end(uint64_t bytes);

#endif
