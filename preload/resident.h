/*
 * resident.h - how much of a piece of address space is there. Any thread, any time; what is not mapped has nothing.
 *
 * In a sandbox (sandbox.h) mincore may be fatal: /proc/self/pagemap is read instead, and what cannot be read is not there. It is
 * dearer (at most 5 ms per GiB where the kernel knows PAGEMAP_SCAN, Linux 6.7, else 20 ms; mincore 0.6 ms), and of shared memory
 * it shows what this process has touched.
 */
#ifndef SG_RESIDENT_H
#define SG_RESIDENT_H

#include <stdbool.h>
#include <stdint.h>

/* Resident bytes of the whole pages in [begin, end), by mincore unless the caller found a sandbox. */
uint64_t sg_resident_bytes(uintptr_t begin, uintptr_t end, bool is_sandboxed);

/* The same of a private mapping of a file: what was copied of it, also if it is swapped out. */
uint64_t sg_resident_copied_bytes(uintptr_t begin, uintptr_t end);

#endif
