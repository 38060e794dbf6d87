/*
 * old_libc.h - what the test programs use and glibc 2.31 does not declare, so that they build on Debian 11 as well. The
 * Makefile includes it first in each of them. Newer C libraries declare all of this themselves.
 */
#ifndef SG_TESTS_LIB_OLD_LIBC_H
#define SG_TESTS_LIB_OLD_LIBC_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <features.h>
#include <sys/syscall.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif

#if defined(__GLIBC__) && !__GLIBC_PREREQ(2, 36)
#include <sys/uio.h>
#include <unistd.h>
static inline ssize_t sg_old_process_madvise(int pidfd, const struct iovec *range, size_t count, int advice,
                                             unsigned flags)
{
    return syscall(SYS_process_madvise, pidfd, range, count, advice, flags);
}
#define process_madvise sg_old_process_madvise
#endif

#if defined(__GLIBC__) && !__GLIBC_PREREQ(2, 34)
#include <malloc.h>
static inline int sg_old_close_range(unsigned first, unsigned last, int flags)
{
    return (int)syscall(SYS_close_range, first, last, flags);
}
static inline int sg_old_execveat(int directory, const char *path, char *const arguments[], char *const variables[],
                                  int flags)
{
    return (int)syscall(SYS_execveat, directory, path, arguments, variables, flags);
}
#define close_range sg_old_close_range
#define execveat sg_old_execveat
#define mallinfo2 mallinfo /* the structure and the function */
#endif

#endif
