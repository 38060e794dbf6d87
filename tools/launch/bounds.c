/*
 * bounds.c - see bounds.h.
 */
#define _GNU_SOURCE
#include "launch/bounds.h"

#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/text.h"
#include "common/tool.h"
#include "sparkguard_abi.h"
#include "sparkguard_bounds.h"

/* Reads a file into *buffer, which the caller frees. Returns its text, empty if it cannot be read. */
static struct sg_bounds_text read_file(const char *path, char **buffer)
{
    size_t capacity = 0;
    FILE *file = fopen(path, "re");
    ssize_t length = file != NULL ? getdelim(buffer, &capacity, '\0', file) : -1;
    if (file != NULL)
        fclose(file);
    return (struct sg_bounds_text){*buffer, length > 0 ? (size_t)length : 0};
}

/* Finds the bounds of this process's user in the file below `root`, and reads user and group names of this machine. */
static struct sg_bounds bounds_below(const char *root)
{
    struct sg_bounds bounds = {0};
    char *path = text_format("%s" SG_BOUNDS_FILE, root), *buffer[3] = {NULL};
    const struct sg_bounds_sources sources = {read_file(path, &buffer[0]), read_file("/etc/passwd", &buffer[1]),
                                              read_file("/etc/group", &buffer[2])};
    int count = getgroups(0, NULL);
    gid_t *groups = tool_allocate((size_t)(count > 0 ? count : 0) + 1, sizeof *groups);
    count = count > 0 ? getgroups(count, groups) : 0;
    count = count > 0 ? count : 0;
    groups[count] = getgid();
    const struct sg_bounds_user user = {getuid(), groups, (size_t)count + 1};
    (void)sg_bounds_find(&sources, &user, &bounds);
    for (size_t i = 0; i < 3; i++)
        free(buffer[i]);
    free(groups);
    free(path);
    return bounds;
}

/* As the library: a machine of files has bounds of its own, and cannot take away those of the real one. */
static struct sg_bounds find_bounds(void)
{
    const char *root = getenv("SPARKGUARD_SYSTEM_ROOT");
    struct sg_bounds bounds = bounds_below("");
    bool is_bounded = bounds.limit.is_set || bounds.reserve.is_set;
    return is_bounded || root == NULL ? bounds : bounds_below(root);
}

bool launch_bounds_allow(uint64_t limit_bytes, uint64_t limit_base, uint64_t reserve_bytes, uint64_t reserve_base)
{
    char size[TEXT_SIZE_CAPACITY];
    if (getuid() == 0)
        return true;
    const struct sg_bounds bounds = find_bounds();
    uint64_t most = sg_size_of(bounds.limit, limit_base), least = sg_size_of(bounds.reserve, reserve_base);
    bool exceeds = most != 0 && limit_bytes > most, undercuts = reserve_bytes != 0 && reserve_bytes < least;
    if (exceeds)
        fprintf(stderr, "sparkguard: --set: " SG_BOUNDS_FILE " allows you a limit of at most %s; nothing is changed\n",
                text_size(size, most));
    else if (undercuts)
        fprintf(stderr,
                "sparkguard: --set: " SG_BOUNDS_FILE " allows you a reserve of at least %s; nothing is changed\n",
                text_size(size, least));
    return !exceeds && !undercuts;
}
