/*
 * fault.c - makes the library's own system calls fail on demand; linked into build/fault/libsparkguard.so only.
 *
 *   SG_FAULT=N[:ERRNO]            the Nth call of each process fails once
 *   SG_FAULT=NUMBER@N[:ERRNO]     the Nth call of system call NUMBER fails once
 *   SG_FAULT=NUMBER@N:hang        it never returns
 *   SG_FAULT_LOG=FILE             FILE becomes a struct fault_log: how many calls, which, and whether one was made to
 *   fail
 *
 * A forked child goes on counting where its parent was; a new program begins anew. Without ERRNO each call fails with
 * what the kernel would most likely say. Calls that no kernel refuses (getpid and its like) are passed over.
 *
 * Called before the libc is ready, from any thread and from signal handlers: the environment is read from /proc, and
 * nothing here allocates.
 */
#undef SG_FAULT_INJECTION
#include "base/atomics.h"
#include "base/syscall.h"
#include "base/text.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

enum { LOG_CAPACITY = 4088 };

struct fault_log {
    uint64_t calls; /* of the process that made most */
    uint64_t faults;
    uint16_t number[LOG_CAPACITY]; /* of the first calls, by whoever came last */
};

long sg_fault_next(long number);

static struct {
    uint32_t is_read;
    uint64_t calls; /* those that count for `fail_at` */
    uint64_t all_calls;
    uint64_t fail_at; /* 0: none */
    long only;        /* this system call; -1: any */
    long error;       /* 0: by number */
    uint32_t hangs;
    struct fault_log *log;
} fault;

static bool never_fails(long number)
{
    return number == SYS_getpid || number == SYS_gettid || number == SYS_getppid || number == SYS_getuid ||
           number == SYS_geteuid;
}

static long likely_error(long number)
{
    if (number == SYS_openat)
        return -EMFILE;
    if (number == SYS_fallocate || number == SYS_pwrite64)
        return -ENOSPC;
    if (number == SYS_flock || number == SYS_futex)
        return -EINTR;
    if (number == SYS_mkdirat || number == SYS_unlinkat)
        return -EACCES;
    return number == SYS_mmap || number == SYS_madvise ? -ENOMEM : -EIO;
}

/* The value of a variable, or NULL. */
static const char *find(const char *environment, long length, const char *name)
{
    size_t size = strlen(name);
    for (const char *at = environment; at < environment + length; at += strlen(at) + 1)
        if (strncmp(at, name, size) == 0)
            return at + size;
    return NULL;
}

static void read_order(const char *order)
{
    fault.only = -1;
    if (order == NULL)
        return;
    fault.fail_at = sg_text_read_number(&order);
    if (*order == '@') {
        fault.only = (long)fault.fail_at;
        order++;
        fault.fail_at = sg_text_read_number(&order);
    }
    if (*order == ':') {
        order++;
        fault.hangs = *order == 'h';
        fault.error = -(long)sg_text_read_number(&order);
    }
}

static void open_log(const char *path)
{
    long fd = path != NULL ? sg_sys_openat((int)SG_AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        return;
    if (sg_syscall(SYS_ftruncate, fd, sizeof *fault.log, 0, 0, 0, 0) == 0) {
        void *log = sg_sys_mmap(NULL, sizeof *fault.log, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
        fault.log = sg_is_error(log) ? NULL : log;
    }
    (void)sg_sys_close((int)fd);
}

static void read_environment(void)
{
    static char environment[65536];
    long length = 0, got = -1;
    long fd = sg_sys_openat((int)SG_AT_FDCWD, "/proc/self/environ", O_RDONLY | O_CLOEXEC, 0);
    while (fd >= 0 && length < (long)sizeof environment - 1 &&
           (got = sg_sys_read((int)fd, environment + length, sizeof environment - 1 - (size_t)length)) > 0)
        length += got;
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
    open_log(find(environment, length, "SG_FAULT_LOG=")); /* before any call of this file may be made to fail */
    read_order(find(environment, length, "SG_FAULT="));
}

long sg_fault_next(long number)
{
    uint32_t unread = 0;
    if (never_fails(number))
        return 0;
    if (sg_load_acquire(&fault.is_read) == 0 && sg_cas_u32(&fault.is_read, &unread, 1))
        read_environment();
    uint64_t all = sg_fetch_add(&fault.all_calls, UINT64_C(1)) + 1;
    if (fault.log != NULL) {
        sg_raise_to(&fault.log->calls, all);
        if (all <= LOG_CAPACITY)
            fault.log->number[all - 1] = (uint16_t)number;
    }
    if (fault.fail_at == 0 || (fault.only >= 0 && fault.only != number))
        return 0;
    if (sg_fetch_add(&fault.calls, UINT64_C(1)) + 1 != fault.fail_at)
        return 0;
    if (fault.log != NULL)
        sg_fetch_add(&fault.log->faults, UINT64_C(1));
    while (fault.hangs) {
        const struct timespec day = {86400, 0};
        (void)sg_syscall(SYS_nanosleep, (long)&day, 0, 0, 0, 0, 0); /* holds: until the test ends it */
    }
    return fault.error != 0 ? fault.error : likely_error(number);
}
