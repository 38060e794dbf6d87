/*
 * job_notice.c - see job_notice.h.
 */
#include "shared/job_notice.h"

#include "base/options.h"
#include "base/syscall.h"
#include "base/file.h"
#include "base/text.h"
#include "sparkguard_abi.h"
#include "base/atomics.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/stat.h>

#define WAIT_NS \
    1000000 /* between two attempts to lock the file; owners hold the lock only for one read and one write */

enum { JOBS_MAX = 62, TRIES_MAX = 20 };

/* Contents of the file: keys of the last 62 jobs that a message was printed for, each at most once. */
struct file_content {
    uint64_t count; /* of keys ever written */
    uint64_t key[JOBS_MAX];
};

static bool was_asked; /* sg_job_notice_is_first was called by this process, or by its parent before the fork */
static uint32_t *parent_flags SG_AT_FORK; /* (atomic) NULL: unknown */

/* The key combines the job's name and its first pid, because a later run may use the same name. */
static uint64_t key_of_job(void)
{
    uint32_t first = sg_options.first_pid != 0 ? sg_options.first_pid : sg_sys_getpid();
    return (sg_hash_text(sg_options.job) ^ first * UINT64_C(0x9e3779b97f4a7c15)) | 1;
}

static bool add_key(int fd, uint64_t key)
{
    struct file_content file_content = {0};
    (void)sg_sys_pread(fd, &file_content, sizeof file_content, 0);
    for (unsigned i = 0; i < JOBS_MAX; i++)
        if (file_content.key[i] == key)
            return false;
    file_content.key[file_content.count++ % JOBS_MAX] = key;
    (void)sg_file_write_at(fd, &file_content, sizeof file_content, 0);
    return true;
}

static bool lock(int fd)
{
    const struct timespec pause = {0, WAIT_NS};
    for (int i = 0; i < TRIES_MAX; i++) {
        if (sg_sys_flock(fd, LOCK_EX | LOCK_NB) == 0)
            return true;
        (void)sg_syscall(SYS_nanosleep, (long)&pause, 0, 0, 0, 0, 0);
    }
    return false;
}

/* Opens or creates this user's file in a directory that all users may write to. A descriptor, or -errno; -EPERM:
 * another user may have made the file. */
static long open_file(const char *folder)
{
    char path[64];
    struct stat info = {0};
    uint32_t user = (uint32_t)sg_syscall(SYS_geteuid, 0, 0, 0, 0, 0, 0);
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, folder);
    sg_text_add(&text, "/.sparkguard-");
    sg_text_add_number(&text, user);
    sg_text_add(&text, ".jobs");
    long fd = sg_sys_openat((int)SG_AT_FDCWD, path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd < 0)
        return fd;
    if (sg_sys_fstat((int)fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == user && info.st_nlink == 1)
        return fd;
    (void)sg_sys_close((int)fd);
    return -EPERM;
}

/* The file is in /dev/shm or /tmp, because the caller cannot use SPARKGUARD_DIR and the history may be off. */
static bool is_first_in_file(void)
{
    bool is_first = true;
    long fd = open_file("/dev/shm");
    if (fd < 0)
        fd = open_file("/tmp");
    if (fd < 0)
        return true;
    if (lock((int)fd))
        is_first = add_key((int)fd, key_of_job());
    (void)sg_sys_close((int)fd);
    return is_first;
}

void sg_job_notice_set_parent(uint32_t *flags)
{
    sg_store(&parent_flags, flags);
}

static bool is_first_of_siblings(void)
{
    uint32_t *flags = sg_load(&parent_flags);
    return flags == NULL || (sg_fetch_or(flags, (uint32_t)SG_SLOT_REPORTED) & SG_SLOT_REPORTED) == 0;
}

bool sg_job_notice_is_first(void)
{
    bool is_first = !was_asked && is_first_of_siblings() && is_first_in_file();
    was_asked = true;
    return is_first;
}
