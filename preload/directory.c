/*
 * directory.c - see directory.h.
 */
#include "directory.h"

#include "options.h"
#include "syscall.h"
#include "text.h"

#include <fcntl.h>
#include <string.h>

/* Without "/" and "/." at its end, which would make the system follow a link there. */
static void trim(char path[SG_PATH_ROOM], const char *directory)
{
    size_t length = strnlen(directory, SG_PATH_ROOM - 1);
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
    char path[SG_PATH_ROOM];
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

/* The umask may take away even the right to open it; then its descriptor is good for its name only, by which chmod follows no link. */
static void open_to_owner(const char *path)
{
    char link[48];
    struct stat info = {0};
    struct sg_text text = sg_text_begin(link, sizeof link);
    long fd = sg_sys_openat((int)SG_AT_FDCWD, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (sg_sys_fstat((int)fd, &info) == 0 && (info.st_mode & 07777) != 0700) {
        sg_text_add(&text, "/proc/thread-self/fd/"); /* helpers have descriptors of their own */
        sg_text_add_number(&text, (uint64_t)fd);
        (void)sg_syscall(SYS_fchmodat, SG_AT_FDCWD, (long)link, 0700, 0, 0, 0);
    }
    (void)sg_sys_close((int)fd);
}

long sg_directory_make(const char *directory)
{
    char path[SG_PATH_ROOM];
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

unsigned sg_directory_file_mode(const struct stat *info)
{
    bool is_group_shared = (info->st_mode & (S_ISGID | S_IWGRP)) == (S_ISGID | S_IWGRP);
    return is_group_shared ? 0660 : 0600;
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
