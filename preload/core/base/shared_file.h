/*
 * shared_file.h - common functions for the files in SPARKGUARD_DIR that processes map. Any thread.
 */
#ifndef SG_PRELOAD_BASE_SHARED_FILE_H
#define SG_PRELOAD_BASE_SHARED_FILE_H

#include <stdint.h>

/* Keeps the open file and its locks for the life of this process, even if the descriptor is closed: maps one page of it
 * with MADV_DONTFORK, so that no forked child inherits the locks (sparkguard_abi.h, "Liveness"). 0 or -errno. */
long sg_shared_file_keep_open(int fd);

/* Allocates disk blocks for [offset, offset + bytes) of a file. 0 or -errno. Call with signals blocked, and only for a
 * part that no other process uses yet: if the file system has no fallocate, zeros are written there. */
long sg_shared_file_allocate(int fd, uint64_t offset, uint64_t bytes);

/* As sg_shared_file_allocate for a part that other processes use: its contents do not change. If the file system has no
 * fallocate, returns 0, because the file's maker has written all of it. */
long sg_shared_file_reserve(int fd, uint64_t offset, uint64_t bytes);

#endif
