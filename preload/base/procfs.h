/*
 * procfs.h - what the kernel says of a process. Always the real /proc, whatever SPARKGUARD_SYSTEM_ROOT says. Any
 * thread. One function reads the text of a /proc/meminfo that the caller has read from anywhere.
 */
#ifndef SG_PRELOAD_BASE_PROCFS_H
#define SG_PRELOAD_BASE_PROCFS_H

#include <stdbool.h>
#include <stdint.h>

/* Anonymous resident bytes (statm: resident less shared), 0 if unknown. `pid` 0 is this process. */
uint64_t sg_procfs_anonymous_bytes(uint32_t pid);

/* When it began, in clock ticks since boot (stat, field 22), 0 if unknown. With its pid that tells it from any other. */
uint64_t sg_procfs_start_ticks(uint32_t pid);

/* How many threads it has (stat, field 20), 0 if unknown. */
uint64_t sg_procfs_threads(uint32_t pid);

/* Whether no more than so many threads of this process have not ended (the first one may linger). */
bool sg_procfs_is_left_to(uint32_t threads);

/* Minor page faults so far (stat, field 10), 0 if unknown. */
uint64_t sg_procfs_minor_faults(uint32_t pid);

/* Whether the memory is this process's own: a child made by vfork, or by clone(2) with CLONE_VM, has its parent's,
 * and puts nothing of its own in place there. False also where that cannot be told. */
bool sg_procfs_owns_memory(void);

/* Whether this process, with that pid, is the one that sg_procfs_owns_memory has found: a child that is the first
 * of a namespace of its own may have the pid of its parent. */
bool sg_procfs_is_owner(uint32_t pid);

/* This thread's id; in a child that has its parent's memory, that of the parent's thread, whose storage it uses. */
uint32_t sg_procfs_thread(void);

/* In a forked child, whose memory is its own. */
void sg_procfs_refork(void);

/* Of this process's anonymous memory, what no other process has too: at least and at most. False if unknown. Reads
 * smaps_rollup, which goes through all page tables: 4 to 11 ms for each GiB in 4 KiB pages, 0.02 ms in huge ones
 * (2-core VM, Linux 6.18). */
bool sg_procfs_private_bytes(uint64_t *least_bytes, uint64_t *most_bytes);

/* Of the text of a /proc/meminfo: the memory that percentages are of, in KiB. That is MemTotal minus the pool of huge
 * pages, which only requests for huge pages get. 0: unknown. */
uint64_t sg_meminfo_ordinary_kib(const char *meminfo);

#endif
