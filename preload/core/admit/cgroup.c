/*
 * cgroup.c - see cgroup.h: the memory cgroups above this process, v1 and v2, at every visible level.
 *
 *     headroom = min(max, high) - (current - active_file - inactive_file - slab_reclaimable)
 *
 * Clean page cache fills memory.current, but the kernel reclaims it on demand. memory.high bounds admission only and
 * ends no process: above it the kernel merely slows the group down. v1 uses the hierarchical totals (total_...) and has
 * no figure for reclaimable slab. Levels and limits are read once a second, usage with every snapshot. All functions
 * need the decision lock.
 */
#include "admit/cgroup.h"

#include "base/atomics.h"
#include "base/options.h"
#include "admit/snapshot.h"
#include "shared/segment.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/text.h"

#include <string.h>
#include <sys/stat.h>

#define UNLIMITED (UINT64_C(1) << 62)

/* The path of the lowest group of each hierarchy, below the system root. Its levels are the beginnings of it. */
struct hierarchy {
    char path[SG_PATH_MAX];
};

static struct hierarchy hierarchies[3];
static uint32_t hierarchy_count;

struct level {
    const struct hierarchy *hierarchy;
    uint64_t identity;          /* the same in every process, whatever path it sees for this cgroup */
    uint64_t limit_bytes;       /* min(max, high) */
    uint64_t hard_limit_bytes;  /* max; UNLIMITED: no limit */
    uint64_t unexplained_bytes; /* as in sg_constraint */
    uint64_t used_bytes;        /* as last read; granted_bytes: what this process had been granted then */
    uint64_t granted_bytes;
    uint32_t path_length;
    bool is_v2, has_been_read;
};

static struct level levels[SG_CONSTRAINT_CAPACITY - 1];
static uint32_t level_count;
static uint64_t discovered_ns;

static const char *read_file(const char *directory, const char *name)
{
    static char path[SG_PATH_MAX + 64];
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, directory);
    sg_text_add(&text, "/");
    sg_text_add(&text, name);
    return sg_snapshot_read(path);
}

/* The number in a file. UNLIMITED for "max" and for a file that cannot be read. */
static uint64_t read_limit(const char *directory, const char *name)
{
    const char *text = read_file(directory, name);
    if (text == NULL || *text < '0' || *text > '9')
        return UNLIMITED;
    uint64_t bytes = sg_text_read_number(&text);
    return bytes < UNLIMITED ? bytes : UNLIMITED;
}

/* Made of the directory's file system and inode, because containers see the same cgroup under other paths. Never 0. */
static uint64_t identity_of(const char *directory)
{
    static char path[SG_PATH_CAPACITY + SG_PATH_MAX]; /* large for a stack */
    struct stat info = {0};
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, sg_options.system_root);
    sg_text_add(&text, directory);
    (void)sg_sys_stat(path, &info);
    return ((uint64_t)info.st_dev << 32 ^ (uint64_t)info.st_ino) | UINT64_C(1) << 63;
}

/* The directory of a level, until the next call. */
static const char *path_of(const struct level *level)
{
    static char path[SG_PATH_MAX];
    memcpy(path, level->hierarchy->path, level->path_length);
    path[level->path_length] = '\0';
    return path;
}

static bool read_used(struct level *level);

/* What the level leaves now, to compare levels. One whose usage cannot be read leaves nothing that is known. */
static uint64_t left_of(struct level *level)
{
    if (!read_used(level))
        return UINT64_MAX;
    return level->limit_bytes > level->used_bytes ? level->limit_bytes - level->used_bytes : 0;
}

/* Makes room for one more level if it leaves less than one of the others: of those, the one that leaves the most
 * goes. */
static bool make_room(struct level *more)
{
    static bool has_reported;
    uint64_t most = left_of(more);
    uint32_t widest = level_count;
    if (level_count < SG_ARRAY_LENGTH(levels))
        return true;
    if (!has_reported)
        sg_segment_add_event("cgroups: more have a limit than can be counted; those that leave the least count");
    has_reported = true;
    for (uint32_t i = 0; i < level_count; i++) {
        uint64_t left = left_of(&levels[i]);
        if (left > most) {
            most = left;
            widest = i;
        }
    }
    if (widest == level_count)
        return false;
    level_count--;
    memmove(&levels[widest], &levels[widest + 1], (level_count - widest) * sizeof levels[0]);
    return true;
}

