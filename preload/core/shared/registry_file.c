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

#include <errno.h>
#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>

enum { LINK_TRIES = 4 }; /* others may make and remove the file at the same time */

#define OWN_BYTES SG_REGISTRY_BYTES(sizeof(struct sg_registry_entry)) /* size of a registry that this version makes */

/* ---- the segment of a group ---------------------------------------------------------------------------------------- */

/* The mode of a segment, and its size beyond any registry. */
enum { SEGMENT_MODE = 0660 };
#define SEGMENT_BYTES_MAX SG_REGISTRY_BYTES(SG_ENTRY_BYTES_MAX)

/* The inode of this process's IPC namespace; 0 if unknown. */
static uint64_t ipc_namespace(void)
{
    struct stat info = {0};
    return sg_sys_stat("/proc/self/ns/ipc", &info) == 0 ? info.st_ino : 0;
}

long sg_registry_link_read(int fd, struct sg_registry_link *link)
{
    link->magic = 0;
    long length = sg_sys_pread(fd, link, sizeof *link, 0);
    return length == (long)sizeof *link && link->magic == SG_REGISTRY_LINK_MAGIC ? 0 : -ENOENT;
}

/* The kernel's answers for an identifier that is no segment's, or that of one which is gone, are one. */
static long as_stale(long error)
{
    return error == -EINVAL || error == -EIDRM ? -ESTALE : error;
}

long sg_registry_link_attach(const struct sg_registry_link *link, uint32_t group, bool is_read_only, void **address)
{
    struct shmid_ds info = {0};
    if (link->version != SG_REGISTRY_VERSION || link->bytes < sizeof(struct sg_registry) ||
        link->bytes > SEGMENT_BYTES_MAX)
        return -EPROTO;
    if (link->ipc_namespace != ipc_namespace())
        return -EXDEV;
    long result = sg_syscall(SYS_shmctl, link->segment, IPC_STAT, (long)&info, 0, 0, 0);
    if (result < 0)
        return as_stale(result);
    if (info.shm_perm.gid != group || (info.shm_perm.mode & 0777) != SEGMENT_MODE || info.shm_segsz != link->bytes)
        return -ESTALE; /* the number is another segment's by now */
    result = sg_syscall(SYS_shmat, link->segment, 0, is_read_only ? SHM_RDONLY : 0, 0, 0, 0);
    if (sg_is_error((void *)result))
        return as_stale(result);
    *address = (void *)result;
    return 0;
}

void sg_registry_link_detach(void *address)
{
    (void)sg_syscall(SYS_shmdt, (long)address, 0, 0, 0, 0, 0);
}

long sg_registry_link_make(uint64_t bytes, uint32_t group, struct sg_registry_link *link, void **address)
{
    struct shmid_ds info = {0};
    long segment = sg_syscall(SYS_shmget, IPC_PRIVATE, (long)bytes, IPC_CREAT | IPC_EXCL | 0600, 0, 0, 0);
    if (segment < 0)
        return segment;
    long result = sg_syscall(SYS_shmat, segment, 0, 0, 0, 0, 0);
    bool is_attached = !sg_is_error((void *)result);
    if (is_attached) {
        *address = (void *)result;
        result = sg_syscall(SYS_shmctl, segment, IPC_STAT, (long)&info, 0, 0, 0);
        info.shm_perm.gid = group;
        info.shm_perm.mode = SEGMENT_MODE;
        if (result == 0)
            result = sg_syscall(SYS_shmctl, segment, IPC_SET, (long)&info, 0, 0, 0);
    }
    (void)sg_syscall(SYS_shmctl, segment, IPC_RMID, 0, 0, 0, 0);
    if (result != 0 && is_attached)
        sg_registry_link_detach(*address);
    *link = (struct sg_registry_link){.magic = SG_REGISTRY_LINK_MAGIC,
                                      .version = SG_REGISTRY_VERSION,
                                      .segment = (int32_t)segment,
                                      .bytes = bytes,
                                      .ipc_namespace = ipc_namespace()};
    return result;
}

/* ---- the file -------------------------------------------------------------------------------------------------------- */

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

static void fill_header(struct sg_registry *registry)
{
    registry->magic = SG_REGISTRY_MAGIC;
    registry->version = SG_REGISTRY_VERSION;
    registry->entry_bytes = sizeof(struct sg_registry_entry);
    registry->entry_capacity = SG_ENTRY_CAPACITY;
}

