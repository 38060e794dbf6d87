/*
 * history_file.c - see history_file.h.
 *
 * A copy is written under a temporary name, flushed to the disk, and renamed over the last copy. Then the directory is
 * flushed, too. So after a power cut one complete copy is there, in the format of a live segment, and a full disk costs
 * the new copy only. Writing two halves of one file by turns would save one flush, but would need its own format,
 * checksum and reader.
 *
 * The time line is written after the segment, because readers find it by the segment. Each new sample changes the
 * segment as well, so both are always written together. Space after the last sample is not written.
 *
 * A copy made at the process's end is not flushed. Its blocks are submitted before the rename, so that a file system
 * that keeps this order (ext4, by default within 5 s) never shows the name without the bytes. XFS and Btrfs take up to
 * 30 s by default, unless something is synced there earlier. The launcher syncs when its program has ended (record.c).
 * Each longer process syncs the directory, with the names in it, every 4 s.
 */
#include "watch/history_file.h"

#include "base/atomics.h"
#include "base/directory.h"
#include "base/options.h"
#include "shared/segment.h"
#include "account/callsites.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/file.h"
#include "base/text.h"
#include "account/timeline.h"
#include "shared/retention.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

/* Size of the history, over all processes. A further 4 MiB are for files that come before the next process trims it.
 * Every process that makes a durable copy trims once, and one in eight of the others: trimming a full history takes
 * 4 ms (3,000 files; 2-core VM). */
#define BYTES_MAX (UINT64_C(60) << 20)

/* Unchanged copies are saved again after this time. Otherwise trimming, which starts with the oldest, would remove the
 * files of a living process. */
#define REFRESH_NS (UINT64_C(3600) * 1000000000u)

enum { NAME_CAPACITY = 64, COPIES_MAX = 4 };

static struct {
    uint64_t hash;     /* of the last copy; 0: no copy yet */
    uint64_t saved_ns; /* when the copy was made; CLOCK_MONOTONIC */
    bool is_durable;   /* the copy is on the disk */
    bool is_trimmed;   /* this process has trimmed the directory */
} last SG_AT_FORK;

static unsigned file_mode = 0600; /* for files in the directory that was opened last */

/* Stores the path of the history's directory without its last `above` components. */
static void name_parent(char path[SG_PATH_CAPACITY], int above)
{
    memcpy(path, sg_options.history, SG_PATH_CAPACITY);
    for (int i = 0; i < above; i++) {
        char *slash = strrchr(path, '/');
        if (slash != NULL)
            slash[slash == path] = '\0'; /* "/" keeps its slash */
    }
}

/* Checks that a directory, and a symbolic link to it, belong to this user or root. Otherwise another user could
 * redirect our writes, or would find a closed directory of ours inside one of his. 0 or -errno. */
static long check_parent(const char *path)
{
    const int flags[] = {0x100 /* AT_SYMLINK_NOFOLLOW */, 0};
    for (unsigned i = 0; i < SG_ARRAY_LENGTH(flags); i++) {
        struct stat info = {0};
        long result = sg_syscall(SYS_newfstatat, SG_AT_FDCWD, (long)path, (long)&info, flags[i], 0, 0);
        if (result != 0 || !sg_directory_is_trusted(&info))
            return result != 0 ? result : SG_DIRECTORY_FOREIGN;
    }
    return 0;
}

/* Makes the missing directories above the history's own, at most history_depth - 1 of them. The directory above those
 * must exist, and all must belong to this user or root. 0 or -errno. */
static long make_parents(void)
{
    char path[SG_PATH_CAPACITY];
    long result = 0;
    for (int above = sg_options.history_depth; above > 0 && result == 0; above--) {
        name_parent(path, above);
        result = check_parent(path);
        if (result == -ENOENT && above < sg_options.history_depth)
            result = sg_directory_make(path);
    }
    return result;
}

/* Opens SPARKGUARD_HISTORY. If it does not exist, makes at most the last `history_depth` components of its path. A
 * descriptor or -errno; SG_DIRECTORY_FOREIGN: another user owns a directory above. */
static int open_history(void)
{
    struct stat info = {0};
    int fd = sg_directory_open(sg_options.history, &info);
    if (fd == -ENOENT) {
        long made = sg_options.history_depth >= 2 ? make_parents() : 0;
        fd = made == 0 ? sg_directory_open_or_make(sg_options.history, &info) : (int)made;
    }
    file_mode = sg_directory_file_mode(&info);
    return fd;
}

static uint64_t add_to_hash(uint64_t hash, const void *bytes, uint64_t length)
{
    for (const uint64_t *at = bytes, *end = at + length / 8; at < end; at++)
        hash = (hash ^ *at) * UINT64_C(1099511628211);
    return hash;
}

static uint64_t hash_between(uint64_t hash, const void *copy, uint64_t begin, uint64_t end)
{
    return add_to_hash(hash, (const char *)copy + begin, end - begin);
}

/* FNV-1a, by words. Leaves out two fields that change while the process does nothing: the machine's figures, with every
 * snapshot, and the time when the process was last seen, every second. */
static uint64_t hash_of(const struct sg_segment *copy, uint64_t length)
{
    const uint64_t machine = offsetof(struct sg_segment, machine), seen = offsetof(struct sg_segment, seen_time_ns);
    uint64_t hash = hash_between(UINT64_C(14695981039346656037), copy, 0, machine);
    hash = hash_between(hash, copy, machine + sizeof copy->machine, seen);
    return hash_between(hash, copy, seen + sizeof copy->seen_time_ns, length) | 1;
}

