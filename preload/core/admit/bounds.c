/*
 * bounds.c - see bounds.h.
 */
#include "admit/bounds.h"

#include "base/atomics.h"
#include "base/log.h"
#include "base/options.h"
#include "base/seccomp.h"
#include "base/syscall.h"
#include "base/text.h"
#include "shared/segment.h"
#include "sparkguard_bounds.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#define UNREADABLE ": cannot be read and has no effect"

/* Of a user in more groups only the first group counts. */
enum { GROUPS_MAX = 1024 };

/* Those in force, and those of the user that the process was before: another thread may be reading them. */
static struct sg_bounds bounds[2];
static uint32_t current;                /* (atomic) which of the two is in force */
static uint32_t has_read;               /* (atomic) set under the decision lock, last */
static uint32_t changes;                /* (atomic) of the user */
static uint32_t has_limit, has_reserve; /* (atomic) set after `bounds` and `current` */

/* A copy of a file. `error` is 0, also if there is no such file and the text is empty, or -errno. */
struct file {
    struct sg_bounds_text text;
    size_t mapped_bytes;
    long error;
};

/* Copies an open file. It is not mapped: a mapped file that is cut meanwhile would raise SIGBUS. */
static void copy_open(struct file *file, int fd)
{
    struct stat info = {0};
    file->error = sg_sys_fstat(fd, &info);
    if (file->error != 0 || !S_ISREG(info.st_mode) || info.st_size <= 0)
        return;
    char *copy = sg_sys_mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (sg_is_error(copy)) {
        file->error = (long)copy;
        return;
    }
    file->mapped_bytes = (size_t)info.st_size;
    file->text.at = copy;
    long got = 1;
    while (got > 0) {
        got = sg_sys_pread(fd, copy + file->text.bytes, file->mapped_bytes - file->text.bytes, file->text.bytes);
        if (got > 0)
            file->text.bytes += (size_t)got;
    }
    file->error = got;
}

static struct file copy_file(const char *path)
{
    struct file file = {.error = 0};
    long fd = sg_sys_openat((int)SG_AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
    if (fd >= 0) {
        copy_open(&file, (int)fd);
        (void)sg_sys_close((int)fd);
    } else if (fd != -ENOENT && fd != -ENOTDIR) {
        file.error = fd;
    }
    return file;
}

static void free_copy(const struct file *file)
{
    if (file->mapped_bytes != 0)
        (void)sg_sys_munmap((void *)(uintptr_t)file->text.at, file->mapped_bytes);
}

/* Reports once what is wrong with a line, or with line 0 with the whole file. */
static void report(const char *path, uint32_t line, const char *fault)
{
    static char message[SG_PATH_CAPACITY + 128]; /* static: too large for a small stack */
    static bool has_reported;
    struct sg_text text = sg_text_begin(message, sizeof message);
    if (has_reported || sg_options.first_pid != sg_sys_getpid())
        return;
    has_reported = true;
    sg_text_add(&text, "sparkguard: ");
    sg_text_add_place(&text, path, line);
    sg_text_add(&text, fault);
    sg_log_line(message);
}

/* Finds the bounds in the file below `root`. False: it could not be read, for now at least. */
static bool read_below(const char *root, struct sg_bounds *found)
{
    static char path[SG_PATH_CAPACITY + 32]; /* static: too large for a small stack */
    static uint32_t groups[GROUPS_MAX + 1];
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, root);
    sg_text_add(&text, SG_BOUNDS_FILE);
    const struct file file = copy_file(path);
    if (file.error == -EACCES) /* other errors pass: no descriptor is free, say */
        report(path, 0, UNREADABLE);
    if (file.text.bytes == 0)
        return file.error == 0;
    const struct file users = copy_file("/etc/passwd"), known_groups = copy_file("/etc/group");
    long count = sg_syscall(SYS_getgroups, GROUPS_MAX, (long)groups, 0, 0, 0, 0);
    count = count > 0 ? count : 0;
    groups[count] = (uint32_t)sg_syscall(SYS_getgid, 0, 0, 0, 0, 0, 0);
    const struct sg_bounds_sources sources = {file.text, users.text, known_groups.text};
    const struct sg_bounds_user user = {
        .user = (uint32_t)sg_syscall(SYS_getuid, 0, 0, 0, 0, 0, 0), .groups = groups, .group_count = (size_t)count + 1};
    uint32_t line = sg_bounds_find(&sources, &user, found);
    if (line != 0)
        report(path, line, UNREADABLE "; expected USER, @GROUP or *, then limit=SIZE or reserve=SIZE");
    else if (found->zero_line != 0)
        report(path, found->zero_line, ": 0" SG_ZERO_IS_NONE);
    free_copy(&file);
    free_copy(&users);
    free_copy(&known_groups);
    return file.error == 0 && users.error == 0 && known_groups.error == 0;
}

