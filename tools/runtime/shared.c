/*
 * shared.c - see runtime.h. The rules are those of the library (preload/core/base/directory.c), applied to ids as the
 * container will see them: an id of the host that its user namespace does not map is nobody's there.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <libgen.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/text.h"
#include "runtime/runtime.h"

enum { GROUP_LEAST = 1000 };    /* below it are groups of distributions and images, whose numbers are used again */
enum { GROUPS_MOST = 1 << 20 }; /* bytes of an image's list of groups */

#define GROUP "sparkguard" /* who share the directory, if the administrator has made this group */

bool runtime_shared_mount(const char *path, const char *options)
{
    return mount("sparkguard", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options) == 0;
}

/* Makes the directory: for the group if there is one, else for its owner alone. Root's is a file system of its own, so
 * that what members write there takes no memory but its own. Where that cannot be mounted it stays a directory. */
static void make(const struct runtime_settings *settings)
{
    const struct group *group = settings->is_rootless ? NULL : getgrnam(GROUP);
    char *parent = text_copy(settings->shared, PATH_MAX), *slash = strrchr(parent, '/');
    if (slash != NULL && slash != parent && !settings->is_rootless) {
        *slash = '\0';
        if (mkdir(parent, 0755) == 0)
            (void)chmod(parent, 0755);
    }
    if (mkdir(settings->shared, 0700) != 0)
        return;
    if (!settings->is_rootless)
        (void)runtime_shared_mount(settings->shared, RUNTIME_SHARED_SIZE ",mode=0700");
    if (group != NULL && chown(settings->shared, (uid_t)-1, group->gr_gid) == 0)
        (void)chmod(settings->shared, 02770);
}

const char *runtime_shared_prepare(const struct runtime_settings *settings, struct stat *status)
{
    if (lstat(settings->shared, status) != 0 && errno == ENOENT)
        make(settings);
    if (lstat(settings->shared, status) != 0)
        return strerror(errno);
    return !S_ISDIR(status->st_mode)          ? "it is no directory"
           : (status->st_mode & S_IWOTH) != 0 ? "it is open to all users"
                                              : NULL;
}

bool runtime_shared_has_namespace(const json_t *config, const char *type, bool joins)
{
    size_t i;
    json_t *one;
    for (i = 0; (one = json_array_get(json_object_get(json_object_get(config, "linux"), "namespaces"), i)) != NULL;
         i++) {
        const char *its = json_string_value(json_object_get(one, "type"));
        if (its != NULL && strcmp(its, type) == 0 &&
            (!joins || json_string_value(json_object_get(one, "path")) != NULL))
            return true;
    }
    return false;
}

static bool has_group(const struct runtime_document *config, const json_t *user, uint32_t group)
{
    size_t i;
    json_t *one;
    uint32_t number = 0;
    if (runtime_document_number(config, json_object_get(user, "gid"), &number) && number == group)
        return true;
    const json_t *groups = json_object_get(user, "additionalGids");
    for (i = 0; (one = json_array_get(groups, i)) != NULL; i++)
        if (runtime_document_number(config, one, &number) && number == group)
            return true;
    return false;
}

/* Returns whether a group is some user's own, and so owns files. */
static bool is_users_own(gid_t group)
{
    FILE *users = fopen("/etc/passwd", "re");
    const struct passwd *user = NULL;
    while (users != NULL && (user = fgetpwent(users)) != NULL && user->pw_gid != group)
        continue;
    if (users != NULL)
        fclose(users);
    return users == NULL || user != NULL;
}

/* Returns whether the image has a group of this number, or more groups than are read. */
static bool is_of_image(const struct runtime_image *image, gid_t inside)
{
    char real[PATH_MAX];
    struct stat status;
    const struct group *group = NULL;
    int fd = runtime_image_read(image, "/etc/group", real, &status);
    if (fd >= 0 && status.st_size > GROUPS_MOST) {
        close(fd);
        return true;
    }
    FILE *groups = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (groups == NULL && fd >= 0)
        close(fd);
    while (groups != NULL && (group = fgetgrent(groups)) != NULL && group->gr_gid != inside)
        continue;
    if (groups != NULL)
        fclose(groups);
    return group != NULL;
}

/* Returns whether something that is mounted from the host belongs to the group, besides the shared directory. */
static bool is_of_mount(const struct runtime_image *image, const char *shared, gid_t group)
{
    struct stat status;
    for (size_t i = 0; i < image->count; i++)
        if (image->mounts[i].is_bind && strcmp(image->mounts[i].source, shared) != 0 &&
            stat(image->mounts[i].source, &status) == 0 && status.st_gid == group)
            return true;
    return false;
}

/* A process gets the group only where it opens nothing but the directory. Returns why it does not get it, or NULL. */
static const char *group_obstacle(const struct runtime_settings *settings, const struct runtime_document *config,
                                  gid_t group, gid_t inside)
{
    struct runtime_image image;
    char *bundle = text_copy(config->path, PATH_MAX);
    if (settings->is_rootless)
        return "a user's runtime gives no groups";
    if (group < GROUP_LEAST || inside < GROUP_LEAST)
        return "the directory's group is one of the system";
    if (is_users_own(group))
        return "the directory's group is the own group of a user";
    if (!runtime_image_open(&image, config->root, dirname(bundle)))
        return "its root file system cannot be opened";
    const char *why = is_of_image(&image, inside)                    ? "its image has a group of that number"
                      : is_of_mount(&image, settings->shared, group) ? "a mount of it belongs to the directory's group"
                                                                     : NULL;
    runtime_image_close(&image);
    return why;
}

struct runtime_sharing runtime_shared_judge(const struct runtime_settings *settings, const struct stat *status,
                                            const struct runtime_document *config, const json_t *user)
{
    struct runtime_sharing sharing = {0};
    uint32_t owner, uid = 0;
    (void)runtime_document_number(config, json_object_get(user, "uid"), &uid);
    if (runtime_shared_has_namespace(config->root, "user", true) ||
        !runtime_document_map_id(config, "uidMappings", status->st_uid, false, &owner) || (owner != 0 && owner != uid))
        return sharing;
    if (owner == uid && (status->st_mode & S_IRWXG) == 0) {
        sharing.is_usable = (status->st_mode & 0700) == 0700;
        return sharing;
    }
    const unsigned group_bits = S_ISGID | S_IRWXG;
    if ((status->st_mode & group_bits) != group_bits ||
        !runtime_document_map_id(config, "gidMappings", status->st_gid, false, &sharing.group))
        return sharing;
    sharing.is_usable = has_group(config, user, sharing.group);
    if (sharing.is_usable)
        return sharing;
    sharing.why = group_obstacle(settings, config, status->st_gid, sharing.group);
    sharing.is_usable = sharing.needs_group = sharing.why == NULL;
    return sharing;
}
