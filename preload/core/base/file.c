/*
 * file.c - see file.h.
 */
#include "base/file.h"

#include "base/syscall.h"
#include "base/pages.h"

#include <signal.h>
#include <sys/mman.h>

#define SIGNAL_BIT(number) (UINT64_C(1) << ((number)-1))
#define WRITE_SIGNALS (SIGNAL_BIT(SIGPIPE) | SIGNAL_BIT(SIGXFSZ))

/* What a thread had blocked, and what was pending for it, before a write. */
struct signals {
    uint64_t blocked, pending;
};

/* Blocks the signals that a write may raise. */
static struct signals begin_write(void)
{
    const uint64_t raised = WRITE_SIGNALS;
    struct signals before = {0, 0};
    (void)sg_sys_sigprocmask(0 /* SIG_BLOCK */, &raised, &before.blocked);
    (void)sg_syscall(SYS_rt_sigpending, (long)&before.pending, sizeof before.pending, 0, 0, 0, 0);
    return before;
}

/* Removes the signal that the write raised, unless it was pending before. The kernel raises it for the thread. Returns
 * `result`, the answer of the write. */
static long end_write(const struct signals *before, long result)
{
    const struct timespec at_once = {0, 0};
    uint64_t raised = result == -EPIPE ? SIGNAL_BIT(SIGPIPE) : result == -EFBIG ? SIGNAL_BIT(SIGXFSZ) : 0;
    if ((raised & ~before->pending) != 0)
        (void)sg_syscall(SYS_rt_sigtimedwait, (long)&raised, 0, (long)&at_once, sizeof raised, 0, 0);
    (void)sg_sys_sigprocmask(2 /* SIG_SETMASK */, &before->blocked, NULL);
    return result;
}

long sg_file_write(int fd, const void *bytes, size_t length)
{
    struct signals before = begin_write();
    return end_write(&before, sg_syscall(SYS_write, fd, (long)bytes, (long)length, 0, 0, 0));
}

long sg_file_write_at(int fd, const void *bytes, size_t length, uint64_t offset)
{
    struct signals before = begin_write();
    return end_write(&before, sg_syscall(SYS_pwrite64, fd, (long)bytes, (long)length, (long)offset, 0, 0));
}

/* A sparse file on a full /dev/shm would end the process by SIGBUS at the first access. */
long sg_file_allocate(int fd, uint64_t offset, uint64_t bytes, bool is_in_use)
{
    struct signals before = begin_write();
    long result = end_write(&before, sg_syscall(SYS_fallocate, fd, 0, (long)offset, (long)bytes, 0, 0));
    if (result != -EOPNOTSUPP && result != -ENOSYS)
        return result;
    static const char zeros[4096];
    for (uint64_t at = offset; !is_in_use && at < offset + bytes; at += sizeof zeros)
        if ((result = sg_file_write_at(fd, zeros, sizeof zeros, at)) != (long)sizeof zeros)
            return result < 0 ? result : -ENOSPC;
    return 0;
}

long sg_file_keep_open(int fd)
{
    void *keeper = sg_sys_mmap(NULL, sg_page_bytes(), PROT_READ, MAP_SHARED, fd, 0);
    if (sg_is_error(keeper))
        return (long)keeper;
    long result = sg_sys_madvise(keeper, sg_page_bytes(), MADV_DONTFORK);
    if (result != 0)
        (void)sg_sys_munmap(keeper, sg_page_bytes());
    return result;
}