/* Fills a new file: with what a link has, or with an empty registry. */
static long fill_file(int fd, const struct sg_registry_link *link)
{
    static struct sg_registry header; /* static as in make_file */
    const void *content = link != NULL ? (const void *)link : &header;
    const size_t bytes = link != NULL ? sizeof *link : sizeof header;
    fill_header(&header);
    long result = sg_sys_fchmod(fd, is_group_shared() ? 0660 : 0600);
    if (result == 0)
        result = sg_file_allocate(fd, 0, link != NULL ? sizeof *link : OWN_BYTES, false);
    if (result != 0)
        return result;
    result = sg_file_write_at(fd, content, bytes, 0);
    return result == (long)bytes ? 0 : result < 0 ? result : -EIO;
}

/* Creates the file without a name, or under a temporary name if O_TMPFILE is not supported. Links it to the real name
 * when it is complete, because this process may be killed at any instruction. Another process may be faster:
 * -EEXIST. */
static long make_file(const struct sg_registry_link *link)
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
        long result = fill_file((int)fd, link);
        result = result == 0 ? sg_sys_linkat((int)SG_AT_FDCWD, open_path, real_path) : result;
        (void)sg_sys_close((int)fd);
        if (result == 0 || result == -EEXIST || result == -ENOSPC)
            return result;
    }
    fd = sg_sys_openat((int)SG_AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return fd;
    long result = fill_file((int)fd, link);
    /* link and not rename, which would replace a file that another process has made meanwhile. */
    result = result == 0 ? sg_sys_linkat((int)SG_AT_FDCWD, path, real_path) : result;
    (void)sg_sys_unlinkat((int)SG_AT_FDCWD, path);
    (void)sg_sys_close((int)fd);
    return result;
}

/* A registry that was found. */
struct found {
    void *mapped;
    struct stat info; /* of its file */
    struct sg_registry_layout layout;
};

/* Checks the header of a registry of `bytes`. Its layout is read once: members may write anything there later. */
static long check_header(const struct sg_registry *header, uint64_t bytes, struct sg_registry_layout *layout)
{
    *layout = (struct sg_registry_layout){header->entry_bytes, header->version == SG_REGISTRY_VERSION};
    return sg_registry_is_usable(header, bytes) && SG_REGISTRY_BYTES(layout->entry_bytes) <= bytes ? 0 : -EPROTO;
}

/* Validates the file before it is mapped: a usable registry, with all blocks allocated, and if `must_be_ours` owned by
 * this user or root. 0 or -errno. */
static long check_file(int fd, bool must_be_ours, struct found *found)
{
    static struct sg_registry header; /* static as in make_file */
    const struct stat *info = &found->info;
    long result = sg_sys_fstat(fd, &found->info);
    if (result != 0)
        return result;
    if (!S_ISREG(info->st_mode) || (must_be_ours && !sg_directory_is_trusted(info)))
        return -EPERM;
    if (info->st_size < (off_t)sizeof header)
        return -EPROTO;
    if (sg_sys_pread(fd, &header, sizeof header, 0) != (long)sizeof header)
        return -EIO;
    result = check_header(&header, (uint64_t)info->st_size, &found->layout);
    uint64_t bytes = SG_REGISTRY_BYTES(found->layout.entry_bytes);
    return result != 0 || (uint64_t)info->st_blocks * 512 >= bytes ? result : sg_file_allocate(fd, 0, bytes, true);
}

/* The file that was mapped last. */
static struct {
    uint64_t device, inode; /* (atomic) */
} mapped_last;
static int observed_fd = -1; /* the observer's; -1: none */

