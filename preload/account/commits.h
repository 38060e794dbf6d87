/*
 * commits.h - how much of the address space that this process reserved and then made writable it comes to touch.
 *
 * A managed heap (OpenJDK's G1, .NET) reserves the most it may ever use, commits pieces of it by mmap(MAP_FIXED) or
 * mprotect long before it needs them, and ends the process where one is refused. Committing is not touching: a Java
 * heap of 38 GiB may hold 2. As long as the pieces fit, each is promised in full, as any other mapping. One that
 * does not is judged by the record of the earlier ones:
 *
 *   - The process must have left at least as much of them untouched as it touched, for AGED_NS at least, and must use
 *     them at all.
 *   - Its watchdog must run and may end it: nothing else bounds what a process touches of memory that it has.
 *   - It is expected to touch the same part of what is untouched as it has touched of all, and a quarter at least. So
 *     much is promised of all pieces together from then on, and what the new piece adds to it must fit.
 *
 * Each scan renews the promise: a process that begins to touch more keeps others from that room, and gets nothing
 * more on its record. Once half is touched, the rest is promised in full again.
 *
 * Under the decision lock, except where noted.
 */
#ifndef SG_PRELOAD_ACCOUNT_COMMITS_H
#define SG_PRELOAD_ACCOUNT_COMMITS_H

#include <stdbool.h>
#include <stdint.h>

/* A scan: begin, what it found touched and untouched of such memory, end. The result is the part that is promised. */
void sg_commits_begin_scan(void);
void sg_commits_note(uint64_t touched_bytes, uint64_t untouched_bytes);
uint64_t sg_commits_end_scan(void);

/* Whether one more piece may be judged by the record, as of the last scan. */
bool sg_commits_have_record(void);

/* From the next scan on the promise goes by the record, or does not. Whether it did. */
bool sg_commits_set_on_record(bool is_on);

/* How much `bytes` more would add to the promise, a quarter of them at least. */
uint64_t sg_commits_expected_bytes(uint64_t bytes);

/* Whether less may be promised of such memory than is missing of it. Any thread. */
bool sg_commits_are_on_record(void);

/* In a forked child: what there is of it is inherited. */
void sg_commits_refork(void);

#endif
