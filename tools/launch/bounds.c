/*
 * bounds.c - see launch.h.
 */
#include "launch/launch.h"

#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/text.h"
#include "common/tool.h"
#include "model/host/host.h"
#include "sparkguard_abi.h"
#include "sparkguard_bounds.h"

/* Returns the text of a file, empty if it cannot be read. */
static struct sg_bounds_text read_text(const char *path)
{
    char *text = NULL;
    size_t capacity = 0;
    FILE *file = fopen(path, "re");
    ssize_t length = file != NULL ? getdelim(&text, &capacity, '\0', file) : -1;
    if (file != NULL)
        fclose(file);
    return (struct sg_bounds_text){tool_adopt(text), length > 0 ? (size_t)length : 0};
}

/* Returns the groups of a user by /etc/group, and their number. A user without a name has none. */
static gid_t *groups_of(uid_t user, int *count)
{
    const struct passwd *entry = getpwuid(user);
    gid_t *groups = NULL;
    *count = 0;
    while (entry != NULL && getgrouplist(entry->pw_name, entry->pw_gid, groups, count) < 0)
        groups = tool_allocate((size_t)*count, sizeof *groups);
    return groups;
}

/* Finds the bounds of a user in the file below `root`, and reads user and group names of this machine. */
static struct sg_bounds bounds_below(const char *root, uid_t user)
{
    struct sg_bounds bounds = {0};
    char *path = text_format("%s" SG_BOUNDS_FILE, root);
    const struct sg_bounds_sources sources = {read_text(path), read_text("/etc/passwd"), read_text("/etc/group")};
    int count;
    gid_t *groups = groups_of(user, &count);
    const struct sg_bounds_user who = {user, groups, (size_t)count};
    (void)sg_bounds_find(&sources, &who, &bounds);
    return bounds;
}

/* As the library: a machine of files has bounds of its own, and cannot take away those of the real one. */
struct sg_bounds launch_bounds_of(uid_t user)
{
    const char *root = getenv("SPARKGUARD_SYSTEM_ROOT");
    struct sg_bounds bounds = bounds_below("", user);
    bool has_bounds = bounds.limit.is_set || bounds.reserve.is_set;
    return has_bounds || root == NULL ? bounds : bounds_below(root, user);
}

bool launch_bounds_allow(uid_t user, uint64_t limit_bytes, uint64_t reserve_bytes, uint64_t machine_bytes)
{
    const struct sg_bounds bounds = launch_bounds_of(user);
    uint64_t most = sg_size_of(bounds.limit, machine_bytes), least = sg_size_of(bounds.reserve, machine_bytes);
    bool exceeds = most != 0 && limit_bytes > most, undercuts = reserve_bytes != 0 && reserve_bytes < least;
    if (!exceeds && !undercuts)
        return true;
    char *name = user == getuid() ? text_copy("you", SIZE_MAX) : host_user_name(user);
    fprintf(stderr, "sparkguard: %s: " SG_BOUNDS_FILE " allows %s a %s of at %s %s; nothing is changed\n",
            launch_set_name, name, exceeds ? "limit" : "reserve", exceeds ? "most" : "least",
            text_size(exceeds ? most : least));
    return false;
}
