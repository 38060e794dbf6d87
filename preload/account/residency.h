/*
 * residency.h - how much of a piece of address space is there. Any thread, any time; what is not mapped has nothing.
 *
 * By /proc/self/pagemap where the kernel can scan it (PAGEMAP_SCAN, Linux 6.7), which costs nothing where nothing is
 * there, 0.04 ms per GiB of huge pages, 3 of others. By mincore else (0.6 ms), unless the caller found a sandbox
 * (seccomp.h), in which that may be fatal: then by reading entries (20 ms). What cannot be read is not there. Sizes in
 * bytes of whole pages.
 */
#ifndef SG_PRELOAD_ACCOUNT_RESIDENCY_H
#define SG_PRELOAD_ACCOUNT_RESIDENCY_H

#include <stdbool.h>
#include <stdint.h>

/* Of private memory: pages of its own. Reading puts the kernel's one page of zeros everywhere, which is none; only a
 * kernel that cannot scan does not tell it from others. */
uint64_t sg_residency_bytes(uintptr_t begin, uintptr_t end, bool is_sandboxed);

/* Whether the kernel tells it at a cost of what is there, however large the piece is. */
bool sg_residency_is_cheap(void);

/* Of shared memory: pages that anybody has brought there; in a sandbox, that this process has. */
uint64_t sg_residency_cached_bytes(uintptr_t begin, uintptr_t end, bool is_sandboxed);

/* Of private memory: what was there and was not given back, also if it is swapped out. False if that cannot be told. */
bool sg_residency_taken_bytes(uintptr_t begin, uintptr_t end, uint64_t *bytes);

#endif