/* Maps the registry in an open file. */
static long map_file(int fd, bool must_be_ours, struct found *found)
{
    long result = check_file(fd, must_be_ours, found);
    if (result != 0)
        return result;
    found->mapped =
        sg_sys_mmap(NULL, SG_REGISTRY_BYTES(found->layout.entry_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return sg_is_error(found->mapped) ? (long)found->mapped : 0;
}

/* Maps a registry that only this user and root can write to, and makes it if there is none. */
static long map_own(struct found *found)
{
    long fd = sg_registry_file_open(O_RDWR);
    if (fd == -ENOENT) {
        long result = make_file(NULL);
        fd = result == 0 || result == -EEXIST ? sg_registry_file_open(O_RDWR) : result;
    }
    if (fd < 0)
        return fd;
    long result = map_file((int)fd, true, found);
    (void)sg_sys_close((int)fd);
    return result;
}

/* Makes a segment and the file that names it. -EEXIST: another process was faster. The segment is there as long as it
 * is attached: the caller lets go of *made when it has found it by the file, as others do. */
static long make_linked(uint32_t group, void **made)
{
    struct sg_registry_link link;
    long result = sg_registry_link_make(OWN_BYTES, group, &link, made);
    if (result != 0 || *made == NULL)
        return result;
    fill_header(*made);
    result = make_file(&link);
    if (result == 0)
        return 0;
    sg_registry_link_detach(*made);
    *made = NULL;
    return result;
}

/* Removes a file that names no segment any more, or that is something else: whoever put it there may do so again. */
static void remove_stale(void)
{
    static char path[SG_PATH_CAPACITY + 80]; /* static as in make_file */
    name_file(path, false);
    (void)sg_sys_unlinkat((int)SG_AT_FDCWD, path);
}

/* Whether an error of opening the file is that of a link, or of another member's own file, in its place. */
static bool is_in_the_way(long error)
{
    return error == -ELOOP || error == -EACCES || error == -ENXIO;
}

/* Attaches the segment that the file names. -ESTALE: it names none. */
static long attach_named(uint32_t group, struct sg_registry_link *link, struct found *found)
{
    long fd = sg_registry_file_open(O_RDWR);
    if (fd < 0)
        return is_in_the_way(fd) ? -ESTALE : fd;
    long result = sg_sys_fstat((int)fd, &found->info);
    if (result == 0)
        result = S_ISREG(found->info.st_mode) && sg_registry_link_read((int)fd, link) == 0
                     ? sg_registry_link_attach(link, group, false, &found->mapped)
                     : -ESTALE;
    (void)sg_sys_close((int)fd);
    return result;
}

/* Checks what was attached, and lets go of what cannot be shared. */
static long check_attached(const struct sg_registry_link *link, struct found *found)
{
    long result = check_header(found->mapped, link->bytes, &found->layout);
    if (result != 0)
        sg_registry_link_detach(found->mapped);
    return result;
}

/* Attaches what the file names, or makes both. */
static long map_linked(struct found *found)
{
    struct sg_registry_link link;
    struct stat directory = {0};
    long result = sg_sys_stat(sg_options.dir, &directory);
    if (result != 0)
        return result;
    result = attach_named(directory.st_gid, &link, found);
    for (int i = 0; i < LINK_TRIES && (result == -ESTALE || result == -ENOENT); i++) {
        void *made = NULL;
        if (result == -ESTALE)
            remove_stale();
        result = make_linked(directory.st_gid, &made);
        if (result == 0 || result == -EEXIST)
            result = attach_named(directory.st_gid, &link, found);
        if (made != NULL)
            sg_registry_link_detach(made);
    }
    if (result != 0)
        return result == -ENOENT ? -ESTALE : result;
    return check_attached(&link, found);
}

/* Maps what is there for a tool: another user's file, or the segment that it names. */
static long map_any(struct found *found)
{
    struct sg_registry_link link;
    long fd = sg_registry_file_open(O_RDWR);
    if (fd < 0)
        return fd;
    bool is_link = sg_registry_link_read((int)fd, &link) == 0;
    long result = is_link ? sg_sys_fstat((int)fd, &found->info) : map_file((int)fd, false, found);
    if (is_link && result == 0)
        result = sg_registry_link_attach(&link, found->info.st_gid, false, &found->mapped);
    (void)sg_sys_close((int)fd);
    return is_link && result == 0 ? check_attached(&link, found) : result;
}

long sg_registry_file_map(struct sg_registry_file *file, bool is_tool)
{
    struct found found = {0};
    long result = is_tool ? map_any(&found) : is_group_shared() ? map_linked(&found) : map_own(&found);
    if (result != 0)
        return result;
    sg_entry_note_layout(found.mapped, found.layout);
    sg_store(&mapped_last.device, (uint64_t)found.info.st_dev);
    sg_store(&mapped_last.inode, (uint64_t)found.info.st_ino);
    *file = (struct sg_registry_file){found.mapped, found.layout.entry_bytes, found.info.st_dev, found.info.st_ino, 0};
    if (sg_sys_stat(sg_options.dir, &found.info) == 0)
        file->directory = found.info.st_ino;
    return 0;
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
