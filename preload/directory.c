/*
 * directory.c - see directory.h.
 */
#include "directory.h"

#include "syscall.h"

#include <fcntl.h>
#include <stdbool.h>

int sg_directory_open(const char *directory, struct stat *info)
{
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    long fd = sg_sys_openat((int)SG_AT_FDCWD, directory, flags, 0);
    if (fd == -ENOENT) {
        long made = sg_sys_mkdirat((int)SG_AT_FDCWD, directory, 0700);
        if (made == 0 || made == -EEXIST) /* another process may have made it meanwhile */
            fd = sg_sys_openat((int)SG_AT_FDCWD, directory, flags, 0);
        if (made == 0 && fd >= 0)
            (void)sg_sys_fchmod((int)fd, 0700); /* whatever the umask is */
    }
    if (fd < 0)
        return (int)fd;
    long result = sg_sys_fstat((int)fd, info);
    uint32_t user = (uint32_t)sg_syscall(SYS_geteuid, 0, 0, 0, 0, 0, 0);
    if (result == 0 && ((info->st_uid != user && info->st_uid != 0) || (info->st_mode & S_IWOTH) != 0))
        result = -EPERM;
    if (result == 0)
        return (int)fd;
    (void)sg_sys_close((int)fd);
    return (int)result;
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
           : error == -ENOTDIR || error == -ELOOP ? ": not a directory"
                                                  : ": the system refused";
}
