/*
 * page_cache.c - see page_cache.h.
 */
#include "admit/reclaim/page_cache.h"

#include "base/atomics.h"
#include "base/directory.h"
#include "base/pages.h"
#include "base/options.h"
#include "admit/headroom.h"
#include "base/seccomp.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/file.h"
#include "base/text.h"
#include "shared/decision_lock.h"
#include "admit/cgroup.h"

#include <fcntl.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define LEAST_BYTES (64 * MIB) /* below this the driver's own reclaim suffices */
#define SPARE_BYTES (8 * MIB)  /* for page tables of the driver, and other processes' allocations meanwhile */
#define STEP_BYTES (128 * MIB)
#define LONGEST_NS UINT64_C(3000000000)

#define FILE_STEP_BYTES (1024 * MIB) /* of a file's cache; dropping takes a fraction of a second */

enum {
    FADVISE_DONTNEED = 4,
    FILES_MAX = 4096,
    MOUNTS_MAX = 256 /* local ones; files on others are left alone */
};

struct figures {
    uint64_t free_bytes;
    bool is_swapless; /* nothing of this process's cgroup can be swapped out */
};

static bool is_over(uint64_t until_ns)
{
    return sg_clock_ns(CLOCK_MONOTONIC) >= until_ns;
}

/* The usual case, tested without a full snapshot. */
static bool is_free(uint64_t bytes)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_decision_lock, &lock);
    uint64_t free_bytes = sg_headroom_measure_free();
    sg_lock_release(&sg_decision_lock, &lock);
    return free_bytes >= bytes;
}

static struct figures measure(void)
{
    struct sg_lock_state lock;
    struct figures figures = {0};
    sg_lock_acquire(&sg_decision_lock, &lock);
    sg_headroom_refresh(0, false);
    figures.free_bytes = sg_headroom_last.snapshot.is_valid ? sg_headroom_last.snapshot.free_bytes : UINT64_MAX;
    figures.is_swapless = sg_headroom_is_swapless();
    sg_lock_release(&sg_decision_lock, &lock);
    return figures;
}

/* Opens memory.reclaim of this process's cgroup. O_NONBLOCK: in tests the file may be a pipe without a reader. */
static int open_cgroup(void)
{
    static char path[SG_PATH_CAPACITY + SG_PATH_MAX]; /* under the lock */
    struct sg_lock_state lock;
    int fd = -ENOENT;
    sg_lock_acquire(&sg_decision_lock, &lock);
    struct sg_text text = sg_text_begin(path, sizeof path);
    const char *own = sg_cgroup_own();
    if (own != NULL) {
        sg_text_add(&text, sg_options.system_root);
        sg_text_add(&text, own);
        sg_text_add(&text, "/memory.reclaim");
        fd = (int)sg_sys_openat((int)SG_AT_FDCWD, path, O_WRONLY | O_CLOEXEC | O_NONBLOCK, 0);
    }
    sg_lock_release(&sg_decision_lock, &lock);
    return fd;
}

/* Writes one request to memory.reclaim. The newline separates requests where the file is a pipe. */
static long write_request(int fd, uint64_t bytes, bool may_swap)
{
    char line[48];
    struct sg_text text = sg_text_begin(line, sizeof line);
    sg_text_add_number(&text, bytes);
    sg_text_add(&text, may_swap ? "\n" : " swappiness=0\n");
    return sg_file_write(fd, line, text.length);
}

/* Has the cgroup reclaim `bytes` of file pages. Kernels without commit 68cd9050d871 ("mm: add swappiness= arg to
 * memory.reclaim") answer EINVAL. The form that they know may swap, so it is used only where the cgroup cannot swap.
 * Any other error (EAGAIN) means that no more can be reclaimed. */
static void reclaim_from_cgroup(uint64_t bytes, bool is_swapless, uint64_t until_ns)
{
    int fd = open_cgroup();
    if (fd < 0)
        return;
    bool may_swap = false;
    while (bytes != 0 && !is_over(until_ns)) {
        uint64_t step = bytes < STEP_BYTES ? bytes : STEP_BYTES;
        long done = write_request(fd, step, may_swap);
        if (done < 0 && (done != -EINVAL || may_swap || !is_swapless))
            break;
        may_swap = may_swap || done < 0;
        bytes -= done < 0 ? 0 : step;
    }
    (void)sg_sys_close(fd);
}

/* ---- the files of this process ----------------------------------------------------------------------------------- */

/* Even a question about a file of NFS or FUSE may wait for ever for its server. So the kernel is asked on which mount a
 * file lies (fdinfo), and which mounts have a local file system (mountinfo). Neither asks the file system itself. */
struct local_mounts {
    uint32_t id[MOUNTS_MAX];
    uint32_t count;
};

/* The line of mountinfo that is being read: "36 35 98:0 / /mnt rw,noatime shared:1 - ext4 /dev/sda1 rw". A space in a
 * path is shown as an escape, so that words are never torn. */
struct mount_line {
    char word[12]; /* longer words are cut; no name of a local file system is as long */
    uint32_t length, words, id;
    bool is_type_next, has_type;
};

