/*
 * page_cache.h - page cache goes first: makes room in MemFree for a CUDA request that MemAvailable has room for.
 *
 * On unified memory the driver takes free pages, and has been seen to fail while most of what is available is page
 * cache. So before it is called, and after the request was admitted: what our cgroup's memory.reclaim gives up, then
 * the cache of the files this process has open, then whatever the kernel gives up when the whole request is populated
 * once and dropped (in pieces that achieves nothing).
 *
 * Nobody is swapped out for it: memory.reclaim is asked for files only, or where nothing of the cgroup can be swapped;
 * and populating, announced in the registry entry, is only done where cgroups and swap permit. Files on network and
 * FUSE file systems are left alone. All of it together takes three seconds at most, but for the step under way then.
 * Then the driver is called in any case. Any thread, without the decision lock.
 */
#ifndef SG_PRELOAD_ADMIT_PAGE_CACHE_H
#define SG_PRELOAD_ADMIT_PAGE_CACHE_H

#include <stdint.h>

void sg_page_cache_reclaim(uint64_t bytes);

#endif
