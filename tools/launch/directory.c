/*
 * directory.c - see launch.h: judges the directory of the segments (SPARKGUARD_DIR).
 */
#include <errno.h>
#include <libgen.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "launch/launch.h"
#include "sparkguard_abi.h"
#include "common/text.h"

const char *launch_directory_fault(const char *path)
{
    struct stat status;
    struct statvfs system;
    if (lstat(path, &status) != 0) {
        char *copy = text_copy(path, strlen(path));
        bool can_be_made = errno == ENOENT && access(dirname(copy), W_OK | X_OK) == 0;
        int failure = errno;
        return can_be_made ? NULL : strerror(failure);
    }
    if (!S_ISDIR(status.st_mode))
        return "not a directory";
    if ((status.st_uid != geteuid() && status.st_uid != 0) || (status.st_mode & S_IWOTH) != 0)
        return "it must belong to you or root and be closed to others";
    if (access(path, R_OK | W_OK | X_OK) != 0)
        return strerror(errno);
    bool is_full = statvfs(path, &system) == 0 && system.f_blocks > 0 &&
                   system.f_bavail * system.f_frsize < sizeof(struct sg_segment);
    return is_full ? "no space left" : NULL;
}
