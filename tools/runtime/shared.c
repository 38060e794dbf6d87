/*
 * shared.c - see runtime.h. The rules are those of the library (preload/core/base/directory.c), applied to ids as the
 * container will see them: an id of the host that its user namespace does not map is nobody's there.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/text.h"
#include "runtime/runtime.h"

enum { GROUP_LEAST = 1000 }; /* below it are groups of distributions and images */

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
    bool is_member = has_group(config, user, sharing.group);
    /* A group of the system opens files in the image and in what is mounted; and a user's runtime gives no groups. */
    sharing.needs_group = !is_member && sharing.group >= GROUP_LEAST && !settings->is_rootless;
    sharing.is_usable = is_member || sharing.needs_group;
    return sharing;
}
