/*
 * shared_file.c - see shared_file.h.
 */
#include "base/shared_file.h"

#include "base/syscall.h"
#include "base/pages.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>

/* Allocates the file's blocks. A sparse file on a full /dev/shm would end the process by SIGBUS at the first access. */
static long fill(int fd, uint64_t offset, uint64_t bytes, bool is_in_use)
{
    long result = sg_sys_fallocate(fd, offset, bytes);
    if (result != -EOPNOTSUPP && result != -ENOSYS)
        return result;
    static const char zeros[4096];
    for (uint64_t at = offset; !is_in_use && at < offset + bytes; at += sizeof zeros)
        if ((result = sg_sys_pwrite(fd, zeros, sizeof zeros, at)) != (long)sizeof zeros)
            return result < 0 ? result : -ENOSPC;
    return 0;
}

/* As `fill`, and removes the SIGXFSZ that a limit on file sizes (ulimit -f) causes. That signal would end the program
 * for a file that it did not write. Callers hold a lock, so the signal is blocked and can be removed here. */
static long fill_without_signal(int fd, uint64_t offset, uint64_t bytes, bool is_in_use)
{
    const uint64_t size_signal = UINT64_C(1) << (SIGXFSZ - 1);
    const struct timespec at_once = {0, 0};
    uint64_t pending = 0;
    (void)sg_syscall(SYS_rt_sigpending, (long)&pending, 8, 0, 0, 0, 0);
    long result = fill(fd, offset, bytes, is_in_use);
    if (result == -EFBIG && (pending & size_signal) == 0)
        (void)sg_syscall(SYS_rt_sigtimedwait, (long)&size_signal, 0, (long)&at_once, 8, 0, 0);
    return result;
}

long sg_shared_file_allocate(int fd, uint64_t offset, uint64_t bytes)
{
    return fill_without_signal(fd, offset, bytes, false);
}

long sg_shared_file_reserve(int fd, uint64_t offset, uint64_t bytes)
{
    return fill_without_signal(fd, offset, bytes, true);
}

long sg_shared_file_keep_open(int fd)
{
    void *keeper = sg_sys_mmap(NULL, sg_page_bytes(), PROT_READ, MAP_SHARED, fd, 0);
    if (sg_is_error(keeper))
        return (long)keeper;
    long result = sg_sys_madvise(keeper, sg_page_bytes(), MADV_DONTFORK);
    if (result != 0)
        (void)sg_sys_munmap(keeper, sg_page_bytes());
    return result;
}
