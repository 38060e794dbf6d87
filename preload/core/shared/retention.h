/*
 * retention.h - removes old records of ended processes. `directory` is the descriptor of an open directory.
 */
#ifndef SG_PRELOAD_SHARED_RETENTION_H
#define SG_PRELOAD_SHARED_RETENTION_H

#include <stdint.h>

/* Cleans SPARKGUARD_DIR: if it holds more than 128 segments of this user, removes the oldest of dead processes until 64
 * are left. Also removes unfinished files and time lines without a segment. Under the segment's lock, with signals
 * blocked. */
void sg_retention_sweep(int directory);

/* Cleans a history directory, whose copies nobody locks: removes the oldest of this user's until they take at most
 * `bytes_max` together. */
void sg_retention_trim(int directory, uint64_t bytes_max);

#endif
