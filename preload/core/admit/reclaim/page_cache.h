/*
 * page_cache.h - page-cache reclaim: turns page cache into free memory before a CUDA request that MemAvailable covers.
 *
 * On unified memory the driver takes free pages. It has been seen to fail while most of the available memory was page
 * cache. Therefore cache is reclaimed after the request was admitted and before the driver is called, in two steps:
 *
 *   1. memory.reclaim of this process's cgroup
 *   2. the page cache of the files that this process has open
 *
 * No step populates memory, swaps a process out or can end one. memory.reclaim is asked for file pages only, or where
 * nothing of the cgroup can be swapped. Files on network and FUSE file systems are not touched, because any question
 * about them may wait for a server or another process.
 */
#ifndef SG_PRELOAD_ADMIT_RECLAIM_PAGE_CACHE_H
#define SG_PRELOAD_ADMIT_RECLAIM_PAGE_CACHE_H

#include <stdint.h>

/* Tries to have `bytes` of free memory; does nothing below 64 MiB. Takes three seconds at most, plus the step under way
 * at that time. There is no result: the driver is called in any case. Any thread, without the decision lock. */
void sg_page_cache_reclaim(uint64_t bytes);

#endif
