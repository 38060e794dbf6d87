/*
 * commits.h - predicts how much of its committed memory a process will touch. To commit is to make reserved address
 * space writable.
 *
 * A managed heap (OpenJDK's G1, .NET) reserves the most it may ever use. It commits pieces by mmap(MAP_FIXED) or
 * mprotect long before it needs them, and ends the process if a commit is refused. Committed is not touched: a Java
 * heap of 38 GiB may touch 2 GiB. A commit that fits is promised in full, as any other mapping. A commit that does not
 * fit is judged by the process's record of earlier commits:
 *
 *   - At least as many committed bytes were left untouched as were touched, for at least AGED_NS (250 ms), and the
 *     process does touch committed memory (constants: commits.c).
 *   - The watchdog of the process runs and may end the process. Nothing else bounds how much committed memory a
 *     process touches.
 *   - The process is expected to touch the same share of the untouched bytes as it touched of all, at least a quarter.
 *     From then on that share is promised for all commits together. The increase by the new commit must fit.
 *
 * Each scan computes the promise anew. If the process begins to touch more, the promise grows, other processes get
 * less, and no further commit passes by the record. Once half is touched, the rest is promised in full again.
 *
 * Thread-safety: under sg_decision_lock, except where noted.
 */
#ifndef SG_PRELOAD_ACCOUNT_COMMITS_H
#define SG_PRELOAD_ACCOUNT_COMMITS_H

#include <stdbool.h>
#include <stdint.h>

/* A scan: notes the touched and untouched bytes of each committed range, then ends. end_scan returns how many of the
 * untouched bytes are to be promised. */
void sg_commits_note(uint64_t touched_bytes, uint64_t untouched_bytes);
uint64_t sg_commits_end_scan(void);

/* Whether one more commit may be judged by the record, as of the last scan. */
bool sg_commits_have_record(void);

/* Sets whether the promise follows the record, from the next scan on. Returns whether it did before. */
bool sg_commits_set_on_record(bool is_on);

/* How many bytes the promise would grow if `bytes` more were committed; at least a quarter of `bytes`. */
uint64_t sg_commits_expected_bytes(uint64_t bytes);

/* Whether the promise follows the record: less may be promised of committed memory than is untouched. Any thread. */
bool sg_commits_are_on_record(void);

/* In a forked child: forgets the record. The child's committed memory is inherited, and no part of its own record. */
void sg_commits_atfork_child(void);

#endif
