/*
 * file.h - writes to files, and common functions for the files in SPARKGUARD_DIR that processes map.
 *
 * Everything that the library writes goes through here: lines on standard error, records, history, settings. No write
 * raises a signal. A pipe without a reader (SIGPIPE) or a limit on the size of files (SIGXFSZ; RLIMIT_FSIZE, which
 * sandboxes set to 0) would end the program for a file that it did not write.
 *
 * Results are the kernel's: a value, or -errno. Any thread, also in signal handlers.
 */
#ifndef SG_PRELOAD_BASE_FILE_H
#define SG_PRELOAD_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As write and pwrite. May write less: the rest up to the limit on the size of files. */
long sg_file_write(int fd, const void *bytes, size_t length);
long sg_file_write_at(int fd, const void *bytes, size_t length, uint64_t offset);

/* Keeps the open file and its locks for the life of this process, even if the descriptor is closed: maps one page of it
 * with MADV_DONTFORK, so that no forked child inherits the locks (sparkguard_abi.h, "Liveness"). 0 or -errno. */
long sg_file_keep_open(int fd);

/* Allocates disk blocks for [offset, offset + bytes) of a file. 0 or -errno. If the file system has no fallocate, zeros
 * are written there; `is_in_use`: not so, because other processes use that part, and its maker has written all of
 * it. */
long sg_file_allocate(int fd, uint64_t offset, uint64_t bytes, bool is_in_use);

#endif
