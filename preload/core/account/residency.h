/*
 * residency.h - counts the resident pages of a range of addresses. Unmapped addresses have no resident pages.
 *
 * Three methods; a function falls back to a later one where an earlier one cannot be used:
 *   1. PAGEMAP_SCAN on /proc/self/pagemap (Linux 6.7 and later): costs nothing where no pages are, 0.04 ms per GiB of
 *      huge pages, 3 ms per GiB of other pages.
 *   2. mincore: 0.6 ms per GiB. Not in a sandbox (seccomp.h), which may end the process for it.
 *   3. Reading the entries of /proc/self/pagemap: 20 ms per GiB.
 * A page whose state cannot be read counts as not resident. Arguments are addresses, results are bytes of whole pages.
 * Any thread, any time.
 */
#ifndef SG_PRELOAD_ACCOUNT_RESIDENCY_H
#define SG_PRELOAD_ACCOUNT_RESIDENCY_H

#include "base/seccomp.h"

#include <stdbool.h>
#include <stdint.h>

/* Resident bytes of private memory, without the kernel's shared zero page, which reading maps in. Only the first method
 * can tell the zero page from other pages; the other methods count it. */
uint64_t sg_residency_bytes(uintptr_t begin, uintptr_t end, struct sg_seccomp_answer *sandbox);

/* Whether the kernel has PAGEMAP_SCAN: the cost then depends on the resident pages, not on the size of the range. */
bool sg_residency_is_cheap(void);

/* Resident bytes of shared memory, whichever process touched the pages. In a sandbox: only pages that this process has
 * mapped. */
uint64_t sg_residency_cached_bytes(uintptr_t begin, uintptr_t end, struct sg_seccomp_answer *sandbox);

/* Resident bytes of a private mapping of a file that were copied when they were written to. 0 where the kernel does not
 * have PAGEMAP_SCAN. */
uint64_t sg_residency_copied_bytes(uintptr_t begin, uintptr_t end);

#endif
