/*
 * directory.c - see launch.h: judges the directory of the segments (SPARKGUARD_DIR), and opens those of this user.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "launch/launch.h"
#include "model/segment_reader.h"
#include "sparkguard_abi.h"
#include "common/text.h"

const char *launch_directory_fault(const char *path)
{
    struct stat status;
    struct statvfs system;
    if (lstat(path, &status) != 0) {
        bool can_be_made = errno == ENOENT && access(dirname(text_copy(path, strlen(path))), W_OK | X_OK) == 0;
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

bool launch_read_at(int fd, size_t offset, void *to, size_t bytes)
{
    return pread(fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

static bool is_record(int fd, bool takes_root, struct sg_slot *slot)
{
    struct stat status;
    return fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
           (status.st_uid == geteuid() || (takes_root && status.st_uid == 0)) &&
           status.st_size >= (off_t)sizeof(struct sg_segment) && launch_read_at(fd, 0, slot, sizeof *slot) &&
           slot->magic == SG_ABI_MAGIC && slot->abi_version == SG_ABI_VERSION;
}

void launch_each_record(const char *directory, bool takes_root,
                        void (*function)(int fd, const struct sg_slot *slot, void *data), void *data)
{
    struct sg_slot slot;
    const struct dirent *entry;
    DIR *stream = opendir(directory);
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        int fd = model_is_segment_name(entry->d_name)
                     ? openat(dirfd(stream), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
                     : -1;
        if (fd >= 0 && is_record(fd, takes_root, &slot))
            function(fd, &slot, data);
        if (fd >= 0)
            close(fd);
    }
    if (stream != NULL)
        closedir(stream);
}