void sg_bounds_read(void)
{
    struct sg_bounds found = {0};
    if (SG_LIKELY(sg_load(&has_read) != 0) || sg_seccomp_is_strict())
        return;
    sg_options_take_defaults(NULL);
    uint32_t seen = sg_load(&changes);
    bool is_read = read_below("", &found);
    /* A machine of files has bounds of its own, and cannot take away those of the real one. */
    if (is_read && !found.limit.is_set && !found.reserve.is_set && sg_options.system_root[0] != '\0')
        is_read = read_below(sg_options.system_root, &found);
    if (!is_read) /* no descriptor is free, say: the next decision tries again */
        return;
    uint32_t next = 1 - sg_load(&current);
    bounds[next] = found;
    sg_store(&current, next);
    sg_store(&has_limit, (uint32_t)found.limit.is_set);
    sg_store(&has_reserve, (uint32_t)found.reserve.is_set);
    sg_store(&has_read, 1u); /* last: a child that another thread forks meanwhile reads the file itself */
    if (sg_load(&changes) != seen)
        sg_store(&has_read, 0u); /* they may be those of the user before */
}

void sg_bounds_forget(void)
{
    sg_fetch_add(&changes, 1u);
    sg_store(&has_read, 0u);
}

/* Notes in the slot whether a bound is in force. */
static void note(enum sg_slot_flag flag, bool is_in_force)
{
    bool has_flag = (sg_load_relaxed(&sg_own->slot.flags) & (uint32_t)flag) != 0;
    if (is_in_force && !has_flag)
        sg_fetch_or(&sg_own->slot.flags, (uint32_t)flag);
    else if (!is_in_force && has_flag)
        sg_fetch_and(&sg_own->slot.flags, ~(uint32_t)flag);
}

bool sg_bounds_have_limit(void)
{
    return SG_UNLIKELY(sg_load(&has_limit) != 0);
}

uint64_t sg_bounds_limit(uint64_t limit_bytes, uint64_t machine_bytes)
{
    if (!sg_bounds_have_limit())
        return limit_bytes;
    uint64_t most = sg_size_of(bounds[sg_load(&current)].limit, machine_bytes);
    bool is_bounded = most != 0 && (limit_bytes == 0 || limit_bytes > most);
    note(SG_SLOT_LIMIT_BOUND, is_bounded);
    return is_bounded ? most : limit_bytes;
}

uint64_t sg_bounds_reserve(uint64_t reserve_bytes, uint64_t *floor_bytes, uint64_t machine_bytes)
{
    if (SG_LIKELY(sg_load(&has_reserve) == 0))
        return reserve_bytes;
    uint64_t least = sg_size_of(bounds[sg_load(&current)].reserve, machine_bytes);
    note(SG_SLOT_RESERVE_BOUND, least > reserve_bytes);
    *floor_bytes = least / 4 > *floor_bytes ? least / 4 : *floor_bytes;
    return least > reserve_bytes ? least : reserve_bytes;
}
