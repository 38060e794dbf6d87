/*
 * containers.c - see containers.h.
 */
#include "admit/containers.h"

#include "admit/cgroup.h"
#include "base/atomics.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/options.h"
#include "base/pages.h"
#include "base/syscall.h"
#include "base/text.h"
#include "sparkguard_figures.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>

#define PAUSE_NS UINT64_C(250000000)
#define CLOSE_PAUSE_NS UINT64_C(5000000)
#define READ_NS UINT64_C(10000000)
#define PUBLISH_NS UINT64_C(100000000)
#define PUBLISH_AGAIN_NS UINT64_C(1000000000)
#define LEAST_BYTES (UINT64_C(1) << 20) /* smaller promises do not count, and smaller changes can wait */
#define MUCH_BYTES (UINT64_C(64) << 20)

enum { NAMES_MOST = 8192, WORDS_BYTES = 2048, BUFFER_BYTES = 4096, LEVELS_MOST = 256, DEPTH_MOST = 16 };

struct sg_containers sg_containers;

/* A cgroup above a container, in one reading. */
struct level {
    uint64_t name; /* a hash of its directory */
    uint64_t limit_bytes, used_bytes;
    uint64_t counted_bytes; /* of containers below it */
    bool is_there;
};

static struct level levels[LEVELS_MOST];

/* One reading of the folder. */
struct reading {
    struct sg_snapshot *snapshot;
    struct sg_containers found;
    uint64_t until_ns; /* by the thread's clock */
    uint32_t seen, levels;
    bool has_no_descriptor;
    sg_container_visitor *visitor; /* NULL: only the sums are wanted */
    void *data;
};

static uint64_t read_ns, cost_ns;
static uint64_t own_device, own_inode; /* of the file that this process writes */
static bool has_none;                  /* there is no such file */

/* ---- the cgroups above a container ------------------------------------------------------------------------------- */

struct walk {
    struct reading *reading;
    const char *path;
    struct level *at[DEPTH_MOST], *lowest;
    uint32_t depth;
    bool is_there, is_beyond; /* of this mount; more levels than can be remembered */
};

/* Returns the level of a directory, read once in a reading; NULL: there are too many. */
static struct level *find_level(struct reading *reading, const char *directory, bool is_v2)
{
    const uint64_t name = sg_hash_text(directory);
    for (uint32_t i = 0; i < reading->levels; i++)
        if (levels[i].name == name)
            return &levels[i];
    if (reading->levels == LEVELS_MOST)
        return NULL;
    struct level *level = &levels[reading->levels++];
    *level = (struct level){.name = name};
    level->is_there = sg_cgroup_read(directory, is_v2, &level->limit_bytes, &level->used_bytes);
    return level;
}

static void visit_level(const char *directory, const char *path, bool is_v2, void *data)
{
    struct walk *walk = data;
    bool is_lowest = strcmp(path, walk->path) == 0;
    if (!is_lowest && !walk->is_there)
        return;
    struct level *level = find_level(walk->reading, directory, is_v2);
    if (is_lowest)
        walk->is_there = level != NULL && level->is_there;
    if (is_lowest && walk->is_there)
        walk->lowest = level;
    else if (is_lowest && level == &levels[walk->reading->levels - 1])
        walk->reading->levels--; /* it is in another mount: its place is for one that is there */
    if (level == NULL || walk->depth == DEPTH_MOST)
        walk->is_beyond = true;
    else if (level->is_there)
        walk->at[walk->depth++] = level;
}

/* The part of a promise that the container's cgroups allow; it counts in them from now on. 0: the cgroup is gone. */
static uint64_t take_part(struct reading *reading, const char *path, uint64_t promised_bytes)
{
    struct walk walk = {.reading = reading, .path = path};
    uint64_t machine_bytes = reading->snapshot->at[0].limit_bytes, left = UINT64_MAX;
    sg_cgroup_visit_path(path, visit_level, &walk);
    if (walk.lowest == NULL || walk.is_beyond)
        return 0;
    for (uint32_t i = 0; i < walk.depth; i++) {
        const struct level *level = walk.at[i];
        if (level->limit_bytes < machine_bytes)
            left = sg_smaller(left, sg_above(sg_above(level->limit_bytes, level->used_bytes), level->counted_bytes));
    }
    if (left == UINT64_MAX)
        left = sg_above(walk.lowest->used_bytes, walk.lowest->counted_bytes);
    uint64_t bytes = sg_smaller(promised_bytes, left);
    for (uint32_t i = 0; i < walk.depth; i++)
        walk.at[i]->counted_bytes += bytes;
    return bytes;
}

