/*
 * clock.h - the kernel's clocks.
 */
#ifndef SG_PRELOAD_BASE_CLOCK_H
#define SG_PRELOAD_BASE_CLOCK_H

#include <stdint.h>

/* The time of a clock in ns, CLOCK_MONOTONIC as of the machine (procfs.h); 0 if the kernel returns an error. Uses the
 * vDSO if there is one, and not the libc, whose functions libfaketime and similar preloads interpose. Any thread. */
uint64_t sg_clock_ns(int clock);

#endif
