/*
 * containers.c - see containers.h.
 */
#include "admit/apart/containers.h"

#include "admit/cgroup.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/directory.h"
#include "base/options.h"
#include "base/syscall.h"
#include "base/text.h"
#include "shared/own_entry.h"
#include "shared/registry_file.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>

#define PAUSE_NS UINT64_C(100000000)
#define CLOSE_PAUSE_NS UINT64_C(5000000)
#define COST_PART 50 /* reading a container takes this part of the time at most, by the processor's clock */
#define READ_NS UINT64_C(2000000) /* no further entry of a container is looked at after this time */
#define PROMISED_BYTES_MIN (UINT64_C(1) << 20)

enum { NAMES_MOST = 4096, BUFFER_BYTES = 4096, BOUNDS_BYTES = 1024 };

/* A container as last read. */
struct container {
    uint64_t name;                     /* a hash of its directory's name */
    uint64_t next_ns;                  /* not read again before */
    uint64_t promised_bytes;           /* by its own words */
    uint64_t limit_bytes, usage_bytes; /* of its cgroup; SG_UNKNOWN: none, or it cannot be read */
    uint32_t round;
};

static struct container containers[SG_CONTAINERS_MOST];
static uint32_t count;
static uint32_t rounds;
static uint64_t looked_ns;

/* One reading of the folder. */
struct look {
    uint32_t user; /* the folder's */
    uint32_t seen;
    uint64_t now_ns;
};

static uint64_t hash_of(const char *name)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (const char *at = name; *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001B3);
    return hash;
}

/* Opens a regular file with one name; whoever made it. A pipe is not waited for, nor a lease. A descriptor or
 * -errno. */
static long open_file(int directory, const char *name, struct stat *info)
{
    long fd = sg_sys_openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    if (sg_sys_fstat((int)fd, info) == 0 && S_ISREG(info->st_mode) && info->st_nlink == 1)
        return fd;
    (void)sg_sys_close((int)fd);
    return -EPERM;
}

/* ---- the container's words ----------------------------------------------------------------------------------------- */

/* Reads the first SG_ENTRY_FROZEN_BYTES of an entry, which are the same in all versions. False: the file has become
 * shorter. */
static bool read_entry(int fd, uint32_t entry_bytes, uint64_t number, struct sg_registry_entry *entry)
{
    const uint64_t at = offsetof(struct sg_registry, entry) + number * entry_bytes;
    return sg_sys_pread(fd, entry, SG_ENTRY_FROZEN_BYTES, at) == (long)SG_ENTRY_FROZEN_BYTES;
}

/* What a process of the container has promised or has in flight, as peers.c counts it where the kernel cannot be
 * asked. */
static uint64_t promised_by(const struct sg_registry_entry *entry)
{
    uint64_t granted = sg_entry_cut(entry->slot.granted_bytes), bytes = sg_entry_cut(entry->slot.promised_bytes);
    uint64_t without = sg_entry_cut(entry->slot.device_bytes) + sg_entry_cut(entry->pinned_bytes);
    granted = granted > without ? granted - without : 0;
    bytes = bytes < granted ? bytes : granted;
    sg_entry_add_cut(&bytes, entry->bounded_flight_bytes);
    sg_entry_add_cut(&bytes, entry->unbounded_flight_bytes);
    return bytes;
}

/* Whether the parent that an entry names has ended: then what was inherited from it counts here. */
static bool is_orphan(int fd, uint32_t entry_bytes, const struct sg_registry_entry *entry)
{
    static struct sg_registry_entry parent; /* large for a stack */
    const uint64_t number = entry->parent_entry - 1;
    if (entry->parent_entry == 0 || number >= SG_ENTRY_CAPACITY || !read_entry(fd, entry_bytes, number, &parent))
        return false;
    return parent.claim != entry->parent_claim || !sg_registry_file_has_owner(fd, (uint32_t)number);
}

uint64_t sg_containers_read(int fd, uint64_t file_bytes)
{
    static struct sg_registry header;
    static struct sg_registry_entry entry;
    const uint64_t begin_ns = sg_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    uint64_t sum = 0;
    if (sg_sys_pread(fd, &header, sizeof header, 0) != (long)sizeof header ||
        !sg_registry_is_usable(&header, file_bytes))
        return 0;
    for (uint32_t i = 0, used = sg_entry_count(&header); i < used; i++) {
        if (!read_entry(fd, header.entry_bytes, i, &entry))
            return sum;
        uint64_t bytes = promised_by(&entry), inherited = sg_entry_cut(entry.slot.inherited_promise_bytes);
        if (!sg_entry_is_live(&entry) || sg_entry_is_of_job(&entry) ||
            (bytes < PROMISED_BYTES_MIN && inherited < PROMISED_BYTES_MIN) || !sg_registry_file_has_owner(fd, i))
            continue;
        sg_entry_add_cut(&sum, bytes);
        if (inherited >= PROMISED_BYTES_MIN && is_orphan(fd, header.entry_bytes, &entry))
            sg_entry_add_cut(&sum, inherited);
        if (sg_clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns > READ_NS)
            return sum;
    }
    return sum;
}

static uint64_t read_promised(int folder, const char *name)
{
    struct stat info = {0};
    uint64_t bytes = 0;
    long directory = sg_sys_openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_PATH, 0);
    long fd = directory >= 0 ? open_file((int)directory, SG_REGISTRY_NAME, &info) : directory;
    if (fd >= 0) {
        bytes = sg_containers_read((int)fd, (uint64_t)info.st_size);
        (void)sg_sys_close((int)fd);
    }
    if (directory >= 0)
        (void)sg_sys_close((int)directory);
    return bytes;
}

/* ---- root's words, and the kernel's -------------------------------------------------------------------------------- */

