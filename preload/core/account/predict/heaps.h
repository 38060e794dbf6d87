/*
 * heaps.h - predicts how much of a writable MAP_NORESERVE mapping a process will touch.
 *
 * Allocators of this kind (mimalloc, jemalloc, and what has one inside: PyTorch for aarch64, Polars, pyarrow, DuckDB)
 * map the address space of a heap at once and take blocks from it without a call. Such a mapping promises nothing, so
 * it is judged when it is made: in full against the machine and its cgroups, and against the job's limit by what is
 * predicted here. What becomes resident counts against the limit from the next scan on.
 *
 * The record is what the earlier mappings of the process have turned into, by the last scan. Without a record, a power
 * of two is taken for the arena of a heap, of which a quarter is expected, and any other size for a block that is
 * written whole: an allocator gives a block above its arena's size a mapping of its own.
 *
 * Thread-safety: any thread, except where noted.
 */
#ifndef SG_PRELOAD_ACCOUNT_PREDICT_HEAPS_H
#define SG_PRELOAD_ACCOUNT_PREDICT_HEAPS_H

#include <stdbool.h>
#include <stdint.h>

/* A scan found `extent_bytes` of these mappings, no larger than the machine and not inherited at fork, and so much of
 * them resident. Under sg_decision_lock. */
void sg_heaps_note(uint64_t extent_bytes, uint64_t resident_bytes);

/* Whether the process has mapped enough of that kind to be a record. */
bool sg_heaps_have_record(void);

/* How much of `bytes` more will become resident; at least a quarter. */
uint64_t sg_heaps_expected_bytes(uint64_t bytes);

/* Whether a mapping is address space for all that a program may ever hold (sanitizers, databases), which is free:
 * larger than the machine; or, in a process without a record, whole GiB, from four on. */
bool sg_heaps_is_reservation(uint64_t bytes, uint64_t machine_bytes);

/* In a forked child: forgets the record. */
void sg_heaps_atfork_child(void);

#endif
