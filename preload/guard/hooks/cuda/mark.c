/*
 * mark.c - see mark.h.
 */
#include "hooks/cuda/mark.h"

#include "base/seccomp.h"
#include "base/syscall.h"

#include <errno.h>
#include <signal.h>
#include <sys/uio.h>

/* Whether this is a signal handler on an alternate stack and the mark is on another stack: then the frame of the mark
 * belongs to the interrupted code, which will continue. */
static bool is_on_another_stack(const struct sg_mark *mark)
{
    stack_t stack = {0};
    return sg_syscall(SYS_sigaltstack, 0, (long)&stack, 0, 0, 0, 0) == 0 && (stack.ss_flags & SS_ONSTACK) != 0 &&
           mark->frame - (uintptr_t)stack.ss_sp >= stack.ss_size;
}

/* Whether eight bytes at `address` are readable. Uses rt_sigprocmask, which every sandbox allows: the kernel reads the
 * mask before it rejects the unknown operation. */
static bool is_readable(uintptr_t address)
{
    enum { NOTHING_KNOWN = 99 };
    return sg_syscall(SYS_rt_sigprocmask, NOTHING_KNOWN, (long)address, 0, 8, 0, 0) != -EFAULT;
}

/* The stack grows downwards: frames of calls made inside a frame lie below it. A current frame above the mark means
 * that the frame of the mark was left. A current frame below may also belong to a later call: then the place of the
 * return address holds another value. That place may be unmapped by now, so it is read by process_vm_readv. Some
 * kernels, and qemu, lack that call. */
bool sg_mark_is_gone(const struct sg_mark *mark, uintptr_t frame_end)
{
    if (mark->frame == 0)
        return false;
    bool is_sandboxed = sg_seccomp_is_on();
    if (frame_end > mark->frame)
        return is_sandboxed || !is_on_another_stack(mark);
    uintptr_t found = 0, place = mark->frame + sizeof found;
    struct iovec to = {&found, sizeof found}, from = {(void *)place, sizeof found};
    long got = is_sandboxed ? -ENOSYS
                            : sg_syscall(SYS_process_vm_readv, (long)sg_sys_getpid(), (long)&to, 1, (long)&from, 1, 0);
    if (got == -EFAULT || (got < 0 && !is_readable(place)))
        return true;
    return (got == (long)sizeof found ? found : *(const uintptr_t *)place) != mark->returns_to;
}
