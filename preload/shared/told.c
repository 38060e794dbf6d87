/*
 * told.c - see told.h.
 */
#include "shared/told.h"

#include "base/options.h"
#include "base/syscall.h"
#include "base/text.h"
#include "sparkguard_abi.h"
#include "base/atomics.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/stat.h>

#define WAIT_NS 1000000 /* between two tries for the file's lock, which is held only briefly */

enum { JOBS_MAX = 62, TRIES_MAX = 20 };

/* The file: the last jobs that a message was printed for. Each job's key is in it at most once. */
struct told {
    uint64_t count; /* ever written */
    uint64_t key[JOBS_MAX];
};

static bool is_said;           /* by this process, or by one that it was forked from */
static uint32_t *parent_flags; /* (atomic) NULL: unknown */

/* A name may be used again for another run. */
static uint64_t key_of_job(void)
{
    uint32_t first = sg_options.first_pid != 0 ? sg_options.first_pid : sg_sys_getpid();
    return (sg_hash_text(sg_options.job) ^ first * UINT64_C(0x9e3779b97f4a7c15)) | 1;
}

static bool add_key(int fd, uint64_t key)
{
    struct told told = {0};
    (void)sg_sys_pread(fd, &told, sizeof told, 0);
    for (unsigned i = 0; i < JOBS_MAX; i++)
        if (told.key[i] == key)
            return false;
    told.key[told.count++ % JOBS_MAX] = key;
    (void)sg_sys_pwrite(fd, &told, sizeof told, 0);
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

/* The user's file in a folder that is open to all. A descriptor, or negative: none, or another user may have made
 * it. */
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

/* SPARKGUARD_DIR cannot be used where this is called, and the history may be off. */
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

void sg_told_set_parent(uint32_t *flags)
{
    sg_store(&parent_flags, flags);
}

static bool is_first_of_siblings(void)
{
    uint32_t *flags = sg_load(&parent_flags);
    return flags == NULL || (sg_fetch_or(flags, (uint32_t)SG_SLOT_TOLD) & SG_SLOT_TOLD) == 0;
}

bool sg_told_first(void)
{
    bool is_first = !is_said && is_first_of_siblings() && is_first_in_file();
    is_said = true;
    return is_first;
}
