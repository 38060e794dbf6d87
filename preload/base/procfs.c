/*
 * procfs.c - see base/procfs.h.
 */
#include "base/procfs.h"

#include "base/atomics.h"
#include "base/syscall.h"
#include "base/text.h"
#include "base/pages.h"

#include <pthread.h>
#include <string.h>

static uint32_t owner_pid;       /* (atomic) whose the memory is; 0: nobody has asked */
static uint64_t owner_shown_pid; /* (atomic) of a process 1: the pid that it has for whoever mounted /proc */

static long read_file(uint32_t pid, const char *name, char *buffer, size_t room)
{
    char path[48];
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, "/proc/");
    if (pid != 0)
        sg_text_add_number(&text, pid);
    else
        sg_text_add(&text, "self");
    sg_text_add(&text, name);
    return sg_text_read_file(path, buffer, room);
}

uint64_t sg_procfs_anonymous_bytes(uint32_t pid)
{
    char content[256];
    if (read_file(pid, "/statm", content, sizeof content) <= 0)
        return 0;
    const char *cursor = content;
    (void)sg_text_read_number(&cursor);
    uint64_t resident = sg_text_read_number(&cursor);
    uint64_t shared = sg_text_read_number(&cursor);
    return resident > shared ? (resident - shared) * sg_page_bytes() : 0;
}

/* Fields are numbered as in proc(5); the command in parentheses, field 2, may hold anything. */
static uint64_t read_stat(uint32_t pid, int wanted)
{
    char content[1024];
    if (read_file(pid, "/stat", content, sizeof content) <= 0)
        return 0;
    const char *cursor = strrchr(content, ')');
    for (int field = 2; cursor != NULL && field < wanted; field++)
        cursor = strchr(cursor + 1, ' ');
    return cursor != NULL ? sg_text_read_number(&cursor) : 0;
}

uint64_t sg_procfs_start_ticks(uint32_t pid)
{
    return read_stat(pid, 22);
}

uint64_t sg_procfs_minor_faults(uint32_t pid)
{
    return read_stat(pid, 10);
}

uint64_t sg_procfs_threads(uint32_t pid)
{
    return read_stat(pid, 20);
}

/* The state behind the command: 'Z' if the first thread has ended and others have not. */
static bool has_first_thread_ended(void)
{
    char content[512];
    if (read_file(0, "/stat", content, sizeof content) <= 0)
        return false;
    const char *behind = strrchr(content, ')');
    return behind != NULL && behind[1] == ' ' && behind[2] == 'Z';
}

bool sg_procfs_is_left_to(uint32_t threads)
{
    return has_first_thread_ended() && sg_procfs_threads(0) <= 1 + threads; /* that one, and they */
}

/* `label` with the line break before it. */
static uint64_t rollup_bytes(const char *content, const char *label)
{
    const char *found = strstr(content, label), *cursor = found != NULL ? found + strlen(label) : "";
    return sg_text_read_number(&cursor) * 1024;
}

static uint64_t less(uint64_t bytes, uint64_t taken)
{
    return bytes > taken ? bytes - taken : 0;
}

/* Private pages are of files too. Pss divides each page by the number of processes that have it, so it holds all of the
 * private ones and, of those shared, at most half. */
bool sg_procfs_private_bytes(uint64_t *least_bytes, uint64_t *most_bytes)
{
    char content[2048];
    if (read_file(0, "/smaps_rollup", content, sizeof content) <= 0 || strstr(content, "\nPss_Anon:") == NULL)
        return false;
    uint64_t anonymous = rollup_bytes(content, "\nAnonymous:"), pss = rollup_bytes(content, "\nPss_Anon:");
    uint64_t files = rollup_bytes(content, "\nPss_File:") + rollup_bytes(content, "\nPss_Shmem:");
    uint64_t of_all = rollup_bytes(content, "\nPrivate_Clean:") + rollup_bytes(content, "\nPrivate_Dirty:");
    uint64_t by_pss = less(2 * pss, anonymous), by_files = less(of_all, files);
    *most_bytes = of_all < pss ? of_all : pss;
    *least_bytes = by_pss > by_files ? by_pss : by_files;
    if (*least_bytes > *most_bytes) /* not read in one instant */
        *least_bytes = *most_bytes;
    return true;
}

/* The thread's id that the C library noted: a child that shares its parent's storage reads the parent's. The id of
 * the thread's clock is made of it (pthread_getcpuclockid; CPUCLOCK_PERTHREAD_MASK in the kernel's
 * posix-timers_types.h). 0: unknown. */
static uint32_t noted_thread(void)
{
    clockid_t clock = 0;
    return pthread_getcpuclockid(pthread_self(), &clock) == 0 ? (uint32_t) ~(clock >> 3) : 0;
}

/* The pid that a process has for whoever mounted /proc; 0: nobody tells. */
static uint64_t shown_pid(void)
{
    char shown[16] = "";
    const char *cursor = shown;
    (void)sg_syscall(SYS_readlinkat, SG_AT_FDCWD, (long)"/proc/self", (long)shown, sizeof shown - 1, 0, 0);
    return sg_text_read_number(&cursor);
}

static bool set_owner(uint32_t pid)
{
    uint32_t nobody = 0;
    if (pid == 1)
        sg_store(&owner_shown_pid, shown_pid());
    return sg_cas_u32(&owner_pid, &nobody, pid);
}

bool sg_procfs_is_owner(uint32_t pid)
{
    uint32_t owner = sg_load(&owner_pid);
    return pid == owner && (pid != 1 || shown_pid() == sg_load(&owner_shown_pid));
}

bool sg_procfs_owns_memory(void)
{
    uint32_t pid = sg_sys_getpid();
    if (sg_load(&owner_pid) == 0 && sg_sys_gettid() == noted_thread())
        (void)set_owner(pid);
    return sg_procfs_is_owner(pid);
}

uint32_t sg_procfs_thread(void)
{
    uint32_t thread = sg_sys_gettid(), noted = noted_thread();
    bool is_borrowed = noted != 0 && noted != thread && sg_load(&owner_pid) != sg_sys_getpid();
    return is_borrowed ? noted : thread;
}

void sg_procfs_refork(void)
{
    sg_store(&owner_pid, 0u);
    (void)set_owner(sg_sys_getpid());
}

uint64_t sg_meminfo_ordinary_kib(const char *meminfo)
{
    uint64_t total = sg_text_read_field(meminfo, "MemTotal:", 0), huge = sg_text_read_field(meminfo, "Hugetlb:", 0);
    if (total > UINT64_MAX / 1024)
        return 0;
    return huge < total ? total - huge : total;
}
