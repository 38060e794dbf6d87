/*
 * call_filter.h - for tests: one system call of this thread, and of those that it makes from here on, is answered by a
 * filter.
 */
#ifndef CALL_FILTER_H
#define CALL_FILTER_H

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* `action`: SECCOMP_RET_ERRNO | errno, SECCOMP_RET_TRAP (SIGSYS), SECCOMP_RET_USER_NOTIF. `flags`: those of seccomp(2).
 * What seccomp(2) returns; the caller may have to give up new rights first, as filter_call does. */
static inline long install_filter(unsigned call, unsigned action, unsigned flags)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

/* False where there are no filters. */
static inline bool filter_call(unsigned call, unsigned action)
{
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && install_filter(call, action, 0) == 0;
}

#endif
