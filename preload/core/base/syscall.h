/*
 * syscall.h - direct system calls. No hook (ours or another preload's) sees them, the program's errno does not change,
 * and no call is a cancellation point.
 *
 * Each function returns the kernel's result: a value, or -errno. Any thread, any time, also in signal handlers.
 *
 * A seccomp filter may end the process because of a call that its author did not expect. Therefore one rule holds for
 * all calls of the library: under any filter, only the calls of sg_is_ordinary_call are made; others return -EPERM.
 * With SG_FAULT_INJECTION every call asks sg_fault_next() first, so that a test can make each call fail once.
 */
#ifndef SG_PRELOAD_BASE_SYSCALL_H
#define SG_PRELOAD_BASE_SYSCALL_H

#include "base/compiler.h"

#include "base/seccomp.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>

#ifndef SYS_close_range /* Linux 5.9, glibc 2.32 */
#define SYS_close_range 436
#endif
#ifndef SYS_process_madvise /* Linux 5.10, glibc 2.33 */
#define SYS_process_madvise 440
#endif
#ifndef SYS_cachestat /* Linux 6.5, glibc 2.39 */
#define SYS_cachestat 451
#endif

#ifdef SG_FAULT_INJECTION
long sg_fault_next(long number); /* 0, or the -errno with which the system call `number` shall fail */
#endif

#ifdef __SANITIZE_THREAD__
/* ThreadSanitizer does not see direct system calls. When one thread unmaps memory and another one maps it, the kernel
 * orders the two; these macros tell ThreadSanitizer. */
#include <sanitizer/tsan_interface.h>
__attribute__((weak)) char sg_order_of_mappings;
#define SG_GIVES_BACK() __tsan_release(&sg_order_of_mappings)
#define SG_GOT() __tsan_acquire(&sg_order_of_mappings)
#else
#define SG_GIVES_BACK() ((void)0)
#define SG_GOT() ((void)0)
#endif

/* Whether only code makes this call that has asked sg_seccomp_is_strict, that answers for a call of the program itself,
 * or that removes a signal which would end the program. */
static inline __attribute__((always_inline)) bool sg_is_answered_for(long number)
{
    switch (number) {
    case SYS_fadvise64:
    case SYS_statx:
    case SYS_setsid:
    case SYS_shmctl:
    case SYS_process_madvise:
    case SYS_rt_sigtimedwait:
        return true;
    default:
        return false;
    }
}

/* Whether the library makes this call under a filter, too: calls that filters allow or answer with an error, because
 * most programs and the C library make them, and those of sg_is_answered_for. */
static inline __attribute__((always_inline)) bool sg_is_ordinary_call(long number)
{
    switch (number) {
    case SYS_openat:
    case SYS_close:
    case SYS_close_range:
    case SYS_read:
    case SYS_write:
    case SYS_pread64:
    case SYS_pwrite64:
    case SYS_lseek:
    case SYS_fstat:
    case SYS_newfstatat:
    case SYS_fcntl:
    case SYS_ioctl:
    case SYS_ppoll:
    case SYS_flock:
    case SYS_fchmod:
    case SYS_fchmodat:
    case SYS_fallocate:
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_getdents64:
    case SYS_readlinkat:
    case SYS_mkdirat:
    case SYS_linkat:
    case SYS_renameat2:
    case SYS_unlinkat:
    case SYS_mmap:
    case SYS_munmap:
    case SYS_mprotect:
    case SYS_madvise:
    case SYS_mlock:
    case SYS_munlock:
    case SYS_futex:
    case SYS_nanosleep:
    case SYS_sched_yield:
    case SYS_clock_gettime:
    case SYS_getrandom:
    case SYS_sysinfo:
    case SYS_prlimit64:
    case SYS_prctl:
    case SYS_getpid:
    case SYS_getppid:
    case SYS_gettid:
    case SYS_getuid:
    case SYS_geteuid:
    case SYS_kill:
    case SYS_exit:
    case SYS_exit_group:
    case SYS_wait4:
    case SYS_rt_sigprocmask:
    case SYS_sigaltstack:
        return true;
    default:
        return sg_is_answered_for(number);
    }
}

/* Makes a call about which the caller has asked sg_seccomp_is_on. */
static inline long sg_syscall_asked(long number, long a, long b, long c, long d, long e, long f)
{
#ifdef SG_FAULT_INJECTION
    long fault = sg_fault_next(number);
    if (fault != 0)
        return fault;
#endif
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory", "cc");
    return x0;
#endif
}

/* Makes a system call, or returns -EPERM: the rule of this file. `number` is a constant almost everywhere, so that the
 * question costs nothing for ordinary calls, and about 5 us for others. */
static inline __attribute__((always_inline)) long sg_syscall(long number, long a, long b, long c, long d, long e,
                                                             long f)
{
    return sg_is_ordinary_call(number) || !sg_seccomp_is_on() ? sg_syscall_asked(number, a, b, c, d, e, f) : -EPERM;
}

#define SG_AT_FDCWD (-100L)

static inline long sg_sys_openat(int dir, const char *path, int flags, unsigned mode)
{
    return sg_syscall(SYS_openat, dir, (long)path, flags, (long)mode, 0, 0);
}

static inline long sg_sys_close(int fd)
{
    return sg_syscall(SYS_close, fd, 0, 0, 0, 0, 0);
}

static inline long sg_sys_read(int fd, void *buffer, size_t bytes)
{
    return sg_syscall(SYS_read, fd, (long)buffer, (long)bytes, 0, 0, 0);
}