/* ---- the files --------------------------------------------------------------------------------------------------- */

/* Reads a container's file. Returns false if it says nothing, or did so too long ago, or it is the one that this
 * process writes, which then sees the host's folder: the registry counts those. */
static bool read_figures(struct reading *reading, int folder, const char *name, struct sg_figures *figures)
{
    struct stat info = {0};
    long fd = sg_sys_openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);
    reading->has_no_descriptor |= fd == -EMFILE || fd == -ENFILE;
    if (fd < 0)
        return false;
    bool is_good = sg_sys_fstat((int)fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1 &&
                   info.st_size == sizeof *figures && (info.st_ino != own_inode || info.st_dev != own_device) &&
                   sg_sys_pread((int)fd, figures, sizeof *figures, 0) == sizeof *figures &&
                   figures->magic == SG_FIGURES_MAGIC && figures->version == SG_FIGURES_VERSION;
    (void)sg_sys_close((int)fd);
    /* A time to come is as old as can be. */
    return is_good && sg_clock_ns(CLOCK_MONOTONIC) - figures->time_ns <= SG_FIGURES_AGE_NS;
}

/* Reads what root says of a container: two lines, each of which ends with a zero here. Returns the second; NULL: there
 * are none. */
static const char *read_words(int folder, const char *name, char words[WORDS_BYTES])
{
    static char file[NAME_MAX + 2];
    struct sg_text text = sg_text_begin(file, sizeof file);
    sg_text_add(&text, ".");
    sg_text_add(&text, name);
    long fd = sg_sys_openat(folder, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);
    long got = fd >= 0 ? sg_sys_pread((int)fd, words, WORDS_BYTES - 1, 0) : fd;
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
    words[got > 0 ? got : 0] = '\0';
    char *first = strchr(words, '\n'), *second = first != NULL ? strchr(first + 1, '\n') : NULL;
    if (second == NULL || words[0] != '/' || first == words + 1) /* the highest cgroup is the machine's */
        return NULL;
    *first = *second = '\0';
    return first + 1;
}

/* Adds what counts of a container to the sums. */
static void add_figures(struct reading *reading, const char *path, const char *name, const struct sg_figures *figures)
{
    if (reading->snapshot->at[0].limit_bytes == 0)
        sg_snapshot_refresh(reading->snapshot); /* the first one: the machine's size is not known yet */
    uint64_t bytes = figures->promised_bytes >= LEAST_BYTES ? take_part(reading, path, figures->promised_bytes) : 0;
    reading->found.promised_bytes += bytes;
    if (bytes > reading->found.most_bytes) {
        struct sg_text text = sg_text_begin(reading->found.most_name, sizeof reading->found.most_name);
        sg_text_add(&text, name);
        reading->found.most_bytes = bytes;
    }
    const struct sg_container_figures told = {name, figures->limit_bytes, figures->live_bytes, bytes};
    if (reading->visitor != NULL)
        reading->visitor(&told, reading->data);
}

static bool visit(int folder, const char *name, void *context)
{
    static char words[WORDS_BYTES];
    struct reading *reading = context;
    struct sg_figures figures;
    if (name[0] == '.')
        return true;
    bool is_read = read_figures(reading, folder, name, &figures) &&
                   (figures.promised_bytes >= LEAST_BYTES || reading->visitor != NULL);
    const char *container = is_read ? read_words(folder, name, words) : NULL;
    if (container != NULL)
        add_figures(reading, words, container, &figures);
    return ++reading->seen < NAMES_MOST && !reading->has_no_descriptor &&
           sg_clock_ns(CLOCK_THREAD_CPUTIME_ID) < reading->until_ns;
}

/* Where there are no containers, nothing is written that a thread without the lock may read (holder.c). */
static void keep(const struct sg_containers *found)
{
    sg_containers.promised_bytes = found->promised_bytes;
    if (memcmp(sg_containers.most_name, found->most_name, sizeof found->most_name) != 0)
        memcpy(sg_containers.most_name, found->most_name, sizeof found->most_name);
    sg_store_relaxed(&sg_containers.most_bytes, found->most_bytes);
}

