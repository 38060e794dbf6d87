/*
 * clock.c - see clock.h. Reads the clocks in the vDSO, or by a system call if there is none (valgrind hides it).
 */
#include "base/clock.h"

#include "base/atomics.h"
#include "base/procfs.h"
#include "base/elf_symbols.h"
#include "base/syscall.h"

#include <string.h>

typedef int gettime_function(clockid_t clock, struct timespec *now);

static int ask_kernel(clockid_t clock, struct timespec *now)
{
    return (int)sg_sys_clock_gettime(clock, now);
}

static gettime_function *find(void)
{
#if defined(SG_FAULT_INJECTION)
    void *address = NULL; /* system calls only, so that a test can make each reading fail */
#elif defined(__x86_64__)
    void *address = sg_elf_symbols_vdso("__vdso_clock_gettime");
#else
    void *address = sg_elf_symbols_vdso("__kernel_clock_gettime");
#endif
    gettime_function *gettime = ask_kernel;
    if (address != NULL)
        memcpy(&gettime, &address, sizeof gettime);
    return gettime;
}

uint64_t sg_clock_ns(int clock)
{
    static gettime_function *known;
    gettime_function *gettime = sg_load_relaxed(&known); /* threads that race here all find the same function */
    struct timespec now = {0, 0};
    if (SG_UNLIKELY(gettime == NULL)) {
        gettime = find();
        sg_store_relaxed(&known, gettime);
    }
    if (gettime(clock, &now) != 0)
        return 0;
    uint64_t offset = clock == CLOCK_MONOTONIC ? (uint64_t)sg_load_relaxed(&sg_procfs_clock_offset_ns) : 0;
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec - offset;
}
