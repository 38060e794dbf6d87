/*
 * retention.h - keeps the directories small that the library writes to. The argument is an open directory.
 */
#ifndef SG_PRELOAD_SHARED_RETENTION_H
#define SG_PRELOAD_SHARED_RETENTION_H

#include <stdint.h>

/* Removes what dead processes left in SPARKGUARD_DIR, if there is much of it. With signals blocked. */
void sg_retention_sweep(int directory);

/* The same of a directory of copies, which nobody locks: the oldest go until all together take no more than
 * `bytes_most`. */
void sg_retention_trim(int directory, uint64_t bytes_most);

#endif
