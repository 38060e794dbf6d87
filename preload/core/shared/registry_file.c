/*
 * registry_file.c - see registry_file.h.
 */
#include "shared/registry_file.h"

#include "base/atomics.h"
#include "base/directory.h"
#include "base/options.h"
#include "base/seccomp.h"
#include "shared/own_entry.h"
#include "shared/segment.h"
#include "base/file.h"
#include "base/syscall.h"
#include "base/text.h"

#include <fcntl.h>
#include <sys/mman.h>

#define OWN_BYTES SG_REGISTRY_BYTES(sizeof(struct sg_registry_entry)) /* size of a registry that this version makes */

static void name_file(char path[SG_PATH_CAPACITY + 80], bool is_temporary)
{
    struct sg_text text = sg_text_begin(path, SG_PATH_CAPACITY + 80);
    sg_text_add(&text, sg_options.dir);
    sg_text_add(&text, "/");
    sg_text_add(&text, SG_REGISTRY_NAME);
    if (!is_temporary)
        return;
    sg_text_add(&text, ".");
    sg_text_add_hex(&text, sg_sys_unique());
    sg_text_add(&text, SG_UNFINISHED_SUFFIX);
}

long sg_registry_file_open(int flags)
{
    char path[SG_PATH_CAPACITY + 80];
    name_file(path, false);
    return sg_sys_openat((int)SG_AT_FDCWD, path, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
}

static long lock_byte(int fd, int operation, uint32_t number, short *type)
{
    struct flock lock = {.l_type = *type, .l_whence = 0 /* SEEK_SET */, .l_start = number, .l_len = 1};
    long result = sg_sys_fcntl(fd, operation, &lock);
    *type = lock.l_type;
    return result;
}

long sg_registry_file_lock(int fd, uint32_t number)
{
    short type = F_WRLCK;
    return lock_byte(fd, F_OFD_SETLK, number, &type);
}

void sg_registry_file_unlock(int fd, uint32_t number)
{
    short type = F_UNLCK;
    (void)lock_byte(fd, F_OFD_SETLK, number, &type);
}

bool sg_registry_file_has_owner(int fd, uint32_t number)
{
    short type = F_WRLCK;
    return lock_byte(fd, F_OFD_GETLK, number, &type) != 0 || type != F_UNLCK;
}

/* All who share the directory write to the registry. */
static bool is_group_shared(void)
{
    return sg_segment_file_mode() == SG_DIRECTORY_SHARED_MODE;
}

static long fill_file(int fd)
{
    static const struct sg_registry header = {.magic = SG_REGISTRY_MAGIC,
                                              .version = SG_REGISTRY_VERSION,
                                              .entry_bytes = sizeof(struct sg_registry_entry),
                                              .entry_capacity = SG_ENTRY_CAPACITY};
    long result = sg_sys_fchmod(fd, is_group_shared() ? 0660 : 0600);
    if (result == 0)
        result = sg_file_allocate(fd, 0, OWN_BYTES);
    if (result != 0)
        return result;
    result = sg_file_write_at(fd, &header, sizeof header, 0);
    return result == (long)sizeof header ? 0 : result < 0 ? result : -EIO;
}

/* Creates the file without a name, or under a temporary name if O_TMPFILE is not supported. Links it to the real name
 * when it is complete, because this process may be killed at any instruction. Another process may be faster, which is
 * no error. */
static long make_file(void)
{
    static char path[SG_PATH_CAPACITY + 80],
        real_path[SG_PATH_CAPACITY + 80]; /* static because too large for a stack; the decision lock protects them */
    char open_path[48];
    struct sg_text text = sg_text_begin(open_path, sizeof open_path);
    name_file(path, true);
    name_file(real_path, false);
    long fd = sg_sys_openat((int)SG_AT_FDCWD, sg_options.dir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (fd >= 0) {
        sg_text_add(&text, "/proc/self/fd/");
        sg_text_add_number(&text, (uint64_t)fd);
        long result = fill_file((int)fd);
        result = result == 0 ? sg_sys_linkat((int)SG_AT_FDCWD, open_path, real_path) : result;
        (void)sg_sys_close((int)fd);
        if (result == 0 || result == -EEXIST || result == -ENOSPC)
            return result == -EEXIST ? 0 : result;
    }
    fd = sg_sys_openat((int)SG_AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return fd;
    long result = fill_file((int)fd);
    /* link and not rename, which would replace a file that another process has made meanwhile. */
    result = result == 0 ? sg_sys_linkat((int)SG_AT_FDCWD, path, real_path) : result;
    (void)sg_sys_unlinkat((int)SG_AT_FDCWD, path);
    (void)sg_sys_close((int)fd);
    return result == -EEXIST ? 0 : result;
}

/* Validates the file before it is mapped: a usable registry, with all blocks allocated, and owned by this user or root
 * unless a group shares the directory. 0 or -errno. */
static long check_file(int fd, bool must_be_ours, struct stat *info, struct sg_registry_layout *layout)
{
    static struct sg_registry header; /* static as in make_file */
    long result = sg_sys_fstat(fd, info);
    if (result != 0)
        return result;
    uint32_t user = (uint32_t)sg_syscall(SYS_geteuid, 0, 0, 0, 0, 0, 0);
    bool is_ours = !must_be_ours || info->st_uid == user || info->st_uid == 0 || is_group_shared();
    if (!S_ISREG(info->st_mode) || !is_ours)
        return -EPERM;
    if (info->st_size < (off_t)sizeof header)
        return -EPROTO;
    if (sg_sys_pread(fd, &header, sizeof header, 0) != (long)sizeof header)
        return -EIO;
    if (!sg_registry_is_usable(&header, (uint64_t)info->st_size))
        return -EPROTO;
    layout->entry_bytes = header.entry_bytes;
    layout->is_this_version = header.version == SG_REGISTRY_VERSION;
    bool is_there = (uint64_t)info->st_blocks * 512 >= SG_REGISTRY_BYTES(layout->entry_bytes);
    return is_there ? 0 : sg_file_reserve(fd, 0, SG_REGISTRY_BYTES(layout->entry_bytes));
}

/* The file that was mapped last. */
static struct {
    uint64_t device, inode; /* (atomic) */
} mapped_last;
static int observed_fd = -1; /* the observer's; -1: none */

/* Maps the file that is open as `fd`, and closes it. */
static long map_open(struct sg_registry_file *file, long fd, bool must_be_ours)
{
    struct stat info = {0};
    struct sg_registry_layout layout = {0};
    if (fd < 0)
        return fd;
    long result = check_file((int)fd, must_be_ours, &info, &layout);
    void *mapped = NULL;
    if (result == 0) {
        mapped =
            sg_sys_mmap(NULL, SG_REGISTRY_BYTES(layout.entry_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
        result = sg_is_error(mapped) ? (long)mapped : 0;
    }
    (void)sg_sys_close((int)fd);
    if (result != 0)
        return result;
    sg_entry_note_layout(mapped, layout);
    sg_store(&mapped_last.device, (uint64_t)info.st_dev);
    sg_store(&mapped_last.inode, (uint64_t)info.st_ino);
    file->registry = mapped;
    file->entry_bytes = layout.entry_bytes;
    file->device = info.st_dev;
    file->inode = info.st_ino;
    file->directory = sg_sys_stat(sg_options.dir, &info) == 0 ? info.st_ino : 0;
    return 0;
}

long sg_registry_file_map(struct sg_registry_file *file)
{
    long fd = sg_registry_file_open(O_RDWR);
    if (fd == -ENOENT) {
        long result = make_file();
        fd = result == 0 ? sg_registry_file_open(O_RDWR) : result;
    }
    return map_open(file, fd, true);
}

long sg_registry_file_map_any(struct sg_registry_file *file)
{
    return map_open(file, sg_registry_file_open(O_RDWR), false);
}

/* Opens the file that was mapped last. -ESTALE: another one has its name. */
static long open_mapped(int flags)
{
    struct stat info = {0};
    if (sg_seccomp_is_on())
        return -EPERM;
    long fd = sg_registry_file_open(flags);
    if (fd < 0)
        return fd;
    bool is_same = sg_sys_fstat((int)fd, &info) == 0 && info.st_dev == sg_load(&mapped_last.device) &&
                   info.st_ino == sg_load(&mapped_last.inode);
    if (!is_same)
        (void)sg_sys_close((int)fd);
    return is_same ? fd : -ESTALE;
}

/* The ranges that were written or read, by the bytes. */
static uint32_t ranges_of(long bytes)
{
    return bytes > 0 ? (uint32_t)((size_t)bytes / sizeof(struct sg_memory_file)) : 0;
}

uint32_t sg_registry_file_write_more(uint32_t number, const struct sg_memory_file *more, uint32_t count)
{
    long fd = open_mapped(O_WRONLY);
    if (fd < 0)
        return 0;
    uint32_t written = ranges_of(sg_file_write_at((int)fd, more, count * sizeof *more, SG_MORE_FILES_AT(number)));
    (void)sg_sys_close((int)fd);
    return written;
}

uint32_t sg_registry_file_read_more(uint32_t number, uint32_t first, struct sg_memory_file *more, uint32_t count)
{
    long fd = observed_fd >= 0 ? observed_fd : open_mapped(O_RDONLY);
    if (fd < 0)
        return 0;
    uint32_t read =
        ranges_of(sg_sys_pread((int)fd, more, count * sizeof *more, SG_MORE_FILES_AT(number) + first * sizeof *more));
    if (fd != observed_fd)
        (void)sg_sys_close((int)fd);
    return read;
}

void sg_registry_file_read_from(int fd)
{
    observed_fd = fd;
}

long sg_registry_file_unshare(struct sg_registry_file *file)
{
    if (file->registry == NULL)
        return 0;
    const void *mapped = sg_sys_mmap(file->registry, SG_REGISTRY_BYTES(file->entry_bytes), PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (sg_is_error(mapped))
        return (long)mapped;
    file->registry = NULL;
    return 0;
}

bool sg_registry_file_is_same(const struct sg_registry_file *file, int fd)
{
    struct stat info = {0};
    return sg_sys_fstat(fd, &info) == 0 && info.st_dev == file->device && info.st_ino == file->inode;
}

/* Without this check, a process behind a chroot, or with a relative SPARKGUARD_DIR, would take its file for removed. */
bool sg_registry_file_is_in_reach(const struct sg_registry_file *file)
{
    struct stat info = {0};
    return sg_sys_stat(sg_options.dir, &info) == 0 && info.st_dev == file->device && info.st_ino == file->directory;
}

bool sg_registry_file_is_directory_ours(void)
{
    struct stat info = {0};
    int fd = sg_directory_open(sg_options.dir, &info);
    if (fd >= 0)
        (void)sg_sys_close(fd);
    return fd >= 0;
}
