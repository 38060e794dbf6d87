/*
 * directory.c - see directory.h.
 */
#include "base/directory.h"

#include "base/options.h"
#include "base/syscall.h"
#include "base/text.h"
#include "sparkguard_abi.h"

#include <fcntl.h>
#include <string.h>

/* Copies a path without "/" and "/." at its end. With them the kernel would follow a symbolic link there in spite of
 * O_NOFOLLOW. */
static void trim(char path[SG_PATH_CAPACITY], const char *directory)
{
    size_t length = strnlen(directory, SG_PATH_CAPACITY - 1);
    while (length > 1 &&
           (directory[length - 1] == '/' || (directory[length - 1] == '.' && directory[length - 2] == '/')))
        length--;
    memcpy(path, directory, length);
    path[length] = '\0';
}

bool sg_directory_is_trusted(const struct stat *info)
{
    uint32_t user = (uint32_t)sg_syscall(SYS_geteuid, 0, 0, 0, 0, 0, 0);
    return info->st_uid == user || info->st_uid == 0;
}

int sg_directory_open(const char *directory, struct stat *info)
{
    char path[SG_PATH_CAPACITY];
    trim(path, directory);
    long fd = sg_sys_openat((int)SG_AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd < 0)
        return (int)fd;
    long result = sg_sys_fstat((int)fd, info);
    if (result == 0 && (!sg_directory_is_trusted(info) || (info->st_mode & S_IWOTH) != 0))
        result = -EPERM;
    if (result == 0)
        return (int)fd;
    (void)sg_sys_close((int)fd);
    return (int)result;
}

/* Gives a directory that was just made mode 0700. The umask may have removed even the owner's right to open it, so it
 * is opened with O_PATH, and changed by the descriptor's name in /proc. That name cannot lead to a symbolic link. */