static inline long sg_sys_pread(int fd, void *buffer, size_t bytes, uint64_t offset)
{
    return sg_syscall(SYS_pread64, fd, (long)buffer, (long)bytes, (long)offset, 0, 0);
}

static inline long sg_sys_flock(int fd, int operation)
{
    return sg_syscall(SYS_flock, fd, operation, 0, 0, 0, 0);
}

static inline long sg_sys_fcntl(int fd, int operation, const void *argument)
{
    return sg_syscall(SYS_fcntl, fd, operation, (long)argument, 0, 0, 0);
}

static inline long sg_sys_fchmod(int fd, unsigned mode)
{
    return sg_syscall(SYS_fchmod, fd, (long)mode, 0, 0, 0, 0);
}

static inline long sg_sys_mkdirat(int dir, const char *path, unsigned mode)
{
    return sg_syscall(SYS_mkdirat, dir, (long)path, (long)mode, 0, 0, 0);
}

static inline long sg_sys_linkat(int dir, const char *from, const char *to)
{
    return sg_syscall(SYS_linkat, dir, (long)from, dir, (long)to, 0x400 /* AT_SYMLINK_FOLLOW: of /proc/self/fd */, 0);
}

static inline long sg_sys_fdatasync(int fd)
{
    return sg_syscall(SYS_fdatasync, fd, 0, 0, 0, 0, 0);
}

static inline long sg_sys_rename(const char *from, const char *to)
{
    return sg_syscall(SYS_renameat2, SG_AT_FDCWD, (long)from, SG_AT_FDCWD, (long)to, 0, 0);
}

static inline long sg_sys_unlinkat(int dir, const char *path)
{
    return sg_syscall(SYS_unlinkat, dir, (long)path, 0, 0, 0, 0);
}

struct sg_directory_entry { /* struct linux_dirent64 */
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

static inline long sg_sys_getdents(int fd, void *buffer, size_t bytes)
{
    return sg_syscall(SYS_getdents64, fd, (long)buffer, (long)bytes, 0, 0, 0);
}

static inline long sg_sys_fstat(int fd, struct stat *out)
{
    return sg_syscall(SYS_fstat, fd, (long)out, 0, 0, 0, 0);
}

static inline long sg_sys_stat(const char *path, struct stat *out)
{
    return sg_syscall(SYS_newfstatat, SG_AT_FDCWD, (long)path, (long)out, 0, 0, 0);
}

static inline long sg_sys_fstatfs(int fd, struct statfs *out)
{
    return sg_syscall(SYS_fstatfs, fd, (long)out, 0, 0, 0, 0);
}

static inline void *sg_sys_mmap(void *address, size_t bytes, int prot, int flags, int fd, uint64_t offset)
{
    void *result = (void *)sg_syscall(SYS_mmap, (long)address, (long)bytes, prot, flags, fd, (long)offset);
    SG_GOT();
    return result;
}

/* Whether a result of sg_sys_mmap is an error; then the address is -errno. */
static inline int sg_is_error(const void *address)
{
    return (uintptr_t)address > (uintptr_t)-4096;
}

static inline long sg_sys_munmap(void *address, size_t bytes)
{
    SG_GIVES_BACK();
    return sg_syscall(SYS_munmap, (long)address, (long)bytes, 0, 0, 0, 0);
}

static inline long sg_sys_madvise(void *address, size_t bytes, int advice)
{
    return sg_syscall(SYS_madvise, (long)address, (long)bytes, advice, 0, 0, 0);
}

/* With MS_ASYNC the kernel only checks whether the whole range is mapped. */
static inline long sg_sys_msync(uintptr_t address, size_t bytes, int flags)
{
    return sg_syscall(SYS_msync, (long)address, (long)bytes, flags, 0, 0, 0);
}

/* The caller has asked sg_seccomp_is_on: it asks once for many calls. */
static inline long sg_sys_mincore(uintptr_t address, size_t bytes, unsigned char *out)
{
    return sg_syscall_asked(SYS_mincore, (long)address, (long)bytes, (long)out, 0, 0, 0);
}

static inline long sg_sys_futex(uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return sg_syscall(SYS_futex, (long)word, operation, (long)value, (long)timeout, 0, 0);
}

static inline long sg_sys_sigprocmask(int how, const uint64_t *set, uint64_t *old)
{
    return sg_syscall(SYS_rt_sigprocmask, how, (long)set, (long)old, 8, 0, 0);
}

static inline uint32_t sg_sys_getpid(void)
{
    return (uint32_t)sg_syscall(SYS_getpid, 0, 0, 0, 0, 0, 0);
}

static inline uint32_t sg_sys_gettid(void)
{
    return (uint32_t)sg_syscall(SYS_gettid, 0, 0, 0, 0, 0, 0);
}

static inline long sg_sys_clock_gettime(int clock, struct timespec *now)
{
    return sg_syscall(SYS_clock_gettime, clock, (long)now, 0, 0, 0, 0);
}

/* A number for unique file names: random, or from time and thread id if the kernel has no random bytes yet. */
static inline uint64_t sg_sys_unique(void)
{
    struct timespec now = {0, 0};
    (void)sg_sys_clock_gettime(CLOCK_REALTIME, &now);
    uint64_t unique = ((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec) * UINT64_C(0x9e3779b97f4a7c15);
    (void)sg_syscall(SYS_getrandom, (long)&unique, sizeof unique, 1 /* GRND_NONBLOCK */, 0, 0, 0);
    return unique ^ sg_sys_gettid();
}

#endif