/* "017cbb0a-cfb7-44ba-907b-59939254ff35" */
static void read_boot_id(uint64_t id[2])
{
    char text[64];
    unsigned digits = 0;
    id[0] = id[1] = 0; /* a live segment has other words there */
    (void)sg_text_read_file("/proc/sys/kernel/random/boot_id", text, sizeof text);
    for (const char *at = text; *at != '\0' && digits < 32; at++) {
        const char *digit = strchr("0123456789abcdef", *at);
        if (digit != NULL) {
            id[digits / 16] = id[digits / 16] << 4 | (uint64_t)(digit - "0123456789abcdef");
            digits++;
        }
    }
}

/* Copies a consistent state: copies again while the program changes the original, up to COPIES_MAX times. */
static void copy_consistently(void *copy, const void *original, uint64_t bytes)
{
    for (int i = 0; i < COPIES_MAX; i++) {
        memcpy(copy, original, bytes);
        if (memcmp(copy, original, bytes) == 0)
            break;
    }
}

/* Copies the segment up to the last record in use. Returns the hash of the copy. */
static uint64_t copy_segment(struct sg_segment *copy, uint64_t bytes)
{
    copy_consistently(copy, sg_own, bytes);
    copy->segment_bytes = bytes;
    copy->record_capacity = (uint32_t)((bytes - sizeof *copy) / sizeof copy->record[0]);
    return hash_of(copy, bytes);
}

static long write_all(int fd, const void *bytes, uint64_t length)
{
    for (uint64_t done = 0; done < length;) {
        long written = sg_file_write_at(fd, (const char *)bytes + done, length - done, done);
        if (written <= 0)
            return written < 0 ? written : -ENOSPC;
        done += (uint64_t)written;
    }
    return 0;
}

static long write_file(int directory, const char *name, const void *bytes, uint64_t length, bool is_durable)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    long fd = sg_sys_openat(directory, name, flags, 0600);
    if (fd == -EEXIST && sg_sys_unlinkat(directory, name) == 0) /* left by an earlier attempt */
        fd = sg_sys_openat(directory, name, flags, 0600);
    if (fd < 0)
        return fd;
    (void)sg_sys_fchmod((int)fd, file_mode); /* independent of the umask */
    long result = write_all((int)fd, bytes, length);
    if (result == 0 && is_durable)
        result = sg_sys_fdatasync((int)fd);
    else if (result == 0)
        (void)sg_syscall(SYS_sync_file_range, fd, 0, 0, 2 /* SYNC_FILE_RANGE_WRITE */, 0, 0);
    long closed = sg_sys_close((int)fd); /* NFS reports a full disk here */
    return result != 0 ? result : closed;
}

static long put_in_place(int directory, const char *name, const void *bytes, uint64_t length, bool is_durable)
{
    char temporary[NAME_CAPACITY];
    struct sg_text text = sg_text_begin(temporary, sizeof temporary);
    sg_text_add(&text, name);
    sg_text_add(&text, SG_UNFINISHED_SUFFIX);
    long result = write_file(directory, temporary, bytes, length, is_durable);
    if (result == 0)
        result = sg_syscall(SYS_renameat2, directory, (long)temporary, directory, (long)name, 0, 0);
    if (result != 0)
        (void)sg_sys_unlinkat(directory, temporary);
    return result;
}

static long save_timeline(int directory, bool is_durable)
{
    const struct sg_timeline *line = sg_timeline_current();
    char name[NAME_CAPACITY];
    if (line == NULL)
        return 0;
    struct sg_timeline *copy =
        sg_sys_mmap(NULL, sizeof *copy, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (sg_is_error(copy))
        return -ENOMEM;
    sg_timeline_copy(copy, line);
    sg_directory_name_timeline(name, sizeof name, sg_segment_file_name());
    long result =
        put_in_place(directory, name, copy,
                     offsetof(struct sg_timeline, sample) + copy->sample_count * sizeof copy->sample[0], is_durable);
    (void)sg_sys_munmap(copy, sizeof *copy);
    return result;
}

static long save(struct sg_segment *copy, uint64_t length, bool is_durable)
{
    int directory = open_history();
    if (directory < 0)
        return directory;
    copy->saved_time_ns = (int64_t)sg_clock_ns(CLOCK_REALTIME);
    read_boot_id(copy->boot_id);
    long result = put_in_place(directory, sg_segment_file_name(), copy, length, is_durable);
    if (result == 0)
        result = save_timeline(directory, is_durable);
    if (is_durable)
        (void)sg_syscall(SYS_fsync, directory, 0, 0, 0, 0, 0);
    if (!last.is_trimmed && (is_durable || sg_sys_unique() % 8 == 0)) {
        last.is_trimmed = true;
        sg_retention_trim(directory, BYTES_MAX);
    }
    (void)sg_sys_close(directory);
    return result;
}

long sg_history_save(bool is_durable)
{
    uint32_t used = sg_load(&sg_own->record_used), capacity = sg_segment_record_capacity();
    uint64_t length = SG_SEGMENT_BYTES(used < capacity ? used : capacity);
    uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
    struct sg_segment *copy = sg_sys_mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (sg_is_error(copy))
        return -ENOMEM;
    sg_callsites_name_late();
    uint64_t hash = copy_segment(copy, length);
    long result = 0;
    if (hash != last.hash || (is_durable && !last.is_durable) || now - last.saved_ns >= REFRESH_NS) {
        result = save(copy, length, is_durable);
        if (result == 0) {
            last.hash = hash;
            last.is_durable = is_durable;
            last.saved_ns = now;
        }
    }
    (void)sg_sys_munmap(copy, length);
    return result;
}

void sg_history_forget(void)
{
    memset(&last, 0, sizeof last);
}