static void open_to_owner(const char *path)
{
    char link[48];
    struct stat info = {0};
    struct sg_text text = sg_text_begin(link, sizeof link);
    long fd = sg_sys_openat((int)SG_AT_FDCWD, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (sg_sys_fstat((int)fd, &info) == 0 && (info.st_mode & 07777) != 0700) {
        sg_text_add(&text, "/proc/thread-self/fd/"); /* not self: service threads have descriptors of their own */
        sg_text_add_number(&text, (uint64_t)fd);
        (void)sg_syscall(SYS_fchmodat, SG_AT_FDCWD, (long)link, 0700, 0, 0, 0);
    }
    (void)sg_sys_close((int)fd);
}

long sg_directory_make(const char *directory)
{
    char path[SG_PATH_CAPACITY];
    trim(path, directory);
    long result = sg_sys_mkdirat((int)SG_AT_FDCWD, path, 0700);
    if (result == 0)
        open_to_owner(path);
    return result == -EEXIST ? 0 : result; /* another process may have made it meanwhile */
}

int sg_directory_open_or_make(const char *directory, struct stat *info)
{
    int fd = sg_directory_open(directory, info);
    if (fd == -ENOENT && sg_directory_make(directory) == 0)
        fd = sg_directory_open(directory, info);
    return fd;
}

/* ---- the default directory --------------------------------------------------------------------------------------- */

enum owner { NOBODYS, OURS, ANOTHERS };

/* Whose a directory is. `open_bits`: a directory with one of these in its mode is not ours. */
static enum owner owner_of(const char *path, uint32_t user, uint32_t open_bits)
{
    struct stat info = {0};
    long result =
        sg_syscall(SYS_newfstatat, SG_AT_FDCWD, (long)path, (long)&info, 0x100 /* AT_SYMLINK_NOFOLLOW */, 0, 0);
    if (result == -ENOENT)
        return NOBODYS;
    bool is_ours = result == 0 && S_ISDIR(info.st_mode) && (info.st_uid == user || info.st_uid == 0);
    return is_ours && (info.st_mode & open_bits) == 0 ? OURS : ANOTHERS;
}

static void name_default(char *path, size_t capacity, const char *before, uint32_t user)
{
    struct sg_text text = sg_text_begin(path, capacity);
    sg_text_add(&text, before);
    sg_text_add_number(&text, user);
}

/* Stores RUNTIME/sparkguard. Returns false if the folder is not as a login makes it. */
static bool name_below(char path[SG_PATH_CAPACITY], const char *runtime, uint32_t user)
{
    size_t length = strnlen(runtime, SG_PATH_CAPACITY);
    if (length + sizeof SG_DEFAULT_DIR_BELOW > SG_PATH_CAPACITY || owner_of(runtime, user, 077) != OURS)
        return false;
    memmove(path, runtime, length);
    memcpy(path + length, SG_DEFAULT_DIR_BELOW, sizeof SG_DEFAULT_DIR_BELOW);
    return true;
}

bool sg_directory_default(char path[SG_PATH_CAPACITY], const char *runtime)
{
    char usual[64], login[64];
    uint32_t user = (uint32_t)sg_syscall(SYS_geteuid, 0, 0, 0, 0, 0, 0);
    name_default(usual, sizeof usual, SG_DEFAULT_DIR, user);
    name_default(login, sizeof login, "/run/user/", user);
    enum owner owner = owner_of(usual, user, S_IWOTH);
    if (owner != OURS && user != 0 && runtime != NULL && name_below(path, runtime, user))
        return owner != ANOTHERS;
    if (owner != OURS && user != 0 && name_below(path, login, user))
        return owner != ANOTHERS;
    if (owner == ANOTHERS && user == 0) {
        (void)sg_sys_mkdirat((int)SG_AT_FDCWD, "/run/sparkguard", 0755);
        memcpy(path, "/run/sparkguard/root", sizeof "/run/sparkguard/root");
    } else {
        name_default(path, SG_PATH_CAPACITY, owner == ANOTHERS ? "/tmp/sparkguard-" : SG_DEFAULT_DIR, user);
    }
    return owner != ANOTHERS;
}

bool sg_directory_choose(void)
{
    char *dir = sg_options.dir;
    if (!sg_options.has_default_dir)
        return true;
    if (strncmp(dir, SG_DEFAULT_DIR, sizeof SG_DEFAULT_DIR - 1) == 0)
        return sg_directory_default(dir, NULL);
    char *slash = strrchr(dir, '/'); /* RUNTIME/sparkguard */
    if (slash != NULL)
        *slash = '\0';
    return sg_directory_default(dir, dir);
}

unsigned sg_directory_file_mode(const struct stat *info)
{
    bool is_group_shared = (info->st_mode & (S_ISGID | S_IWGRP)) == (S_ISGID | S_IWGRP);
    return is_group_shared ? SG_DIRECTORY_SHARED_MODE : 0600;
}

const char *sg_directory_error_text(long error)
{
    return error == -ENOSPC                       ? ": no space left"
           : error == -EROFS                      ? ": read-only file system"
           : error == -ENOENT                     ? ": no such directory"
           : error == -EACCES                     ? ": permission denied"
           : error == -EPERM                      ? ": it must belong to you or root and be closed to others"
           : error == SG_DIRECTORY_FOREIGN        ? ": a folder above it is another user's"
           : error == -ENOTDIR || error == -ELOOP ? ": not a directory"
                                                  : ": the system refused";
}

void sg_directory_visit(int directory, char *buffer, size_t capacity,
                        bool (*visit)(int directory, const char *name, void *context), void *context)
{
    (void)sg_syscall(SYS_lseek, directory, 0, 0 /* SEEK_SET */, 0, 0, 0);
    for (long got; (got = sg_sys_getdents(directory, buffer, capacity)) > 0;) {
        for (long at = 0; at < got;) {
            const struct sg_directory_entry *entry = (const struct sg_directory_entry *)(const void *)(buffer + at);
            at += entry->length;
            if (!visit(directory, entry->name, context))
                return;
        }
    }
}

void sg_directory_name_timeline(char *name, size_t capacity, const char *segment)
{
    struct sg_text text = sg_text_begin(name, capacity);
    sg_text_add(&text, segment);
    text.length -= sizeof SG_SEGMENT_SUFFIX - 1;
    sg_text_add(&text, SG_TIMELINE_SUFFIX);
}
