/*
 * managed_pages.h - counts once the managed memory that only the GPU has touched.
 *
 * Managed memory is lazy. It is a promise until it is touched; then it takes the machine's memory. Pages that a CPU
 * touches are in the CPU's page tables, so a scan takes them off the promise (tracker.h). Pages that the GPU touches
 * first are in those tables only if the driver maps them for the CPU, too. Otherwise the promise would stay whole while
 * MemAvailable falls, and the same bytes would count twice.
 *
 * The rule below needs no knowledge of the driver. No counter of /proc/meminfo contains pages of managed memory.
 *
 *     unexplained    memory that no counter explains
 *     - base         the same from before there was managed memory
 *     - known        CUDA memory that is counted: device and pinned memory, contexts, pages in the driver's pools, and
 *                    managed memory that the CPU's page tables show
 *     = touched      managed memory that only the GPU has touched
 *
 * The promises together are lowered by the touched bytes. A cgroup is charged for managed memory; there, memory.stat
 * gives the same figures for its members.
 *
 * Memory that an unguarded CUDA program takes while there is managed memory is mistaken for touched pages. The
 * watchdog covers that case. All functions need the decision lock, except where noted.
 */
#ifndef SG_PRELOAD_ADMIT_MANAGED_PAGES_H
#define SG_PRELOAD_ADMIT_MANAGED_PAGES_H

#include "admit/snapshot.h"
#include "shared/peers.h"

/* Sets touched_bytes of each constraint in a snapshot that has_cuda. `before`, `after`: CUDA memory as summed up before
 * the snapshot (sg_peers.cuda) and after it. Call it after sg_snapshot_refresh and sg_cgroup_refresh. */
void sg_managed_pages_refresh(struct sg_snapshot *snapshot, const struct sg_cuda_sum before[1 + SG_ENTRY_LEVELS],
                              const struct sg_cuda_sum after[1 + SG_ENTRY_LEVELS]);

#endif
