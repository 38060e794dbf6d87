/*
 * other_directories.c - finds directories of other users' guarded programs. Those programs and the processes shown do
 * not count each other.
 *
 * By default each user's programs share /dev/shm/sparkguard-UID. Other directories of that kind are found by name.
 * Their segments may be unreadable or left over from ended programs, and are not read. Anybody can make such a
 * directory; its only effect is a line in the report.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/procfs.h"
#include "model/model.h"
#include "common/bytes.h"
#include "common/text.h"

#define COMMON "/dev/shm/"
#define PREFIX "sparkguard-"

/* Returns whether a directory is a default one, /dev/shm/sparkguard-*: only then others of the kind are of interest. */
static bool is_of_the_kind(const char *directory)
{
    size_t root_length = strlen(procfs_live_root);
    if (strncmp(directory, procfs_live_root, root_length) != 0 ||
        strncmp(directory + root_length, COMMON PREFIX, strlen(COMMON PREFIX)) != 0)
        return false;
    directory += root_length;
    const char *name = directory + strlen(COMMON);
    return name[strcspn(name, "/") + strspn(name + strcspn(name, "/"), "/")] == '\0';
}

/* Returns whether a directory has a registry or a file named like a segment. An unreadable directory may have both. */
static bool has_records(int common, const char *name)
{
    struct stat status;
    char **segments = NULL;
    int fd = openat(common, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES || errno == EPERM;
    bool has_any = fstatat(fd, SG_REGISTRY_NAME, &status, AT_SYMLINK_NOFOLLOW) == 0;
    long count = has_any ? 0 : model_segment_names(fd, &segments);
    close(fd);
    return has_any || count > 0;
}

/* Returns whether any process runs as that user; true if /proc cannot be read. */
static bool has_processes(uid_t user)
{
    DIR *stream = opendir(text_format("%s/proc", procfs_live_root));
    const struct dirent *entry;
    struct stat status;
    bool is_found = stream == NULL;
    while (!is_found && (entry = readdir(stream)) != NULL)
        is_found = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
                   fstatat(dirfd(stream), entry->d_name, &status, 0) == 0 && status.st_uid == user;
    if (stream != NULL)
        closedir(stream);
    return is_found;
}

/* Returns whether a segment has an owner or cannot be opened. */
static bool has_owner(int directory, const char *name)
{
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno != ENOENT && errno != ELOOP;
    bool is_locked = model_is_locked(fd);
    close(fd);
    return is_locked;
}

/* Returns whether guarded processes may run in a directory. An unreadable one counts if its owner has processes. */
static bool may_have_processes(int common, const char *name, const struct stat *status)
{
    char **segments = NULL;
    int fd = openat(common, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return has_processes(status->st_uid);
    bool has_any = false;
    long count = model_segment_names(fd, &segments);
    for (long i = 0; i < count && !has_any; i++)
        has_any = has_owner(fd, segments[i]);
    close(fd);
    return has_any;
}

static void keep_live(struct model *model, const char *name)
{
    char *path = text_format("%s" COMMON "%s", procfs_live_root, name);
    bool is_first = model->live_other_directory == NULL || strcmp(path, model->live_other_directory) < 0;
    model->live_other_directory_count++;
    if (is_first)
        model->live_other_directory = path;
}

static const char *name_below_common(const char *path)
{
    return path + strlen(procfs_live_root) + strlen(COMMON);
}

/* Counts a directory and keeps its path if it is among the first by name. */
static void keep_other(struct model *model, const char *name)
{
    size_t place = bytes_min(model->other_directory_count++, MODEL_OTHER_DIRECTORY_CAPACITY);
    while (place > 0 && strcmp(name_below_common(model->other_directories[place - 1]), name) > 0)
        place--;
    if (place == MODEL_OTHER_DIRECTORY_CAPACITY)
        return;
    memmove(&model->other_directories[place + 1], &model->other_directories[place],
            (MODEL_OTHER_DIRECTORY_CAPACITY - 1 - place) * sizeof model->other_directories[0]);
    model->other_directories[place] = text_format("%s" COMMON "%s", procfs_live_root, name);
}

/* Returns whether a directory is the reader's own by default, which is left out where others are named. */
static bool is_own(const char *name, const struct stat *status)
{
    return status->st_uid == geteuid() && strcmp(name, text_format(PREFIX "%u", (unsigned)geteuid())) == 0;
}

void model_other_directories_fill(struct model *model)
{
    struct stat status;
    bool is_any = false;
    for (size_t i = 0; i < model->directory_count; i++)
        is_any = is_any || is_of_the_kind(model->directories[i].path);
    if (!is_any)
        return;
    DIR *stream = opendir(text_format("%s" COMMON, procfs_live_root));
    const struct dirent *entry;
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) != 0 ||
            fstatat(dirfd(stream), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        bool is_read = model_directory_find(model, status.st_dev, status.st_ino) != NULL;
        if (is_read || !has_records(dirfd(stream), entry->d_name))
            continue;
        if (is_own(entry->d_name, &status)) {
            model->own_directory = text_format("%s" COMMON "%s", procfs_live_root, entry->d_name);
            continue;
        }
        keep_other(model, entry->d_name);
        if (may_have_processes(dirfd(stream), entry->d_name, &status))
            keep_live(model, entry->d_name);
    }
    if (stream != NULL)
        closedir(stream);
}
