/*
 * cgroup.c - see cgroup.h. A level outside our cgroup namespace or our container's mount still bounds this process, but
 * its files are not visible. Only visible levels are reported.
 */
#define _GNU_SOURCE
#include "common/cgroup.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/procfs.h"
#include "sparkguard_abi.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

/* cgroup version 1 shows "no limit" as 2^63 - 1 rounded down to a page. */
#define NO_LIMIT (UINT64_C(1) << 62)

enum { PATH_CAPACITY = 4096, FILE_CAPACITY = 65536 };

struct hierarchy {
    char mount[PATH_CAPACITY];
    const char *limit[2]; /* file names, the second may be NULL */
    const char *usage;
    const char *reclaimable[3]; /* keys of memory.stat; NULL ends a shorter list */
};

/* What is collected of each level: constraints, or the files of its limits; the other is NULL. */
struct levels {
    struct cgroup_constraint *at;
    struct cgroup_level *files;
    size_t count, capacity;
};

/* Reads a file that holds one number. Returns SG_UNKNOWN for "max" and where the file cannot be read. */
static uint64_t read_number(const char *folder, const char *file)
{
    char path[2 * PATH_CAPACITY + 64], text[64];
    uint64_t value;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (procfs_read_text(path, text, sizeof text) <= 0 || text[0] < '0' || text[0] > '9')
        return SG_UNKNOWN;
    return sscanf(text, "%" SCNu64, &value) == 1 && value < NO_LIMIT ? value : SG_UNKNOWN;
}

/* Adds one level. A level without a limit or without a readable usage is skipped, as the library skips it. */
static void read_level(const struct hierarchy *hierarchy, const char *folder, struct levels *levels)
{
    uint64_t limit = SG_UNKNOWN;
    for (int i = 0; i < 2 && hierarchy->limit[i] != NULL; i++)
        limit = bytes_min(limit, read_number(folder, hierarchy->limit[i]));
    uint64_t usage = read_number(folder, hierarchy->usage);
    if (limit == SG_UNKNOWN || usage == SG_UNKNOWN || levels->count == levels->capacity)
        return;
    char path[2 * PATH_CAPACITY + 64];
    char *stat = tool_allocate(FILE_CAPACITY, 1);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (procfs_read_text(path, stat, FILE_CAPACITY) > 0)
        for (int i = 0; i < 3 && hierarchy->reclaimable[i] != NULL; i++) {
            uint64_t reclaimable = procfs_number_after(stat, hierarchy->reclaimable[i]);
            usage = bytes_less(usage, reclaimable == SG_UNKNOWN ? 0 : reclaimable);
        }
    free(stat);
    levels->at[levels->count++] = (struct cgroup_constraint){limit, bytes_less(limit, usage), SG_UNKNOWN, SG_UNKNOWN};
}

/* Adds the files of one level, if any sets a limit. */
static void read_files(const struct hierarchy *hierarchy, const char *folder, struct levels *levels)
{
    struct cgroup_level level = {
        .max_bytes = read_number(folder, hierarchy->limit[0]), .high_bytes = SG_UNKNOWN, .swap_max_bytes = SG_UNKNOWN};
    if (hierarchy->limit[1] != NULL) {
        level.high_bytes = read_number(folder, hierarchy->limit[1]);
        level.swap_max_bytes = read_number(folder, "memory.swap.max");
    }
    if (bytes_min(level.max_bytes, bytes_min(level.high_bytes, level.swap_max_bytes)) == SG_UNKNOWN ||
        levels->count == levels->capacity)
        return;
    const char *path = folder + strlen(hierarchy->mount);
    snprintf(level.path, sizeof level.path, "%s", path[0] != '\0' ? path : "/");
    levels->files[levels->count++] = level;
}

/* Returns whether a path has a component "..": the kernel shows a cgroup outside our cgroup namespace so. */
static bool leads_outside(const char *group)
{
    for (const char *at = strstr(group, "/.."); at != NULL; at = strstr(at + 1, "/.."))
        if (at[3] == '/' || at[3] == '\0')
            return true;
    return false;
}

/* Adds all levels from the process's own cgroup up to the mount point. */
static void read_hierarchy(const struct hierarchy *hierarchy, const char *group, struct levels *levels)
{
    char folder[2 * PATH_CAPACITY];
    size_t mount_length = strlen(hierarchy->mount);
    snprintf(folder, sizeof folder, "%s%s", hierarchy->mount, leads_outside(group) ? "" : group);
    for (;;) {
        if (levels->files != NULL)
            read_files(hierarchy, folder, levels);
        if (levels->at != NULL)
            read_level(hierarchy, folder, levels);
        char *slash = strrchr(folder + mount_length, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
    }
}

static bool names_controller(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *p = list; p != NULL; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, name, length) == 0 && (p[length] == ',' || p[length] == '\0'))
            return true;
    }
    return false;
}

/* Reads all levels of all hierarchies that bound this process. */
static void read_all(const char *root, struct levels *levels)
{
    struct hierarchy second = {.limit = {"memory.max", "memory.high"},
                               .usage = "memory.current",
                               .reclaimable = {"active_file", "inactive_file", "slab_reclaimable"}};
    struct hierarchy beside_first = second; /* systemd's "hybrid" layout: version 2 is mounted beside version 1 */
    struct hierarchy first = {.limit = {"memory.limit_in_bytes"},
                              .usage = "memory.usage_in_bytes",
                              .reclaimable = {"total_active_file", "total_inactive_file"}};
    snprintf(second.mount, sizeof second.mount, "%s/sys/fs/cgroup", root);
    snprintf(beside_first.mount, sizeof beside_first.mount, "%s/sys/fs/cgroup/unified", root);
    snprintf(first.mount, sizeof first.mount, "%s/sys/fs/cgroup/memory", root);
    char path[PATH_CAPACITY], text[FILE_CAPACITY], *rest = NULL;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (procfs_read_text(path, text, sizeof text) <= 0)
        return;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL || strlen(group) >= PATH_CAPACITY)
            continue;
        *group++ = '\0';
        if (strcmp(group, "/") == 0)
            group++;
        if (controllers[1] == '\0') {
            read_hierarchy(&second, group, levels);
            read_hierarchy(&beside_first, group, levels);
        } else if (names_controller(controllers + 1, "memory")) {
            read_hierarchy(&first, group, levels);
        }
    }
}

size_t cgroup_read(const char *root, struct cgroup_constraint *out, size_t capacity)
{
    struct levels levels = {.at = out, .capacity = capacity};
    read_all(root, &levels);
    return levels.count;
}

size_t cgroup_read_levels(const char *root, struct cgroup_level *out, size_t capacity)
{
    struct levels levels = {.files = out, .capacity = capacity};
    read_all(root, &levels);
    return levels.count;
}