/* Reads the folder. Returns how much of the processor's time that took. */
static uint64_t read_folder(struct reading *reading)
{
    static char path[2 * SG_PATH_CAPACITY], buffer[BUFFER_BYTES];
    struct stat info = {0};
    uint64_t taken_ns = 0;
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, sg_options.system_root);
    sg_text_add(&text, SG_PROMISES_DIR);
    int folder = sg_directory_open(path, &info);
    reading->has_no_descriptor = folder == -EMFILE || folder == -ENFILE;
    if (folder >= 0 && (info.st_mode & S_IWGRP) == 0) {
        const uint64_t begin_ns = sg_clock_ns(CLOCK_THREAD_CPUTIME_ID);
        reading->until_ns = begin_ns + READ_NS;
        sg_directory_visit(folder, buffer, sizeof buffer, visit, reading);
        taken_ns = sg_clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns;
    }
    if (folder >= 0)
        (void)sg_sys_close(folder);
    return taken_ns;
}

void sg_containers_read(struct sg_snapshot *snapshot, bool is_closely)
{
    const uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
    struct reading reading = {.snapshot = snapshot};
    if (read_ns != 0 &&
        now - read_ns < (is_closely ? sg_larger(CLOSE_PAUSE_NS, 5 * cost_ns) : sg_larger(PAUSE_NS, 50 * cost_ns)))
        return;
    cost_ns = read_folder(&reading);
    if (reading.has_no_descriptor && now - read_ns <= SG_FIGURES_AGE_NS)
        return; /* what was read last is the best that is known */
    read_ns = now;
    keep(&reading.found);
}

void sg_containers_visit(struct sg_snapshot *snapshot, sg_container_visitor *visitor, void *data)
{
    struct reading reading = {.snapshot = snapshot, .visitor = visitor, .data = data};
    (void)read_folder(&reading);
}

/* ---- in a container ---------------------------------------------------------------------------------------------- */

/* Writes the figures into the file, if it is there. */
static long write_figures(const struct sg_figures *figures)
{
    static char path[SG_PATH_CAPACITY + sizeof SG_FIGURES_NAME + 1];
    struct stat info = {0};
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, sg_options.dir);
    sg_text_add(&text, "/" SG_FIGURES_NAME);
    long fd = sg_sys_openat((int)SG_AT_FDCWD, path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    long result = sg_sys_fstat((int)fd, &info);
    if (result == 0 && (info.st_ino != own_inode || info.st_dev != own_device)) {
        own_inode = info.st_ino;
        own_device = info.st_dev;
        read_ns = 0; /* it may have been counted */
    }
    if (result == 0) /* in a directory that others write, it may be a file of this user's with another name */
        result = S_ISREG(info.st_mode) && info.st_nlink == 1 && info.st_size == sizeof *figures
                     ? sg_file_write_at((int)fd, figures, sizeof *figures, 0)
                     : -EPERM;
    (void)sg_sys_close((int)fd);
    return result;
}

bool sg_containers_may_publish(void)
{
    return !has_none && !sg_options.has_default_dir; /* the runtime names the directory */
}

bool sg_containers_publish(uint64_t limit_bytes, uint64_t live_bytes, uint64_t promised_bytes)
{
    static uint64_t published_ns, published_bytes, answered_ns;
    const uint64_t now = sg_clock_ns(CLOCK_MONOTONIC), age = now - published_ns;
    const uint64_t change = sg_above(promised_bytes, published_bytes) + sg_above(published_bytes, promised_bytes);
    const struct sg_figures figures = {.magic = SG_FIGURES_MAGIC,
                                       .version = SG_FIGURES_VERSION,
                                       .time_ns = now,
                                       .limit_bytes = limit_bytes,
                                       .live_bytes = live_bytes,
                                       .promised_bytes = promised_bytes};
    bool is_due = age >= PUBLISH_AGAIN_NS || (age >= PUBLISH_NS && change >= LEAST_BYTES) || change >= MUCH_BYTES;
    if (!is_due)
        return false;
    has_none = write_figures(&figures) == -ENOENT;
    published_ns = now;
    published_bytes = promised_bytes;
    if (has_none || now - answered_ns < PUBLISH_AGAIN_NS)
        return false;
    answered_ns = now;
    return true;
}
