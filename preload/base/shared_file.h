/*
 * shared_file.h - what the files in SPARKGUARD_DIR have in common, which processes map and find each other by. Any
 * thread.
 */
#ifndef SG_PRELOAD_BASE_SHARED_FILE_H
#define SG_PRELOAD_BASE_SHARED_FILE_H

#include <stdint.h>

/* Keeps the open file, and with it its locks, alive by a mapping that no forked child inherits, whatever becomes of the
 * descriptor (sparkguard_abi.h, "Liveness"). 0 or -errno. */
long sg_shared_file_keep_open(int fd);

/* Makes sure that [offset, offset + bytes) of a file is really there. 0 or -errno. With signals blocked. For a part
 * that nobody else uses yet: where the file system has no fallocate, zeros are written there. */
long sg_shared_file_allocate(int fd, uint64_t offset, uint64_t bytes);

/* The same for a part that others use: it changes nothing in it. Where the file system has no fallocate, 0: the
 * maker has written all of it. */
long sg_shared_file_reserve(int fd, uint64_t offset, uint64_t bytes);

#endif