/* Reads the file that the runtime has written into `text`. False: it is missing, or another user's. */
static bool read_bounds(const struct look *look, int folder, const char *name, char text[BOUNDS_BYTES])
{
    struct stat info = {0};
    long fd = open_file(folder, name, &info), got = 0;
    if (fd < 0)
        return false;
    if (info.st_uid == look->user && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0)
        got = sg_sys_pread((int)fd, text, BOUNDS_BYTES - 1, 0);
    (void)sg_sys_close((int)fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

/* Returns the path behind "cgroup ", which ends with its line; NULL: the runtime does not know it. */
static const char *cgroup_of(char *text)
{
    static const char key[] = "cgroup /";
    char *end = strchr(text, '\n');
    if (end == NULL || strncmp(text, key, sizeof key - 1) != 0)
        return NULL;
    *end = '\0';
    return strstr(text, "/..") == NULL ? text + sizeof key - 2 : NULL;
}

/* Reads limit and usage of the cgroup below a mount. False: it is not there. */
static bool read_below(struct container *container, const char *mount, const char *path, bool is_v2)
{
    static char directory[BOUNDS_BYTES + 32];
    struct sg_text text = sg_text_begin(directory, sizeof directory);
    sg_text_add(&text, mount);
    sg_text_add(&text, path);
    container->usage_bytes = sg_cgroup_limit(directory, is_v2 ? "memory.current" : "memory.usage_in_bytes");
    container->limit_bytes = sg_cgroup_limit(directory, is_v2 ? "memory.max" : "memory.limit_in_bytes");
    return container->usage_bytes != SG_UNKNOWN;
}

static void read_cgroup(struct container *container, const char *path)
{
    container->limit_bytes = container->usage_bytes = SG_UNKNOWN;
    if (path != NULL && !read_below(container, "/sys/fs/cgroup", path, true) &&
        !read_below(container, "/sys/fs/cgroup/unified", path, true))
        (void)read_below(container, "/sys/fs/cgroup/memory", path, false);
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

/* Returns the place of a container; NULL: there are as many as can count. */
static struct container *place_of(uint64_t name)
{
    for (uint32_t i = 0; i < count; i++)
        if (containers[i].name == name)
            return &containers[i];
    if (count == SG_CONTAINERS_MOST)
        return NULL;
    containers[count] = (struct container){.name = name};
    return &containers[count++];
}

/* Reads a container, if that is due. */
static void read_container(const struct look *look, int folder, const char *name, struct container *container)
{
    static char text[BOUNDS_BYTES], directory[NAME_MAX + 1];
    const uint64_t begin_ns = sg_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    const size_t length = strlen(name) - (sizeof SG_BOUNDS_SUFFIX - 1);
    container->round = rounds;
    if (look->now_ns < container->next_ns)
        return;
    memcpy(directory, name, length);
    directory[length] = '\0';
    container->promised_bytes = 0;
    if (read_bounds(look, folder, name, text)) {
        container->promised_bytes = read_promised(folder, directory);
        if (container->promised_bytes != 0)
            read_cgroup(container, cgroup_of(text));
    }
    container->next_ns = look->now_ns + COST_PART * (sg_clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns);
}

static bool visit(int folder, const char *name, void *context)
{
    struct look *look = context;
    size_t length = strnlen(name, NAME_MAX + 1), suffix = sizeof SG_BOUNDS_SUFFIX - 1;
    if (name[0] != '.' && length > suffix && length <= NAME_MAX &&
        strcmp(name + length - suffix, SG_BOUNDS_SUFFIX) == 0) {
        struct container *container = place_of(hash_of(name));
        if (container != NULL)
            read_container(look, folder, name, container);
    }
    return ++look->seen < NAMES_MOST;
}

/* Forgets the containers that the folder did not name. */
static void forget_gone(void)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (containers[i].round == rounds)
            containers[kept++] = containers[i];
    count = kept;
}

void sg_containers_look(bool is_closely)
{
    static char path[2 * SG_PATH_CAPACITY], buffer[BUFFER_BYTES];
    struct look look = {.now_ns = sg_clock_ns(CLOCK_MONOTONIC)};
    struct stat info = {0};
    if (looked_ns != 0 && look.now_ns - looked_ns < (is_closely && count != 0 ? CLOSE_PAUSE_NS : PAUSE_NS))
        return;
    looked_ns = look.now_ns;
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, sg_options.system_root);
    sg_text_add(&text, SG_CONTAINERS_DIR);
    rounds++;
    int folder = sg_sys_stat(path, &info) == 0 ? sg_directory_open(path, &info) : -ENOENT;
    look.user = info.st_uid;
    if (folder >= 0 && (info.st_mode & S_IWGRP) == 0)
        sg_directory_visit(folder, buffer, sizeof buffer, visit, &look);
    if (folder >= 0)
        (void)sg_sys_close(folder);
    forget_gone();
}

uint64_t sg_containers_promised(const struct sg_constraint *machine)
{
    uint64_t bounded = 0, others = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct container *container = &containers[i];
        uint64_t bytes = container->promised_bytes, usage = container->usage_bytes, limit = container->limit_bytes;
        bool is_bounded = usage != SG_UNKNOWN && limit < machine->limit_bytes;
        uint64_t left = limit > usage ? limit - usage : 0;
        if (is_bounded)
            sg_entry_add_cut(&bounded, bytes < left ? bytes : left);
        else
            sg_entry_add_cut(&others, bytes);
    }
    uint64_t above =
        machine->headroom_bytes > machine->reserve_bytes ? machine->headroom_bytes - machine->reserve_bytes : 0;
    uint64_t half = above > bounded ? (above - bounded) / 2 : 0;
    return bounded + (others < half ? others : half);
}