/* Whether dropping a file's cache waits for no server and no other process, because its file system writes back to a
 * device of this machine. Unknown file systems are left alone. */
static bool is_local(const char *type)
{
    static const char local[][12] = {"ext2",     "ext3",  "ext4", "xfs",   "btrfs", "f2fs",     "overlay",
                                     "squashfs", "erofs", "vfat", "exfat", "zfs",   "bcachefs", "ntfs3"};
    for (size_t i = 0; i < sizeof local / sizeof local[0]; i++)
        if (strcmp(local[i], type) == 0)
            return true;
    return false;
}

static void end_word(struct mount_line *line, struct local_mounts *mounts)
{
    const char *cursor = line->word;
    line->word[line->length] = '\0';
    if (line->words++ == 0)
        line->id = (uint32_t)sg_text_read_number(&cursor);
    if (line->is_type_next && is_local(line->word) && mounts->count < MOUNTS_MAX)
        mounts->id[mounts->count++] = line->id;
    line->has_type = line->has_type || line->is_type_next;
    line->is_type_next = !line->has_type && strcmp(line->word, "-") == 0;
    line->length = 0;
}

static void find_local_mounts(struct local_mounts *mounts, char *buffer, size_t capacity)
{
    struct mount_line line = {.length = 0};
    long got, fd = sg_sys_openat((int)SG_AT_FDCWD, "/proc/thread-self/mountinfo", O_RDONLY | O_CLOEXEC, 0);
    mounts->count = 0;
    while (fd >= 0 && (got = sg_sys_read((int)fd, buffer, capacity)) > 0)
        for (long i = 0; i < got; i++) {
            if (buffer[i] == ' ' || buffer[i] == '\n')
                end_word(&line, mounts);
            else if (line.length + 1 < sizeof line.word)
                line.word[line.length++] = buffer[i];
            if (buffer[i] == '\n')
                line = (struct mount_line){.length = 0};
        }
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
}

static bool is_on_local_mount(uint32_t fd, const struct local_mounts *mounts)
{
    char path[64], content[256];
    struct sg_text text = sg_text_begin(path, sizeof path);
    sg_text_add(&text, "/proc/thread-self/fdinfo/");
    sg_text_add_number(&text, fd);
    if (sg_text_read_file(path, content, sizeof content) <= 0)
        return false;
    uint64_t id = sg_text_read_field(content, "mnt_id:", UINT64_MAX);
    for (uint32_t i = 0; i < mounts->count; i++)
        if (mounts->id[i] == id)
            return true;
    return false;
}

/* DONT_SYNC: below an overlay the file may be a server's after all. */
static void drop_file(uint32_t fd, uint64_t until_ns)
{
    struct statx info = {.stx_size = 0};
    long result = sg_syscall(SYS_statx, fd, (long)"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_SIZE,
                             (long)&info, 0);
    if (result != 0 || !S_ISREG(info.stx_mode) || info.stx_size < MIB)
        return;
    for (uint64_t at = 0; at < info.stx_size && !is_over(until_ns); at += FILE_STEP_BYTES)
        (void)sg_syscall(SYS_fadvise64, fd, (long)at, (long)FILE_STEP_BYTES, FADVISE_DONTNEED, 0, 0);
}

struct open_files {
    struct local_mounts mounts;
    uint64_t until_ns;
    uint32_t count;
};

static bool drop_open_file(int directory, const char *name, void *context)
{
    struct open_files *files = context;
    (void)directory;
    if (*name >= '0' && *name <= '9') {
        uint32_t fd = (uint32_t)sg_text_read_number(&name);
        if (is_on_local_mount(fd, &files->mounts))
            drop_file(fd, files->until_ns);
        files->count++;
    }
    return files->count < FILES_MAX && !is_over(files->until_ns);
}

static void drop_open_files(uint64_t until_ns)
{
    char buffer[2048] = "";
    struct open_files files = {.until_ns = until_ns};
    if (is_over(until_ns) || sg_seccomp_is_strict())
        return;
    long directory = sg_sys_openat((int)SG_AT_FDCWD, "/proc/thread-self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (directory < 0)
        return;
    find_local_mounts(&files.mounts, buffer, sizeof buffer);
    sg_directory_visit((int)directory, buffer, sizeof buffer, drop_open_file, &files);
    (void)sg_sys_close((int)directory);
}

void sg_page_cache_reclaim(uint64_t bytes)
{
    if (bytes < LEAST_BYTES)
        return;
    bytes = ((bytes + SPARE_BYTES) + SG_PAGE_MAX - 1) & ~(uint64_t)(SG_PAGE_MAX - 1);
    if (is_free(bytes))
        return;
    struct figures now = measure();
    if (now.free_bytes >= bytes)
        return;
    uint64_t until_ns = sg_clock_ns(CLOCK_MONOTONIC) + LONGEST_NS;
    reclaim_from_cgroup(bytes - now.free_bytes, now.is_swapless, until_ns);
    if (measure().free_bytes < bytes)
        drop_open_files(until_ns);
}