/* The hierarchy that a directory belongs to: a walk begins with its lowest group. NULL: there are too many. */
static const struct hierarchy *hierarchy_of(const char *directory, size_t length)
{
    if (hierarchy_count != 0) {
        const struct hierarchy *last = &hierarchies[hierarchy_count - 1];
        if (strncmp(last->path, directory, length) == 0 && (last->path[length] == '/' || last->path[length] == '\0'))
            return last;
    }
    if (hierarchy_count == SG_ARRAY_LENGTH(hierarchies))
        return NULL;
    struct hierarchy *next = &hierarchies[hierarchy_count++];
    struct sg_text text = sg_text_begin(next->path, sizeof next->path);
    sg_text_add(&text, directory);
    return next;
}

static void add_level(const char *directory, const char *path, bool is_v2, void *unused)
{
    const size_t length = strlen(directory);
    const struct hierarchy *hierarchy = hierarchy_of(directory, length);
    (void)path;
    (void)unused;
    uint64_t hard_limit = read_limit(directory, is_v2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t high = is_v2 ? read_limit(directory, "memory.high") : UNLIMITED;
    uint64_t limit = high < hard_limit ? high : hard_limit;
    struct level level = {.hierarchy = hierarchy,
                          .path_length = (uint32_t)length,
                          .limit_bytes = limit,
                          .hard_limit_bytes = hard_limit,
                          .is_v2 = is_v2};
    if (limit == UNLIMITED || hierarchy == NULL || !make_room(&level))
        return;
    level.identity = identity_of(directory);
    levels[level_count++] = level;
}

/* Whether a path has a component "..": the cgroup is outside the root of this cgroup namespace. */
static bool has_parent_component(const char *path)
{
    for (const char *at = path; (at = strstr(at, "/..")) != NULL; at += 3)
        if (at[3] == '/' || at[3] == '\0')
            return true;
    return false;
}

/* Visits all levels from mount + path up to the mount itself. */
static void visit_levels(const char *mount, const char *path, bool is_v2, sg_cgroup_visit *visit, void *data)
{
    static char directory[SG_PATH_MAX];
    struct sg_text text = sg_text_begin(directory, sizeof directory);
    sg_text_add(&text, mount);
    size_t mount_length = text.length;
    if (!has_parent_component(path) && strcmp(path, "/") != 0)
        sg_text_add(&text, path);
    /* A container without a cgroup namespace has the host's path for its group, but the group is the mount's root. The
     * files below that path are missing; the walk ends at the mount, where they are. */
    for (;;) {
        directory[text.length] = '\0';
        visit(directory, directory + mount_length, is_v2, data);
        if (text.length <= mount_length)
            return;
        while (text.length > mount_length && directory[text.length - 1] != '/')
            text.length--;
        while (text.length > mount_length && directory[text.length - 1] == '/')
            text.length--;
    }
}

/* Whether the comma-separated list in front of ':' names the memory controller. */
static bool names_memory(const char *list, const char *end)
{
    for (const char *word = list; word < end;) {
        const char *comma = memchr(word, ',', (size_t)(end - word));
        const char *stop = comma != NULL ? comma : end;
        if (stop - word == 6 && memcmp(word, "memory", 6) == 0)
            return true;
        word = stop + 1;
    }
    return false;
}

/* Visits all levels by the text of /proc/self/cgroup. */
static void visit_all(const char *text, sg_cgroup_visit *visit, void *data)
{
    static char own[SG_SNAPSHOT_FILE_BYTES];
    struct sg_text copy = sg_text_begin(own, sizeof own);
    sg_text_add(&copy, text); /* visit_levels reads files into the same scratch buffer */
    for (char *line = own; line != NULL && *line != '\0';) {
        char *next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        char *list = strchr(line, ':');
        char *path = list != NULL ? strchr(list + 1, ':') : NULL;
        if (path != NULL && path == list + 1 && line[0] == '0') {
            visit_levels("/sys/fs/cgroup", path + 1, true, visit, data);
            visit_levels("/sys/fs/cgroup/unified", path + 1, true, visit, data);
        } else if (path != NULL && names_memory(list + 1, path)) {
            visit_levels("/sys/fs/cgroup/memory", path + 1, false, visit, data);
        }
        line = next;
    }
}

static void discover(void)
{
    const char *text = sg_snapshot_read("/proc/self/cgroup");
    if (text == NULL) /* no descriptor left, or a chroot: keep the levels found before */
        return;
    level_count = hierarchy_count = 0;
    visit_all(text, add_level, NULL);
}

void sg_cgroup_visit_all(sg_cgroup_visit *visit, void *data)
{
    const char *text = sg_snapshot_read("/proc/self/cgroup");
    if (text != NULL)
        visit_all(text, visit, data);
}

uint64_t sg_cgroup_limit(const char *directory, const char *file)
{
    uint64_t bytes = read_limit(directory, file);
    return bytes == UNLIMITED ? SG_UNKNOWN : bytes;
}

/* Bytes of a memory.stat that no counter explains. Pages that a driver took for its processes are among them: they
 * count as kernel memory, but in no other field. */
static uint64_t unexplained_of(const char *text)
{
    static const char *const explained[] = {"slab",           "kernel_stack", "pagetables",
                                            "sec_pagetables", "percpu",       "vmalloc"};
    return sg_snapshot_unexplained(text, "kernel", explained, SG_ARRAY_LENGTH(explained));
}

/* Reads the bytes of a cgroup that count as used; of v2 also what no counter explains. False: it cannot be read. */
static bool read_usage(const char *directory, bool is_v2, uint64_t *used_bytes, uint64_t *unexplained_bytes)
{
    const char *text = read_file(directory, is_v2 ? "memory.current" : "memory.usage_in_bytes");
    if (text == NULL)
        return false;
    uint64_t used = sg_text_read_number(&text);
    uint64_t cache = 0;
    text = read_file(directory, "memory.stat");
    if (text != NULL && is_v2)
        cache = sg_text_read_field(text, "active_file", 0) + sg_text_read_field(text, "inactive_file", 0) +
                sg_text_read_field(text, "slab_reclaimable", 0);
    else if (text != NULL)
        cache = sg_text_read_field(text, "total_active_file", 0) + sg_text_read_field(text, "total_inactive_file", 0);
    *used_bytes = used > cache ? used - cache : 0;
    *unexplained_bytes = text != NULL && is_v2 ? unexplained_of(text) : 0;
    return true;
}

/* Reads the bytes of a level that count as used. If the files cannot be read any more, the last figure grows by what
 * this process is granted. False: they could never be read. */
static bool read_used(struct level *level)
{
    uint64_t granted = sg_load(&sg_own->slot.granted_bytes);
    if (read_usage(path_of(level), level->is_v2, &level->used_bytes, &level->unexplained_bytes))
        level->has_been_read = true;
    else
        level->used_bytes += granted > level->granted_bytes ? granted - level->granted_bytes : 0;
    level->granted_bytes = granted;
    return level->has_been_read;
}

void sg_cgroup_visit_path(const char *path, sg_cgroup_visit *visit, void *data)
{
    visit_levels("/sys/fs/cgroup", path, true, visit, data);
    visit_levels("/sys/fs/cgroup/unified", path, true, visit, data);
    visit_levels("/sys/fs/cgroup/memory", path, false, visit, data);
}

bool sg_cgroup_read(const char *directory, bool is_v2, uint64_t *hard_limit_bytes, uint64_t *used_bytes)
{
    uint64_t unexplained;
    if (!read_usage(directory, is_v2, used_bytes, &unexplained))
        return false;
    *hard_limit_bytes = sg_cgroup_limit(directory, is_v2 ? "memory.max" : "memory.limit_in_bytes");
    return true;
}

bool sg_cgroup_get_hard(const struct sg_constraint *constraint, bool is_machine, struct sg_constraint *out)
{
    *out = *constraint;
    if (!is_machine) {
        if (constraint->hard_limit_bytes == UNLIMITED)
            return false;
        uint64_t limit = constraint->hard_limit_bytes, used = constraint->used_bytes;
        out->limit_bytes = limit;
        out->headroom_bytes = limit > used ? limit - used : 0;
    }
    sg_snapshot_set_danger_lines(out, is_machine);
    return true;
}

static bool read_level(struct level *level, struct sg_constraint *out)
{
    if (!read_used(level))
        return false;
    uint64_t used = level->used_bytes;
    out->limit_bytes = level->limit_bytes;
    out->headroom_bytes = level->limit_bytes > used ? level->limit_bytes - used : 0;
    out->hard_limit_bytes = level->hard_limit_bytes;
    out->used_bytes = used;
    out->unexplained_bytes = level->unexplained_bytes;
    out->touched_bytes = 0;
    sg_snapshot_set_reserve(out, false);
    return true;
}

uint32_t sg_cgroup_find(uint64_t identity[SG_CONSTRAINT_CAPACITY - 1])
{
    uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
    if (discovered_ns == 0 || now - discovered_ns > 1000000000u) {
        discover();
        discovered_ns = now;
    }
    for (uint32_t i = 0; i < level_count; i++)
        identity[i] = levels[i].identity;
    return level_count;
}

void sg_cgroup_refresh(struct sg_snapshot *snapshot)
{
    for (uint32_t i = 0; snapshot->is_valid && i < level_count; i++) {
        struct sg_constraint *constraint = &snapshot->at[snapshot->count];
        if (!read_level(&levels[i], constraint))
            continue;
        constraint->level = i;
        snapshot->count++;
    }
}
