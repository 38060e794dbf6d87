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
#include "shared/own_entry.h"
#include "sparkguard_bounds.h"

#include <fcntl.h>
#include <sys/mman.h>

/* Of a user in more groups only the first group counts. */
enum { GROUPS_MAX = 1024 };

static struct sg_bounds bounds; /* changed only before has_read is set */
static bool has_read;

/* Copies a file into a mapping of its own: a mapped file that is cut meanwhile would raise SIGBUS. The text is empty if
 * that fails, and ends where the file ends by now. */
static struct sg_bounds_text copy_file(const char *path, size_t *mapped_bytes)
{
    struct stat info = {0};
    struct sg_bounds_text text = {NULL, 0};
    *mapped_bytes = 0;
    long fd = sg_sys_openat((int)SG_AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
    if (fd < 0)
        return text;
    bool is_file = sg_sys_fstat((int)fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
    char *mapped =
        is_file ? sg_sys_mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                : NULL;
    if (mapped != NULL && !sg_is_error(mapped)) {
        *mapped_bytes = (size_t)info.st_size;
        text.at = mapped;
        for (long got = 1; got > 0; text.bytes += got > 0 ? (size_t)got : 0)
            got = sg_sys_pread((int)fd, mapped + text.bytes, *mapped_bytes - text.bytes, text.bytes);
    }
    (void)sg_sys_close((int)fd);
    return text;
}

static void unmap(struct sg_bounds_text text, size_t mapped_bytes)
{
    if (mapped_bytes != 0)
        (void)sg_sys_munmap((void *)(uintptr_t)text.at, mapped_bytes);
}

static void report(const char *path, uint32_t line)
{
    static char message[SG_PATH_CAPACITY + 128]; /* static: too large for a small stack */
    struct sg_text text = sg_text_begin(message, sizeof message);
    if (sg_options.first_pid != sg_sys_getpid())
        return;
    sg_text_add(&text, "sparkguard: ");
    sg_text_add(&text, path);
    sg_text_add(&text, ":");
    sg_text_add_number(&text, line);
    sg_text_add(&text,
                ": cannot be read and has no effect; expected USER, @GROUP or *, then limit=SIZE or reserve=SIZE");
    sg_log_line(message);
}

/* Reads the bounds from the file below `root`. */
static void read_below(const char *root)
{
    static char path[SG_PATH_CAPACITY + 32]; /* static: too large for a small stack */
    static uint32_t groups[GROUPS_MAX + 1];
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, root);
    sg_text_add(&text, SG_BOUNDS_FILE);
    size_t mapped[3];
    struct sg_bounds_sources sources = {.bounds = copy_file(path, &mapped[0])};
    if (mapped[0] == 0)
        return;
    sources.users = copy_file("/etc/passwd", &mapped[1]);
    sources.groups = copy_file("/etc/group", &mapped[2]);
    long count = sg_syscall(SYS_getgroups, GROUPS_MAX, (long)groups, 0, 0, 0, 0);
    count = count > 0 ? count : 0;
    groups[count] = (uint32_t)sg_syscall(SYS_getgid, 0, 0, 0, 0, 0, 0);
    const struct sg_bounds_user user = {
        .user = (uint32_t)sg_syscall(SYS_getuid, 0, 0, 0, 0, 0, 0), .groups = groups, .group_count = (size_t)count + 1};
    uint32_t line = sg_bounds_find(&sources, &user, &bounds);
    unmap(sources.bounds, mapped[0]);
    unmap(sources.users, mapped[1]);
    unmap(sources.groups, mapped[2]);
    if (line != 0)
        report(path, line);
}

void sg_bounds_read(void)
{
    if (has_read || sg_seccomp_is_strict())
        return;
    has_read = true;
    read_below("");
    /* A machine of files has bounds of its own, and cannot take away those of the real one. */
    if (!bounds.limit.is_set && !bounds.reserve.is_set && sg_options.system_root[0] != '\0')
        read_below(sg_options.system_root);
}

/* Whether root has set the limit or the reserve of this process with sparkguard --set. */
static bool is_set_by_root(const uint64_t *word)
{
    return SG_UNLIKELY(sg_load_relaxed(word) != 0) && sg_load(&sg_entry_own()->set_user) == 1;
}

bool sg_bounds_have_limit(void)
{
    return SG_UNLIKELY(bounds.limit.is_set) && !is_set_by_root(&sg_entry_own()->set_limit_bytes);
}

uint64_t sg_bounds_limit(uint64_t limit_bytes, uint64_t machine_bytes)
{
    if (!sg_bounds_have_limit())
        return limit_bytes;
    uint64_t most = sg_size_of(bounds.limit, machine_bytes);
    return most != 0 && (limit_bytes == 0 || limit_bytes > most) ? most : limit_bytes;
}

uint64_t sg_bounds_reserve(uint64_t machine_bytes)
{
    bool holds = SG_UNLIKELY(bounds.reserve.is_set) && !is_set_by_root(&sg_entry_own()->set_reserve_bytes);
    return holds ? sg_size_of(bounds.reserve, machine_bytes) : 0;
}

bool sg_bounds_are_limit(uint64_t limit_bytes, uint64_t machine_bytes)
{
    return sg_bounds_have_limit() && limit_bytes == sg_size_of(bounds.limit, machine_bytes);
}

bool sg_bounds_are_reserve(uint64_t reserve_bytes, uint64_t machine_bytes)
{
    uint64_t least = sg_bounds_reserve(machine_bytes);
    return least != 0 && reserve_bytes == least;
}
