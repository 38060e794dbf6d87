/*
 * retention.c - see retention.h. Keeps the records of the processes that ended last, and removes older ones.
 *
 * SPARKGUARD_DIR: runs once in a process, when it attaches, with signals blocked. Segments are opened only if the
 * directory holds more than KEEP_MAX of them. The oldest dead ones of this user are then removed until KEEP_LEAST of
 * his are left: one user's many short programs do not push out what others left. Segments of living processes (their
 * lock is held) stay, and files that are no segments. Unfinished files of killed processes are removed after
 * UNFINISHED_SECONDS, and time lines without a segment at once.
 *
 * History: runs once, in the history thread of the process, and is bounded by bytes.
 */
#include "shared/retention.h"

#include "base/directory.h"
#include "shared/segment.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>

enum {
    KEEP_MAX = 128,
    KEEP_LEAST = 64,
    NAME_CAPACITY = 48,
    TIMELINE_CAPACITY = NAME_CAPACITY + sizeof SG_TIMELINE_SUFFIX,
    BUFFER_BYTES = 32768,
    CANDIDATES = 4096, /* more than a history of the largest allowed size holds */
    UNFINISHED_SECONDS = 10
};

struct candidate {
    int64_t ended_ns;
    uint64_t bytes;
    char name[NAME_CAPACITY];
};

struct workspace {
    char buffer[BUFFER_BYTES];
    uint32_t count; /* of candidates */
    uint32_t own;   /* segments of this user, dead or not */
    struct candidate candidate[CANDIDATES];
};

/* As strspn. That function would be one more symbol for the dynamic linker to find at each program start. */
static size_t span(const char *text, const char *characters)
{
    size_t length = 0;
    while (text[length] != '\0' && strchr(characters, text[length]) != NULL)
        length++;
    return length;
}

/* Whether the text is a number as sg_sys_unique makes it (16 hexadecimal digits) and `suffix`. */
static bool is_unique(const char *text, const char *suffix)
{
    size_t digits = span(text, "0123456789abcdef");
    return digits == 16 && strcmp(text + digits, suffix) == 0;
}

/* Whether a guarded process made a file of this name: PID-NUMBER and `suffix`. Other files with this suffix are not
 * ours to remove. */
static bool is_of_process(const char *name, const char *suffix)
{
    size_t digits = span(name, "0123456789");
    return digits > 0 && digits <= 10 && name[digits] == '-' && is_unique(name + digits + 1, suffix);
}

static bool is_segment_name(const char *name)
{
    return is_of_process(name, SG_SEGMENT_SUFFIX);
}

static bool is_unfinished_registry(const char *name)
{
    static const char start[] = SG_REGISTRY_NAME ".";
    return strncmp(name, start, sizeof start - 1) == 0 && is_unique(name + sizeof start - 1, SG_UNFINISHED_SUFFIX);
}

static bool is_unfinished(const char *name)
{
    return is_of_process(name, SG_SEGMENT_SUFFIX SG_UNFINISHED_SUFFIX) ||
           is_of_process(name, SG_TIMELINE_SUFFIX SG_UNFINISHED_SUFFIX) || is_unfinished_registry(name);
}

/* Reads the properties of a file without following a symbolic link. 0 or -errno. */
static long read_info(int directory, const char *name, struct stat *info)
{
    const int flags = 0x100; /* AT_SYMLINK_NOFOLLOW */
    return sg_syscall(SYS_newfstatat, directory, (long)name, (long)info, flags, 0, 0);
}

static bool is_regular(int directory, const char *name, struct stat *info)
{
    return read_info(directory, name, info) == 0 && S_ISREG(info->st_mode);
}

/* Removes an unfinished file whose maker was killed. UNFINISHED_SECONDS is longer than any process takes to finish
 * it. */
static void remove_unfinished(int directory, const char *name)
{
    struct stat info = {0};
    if (!is_unfinished(name))
        return;
    long fd = sg_sys_openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return;
    int64_t now = (int64_t)(sg_clock_ns(CLOCK_REALTIME) / 1000000000u);
    if (sg_sys_fstat((int)fd, &info) == 0 && S_ISREG(info.st_mode) && now - info.st_ctim.tv_sec > UNFINISHED_SECONDS)
        (void)sg_sys_unlinkat(directory, name);
    (void)sg_sys_close((int)fd);
}

/* Removes a time line without a segment, which no reader would find. A time line is made after its segment and removed
 * before it. It is left over if a user removed the segment by hand, or if a process ended while another of its threads
 * began a phase. */
static void remove_orphan(int directory, const char *name)
{
    const size_t suffix = sizeof SG_TIMELINE_SUFFIX - 1;
    char segment[NAME_CAPACITY + sizeof SG_SEGMENT_SUFFIX];
    struct stat info = {0};
    if (!is_of_process(name, SG_TIMELINE_SUFFIX) || !is_regular(directory, name, &info))
        return;
    struct sg_text text = sg_text_begin(segment, sizeof segment);
    sg_text_add(&text, name);
    text.length -= suffix;
    sg_text_add(&text, SG_SEGMENT_SUFFIX);
    if (read_info(directory, segment, &info) == -ENOENT)
        (void)sg_sys_unlinkat(directory, name);
}

static void remove_left_over(int directory, const char *name)
{
    remove_unfinished(directory, name);
    remove_orphan(directory, name);
}

/* The file's time of change in ns, as the time when its process ended. A user who may write the file can set any time,
 * so times outside the range of int64_t are cut to its bounds. */
static int64_t ended_ns_of(const struct stat *info)
{
    const int64_t most = INT64_MAX / 1000000000 - 1;
    int64_t seconds = info->st_mtim.tv_sec;
    if (info->st_size == 0) /* an empty file is no record: the oldest */
        return 0;
    seconds = seconds > most ? most : seconds < -most ? -most : seconds;
    return seconds * 1000000000 + info->st_mtim.tv_nsec;
}

static bool is_own(const struct stat *info)
{
    return info->st_uid == (uint32_t)sg_syscall(SYS_geteuid, 0, 0, 0, 0, 0, 0);
}

/* Whether the segment is this user's, and its process has ended: no process holds the file's lock. Sets *ended_ns to
 * the file's time. Counts this user's. */
static bool is_own_dead(int directory, const char *name, struct workspace *work, int64_t *ended_ns)
{
    long fd = sg_sys_openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return false;
    struct stat info = {0};
    bool is_ours = sg_sys_fstat((int)fd, &info) == 0 && S_ISREG(info.st_mode) && is_own(&info);
    bool is_unlocked = is_ours && sg_sys_flock((int)fd, LOCK_SH | LOCK_NB) == 0;
    work->own += is_ours;
    *ended_ns = ended_ns_of(&info);
    (void)sg_sys_close((int)fd);
    return is_unlocked;
}

static bool count_segment(int directory, const char *name, void *count)
{
    if (is_segment_name(name))
        ++*(uint32_t *)count;
    else
        remove_left_over(directory, name);
    return true;
}

static void collect(struct workspace *work, const char *name)
{
    memcpy(work->candidate[work->count++].name, name,
           strnlen(name, NAME_CAPACITY - 1) + 1); /* fits, because is_segment_name bounds the length */
}

static bool collect_dead(int directory, const char *name, void *context)
{
    struct workspace *work = context;
    if (is_segment_name(name) && is_own_dead(directory, name, work, &work->candidate[work->count].ended_ns))
        collect(work, name);
    return work->count < CANDIDATES;
}

static bool collect_copy(int directory, const char *name, void *context)
{
    struct workspace *work = context;
    char timeline[TIMELINE_CAPACITY];
    struct stat info = {0}, timeline_info = {0};
    if (!is_segment_name(name)) {
        remove_left_over(directory, name);
        return true;
    }
    if (work->count == CANDIDATES || !is_regular(directory, name, &info) || !is_own(&info))
        return true;
    sg_directory_name_timeline(timeline, sizeof timeline, name);
    if (!is_regular(directory, timeline, &timeline_info))
        timeline_info.st_blocks = 0;
    work->candidate[work->count].ended_ns = ended_ns_of(&info);
    work->candidate[work->count].bytes = (uint64_t)(info.st_blocks + timeline_info.st_blocks) * 512;
    collect(work, name);
    return true;
}

static struct workspace *begin_work(void)
{
    void *work =
        sg_sys_mmap(NULL, sizeof(struct workspace), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return sg_is_error(work) ? NULL : work;
}

/* Removes the time line before its segment: without the segment, readers would not find the time line. */
static void remove_dead(int directory, const char *name)
{
    char timeline[TIMELINE_CAPACITY];
    sg_directory_name_timeline(timeline, sizeof timeline, name);
    (void)sg_sys_unlinkat(directory, timeline);
    (void)sg_sys_unlinkat(directory, name);
}

/* Removes the oldest candidate with its time line. Returns the bytes that both took on disk; 0 in SPARKGUARD_DIR. */
static uint64_t remove_oldest(int directory, struct workspace *work)
{
    uint32_t oldest = 0;
    for (uint32_t i = 1; i < work->count; i++)
        if (work->candidate[i].ended_ns < work->candidate[oldest].ended_ns)
            oldest = i;
    uint64_t bytes = work->candidate[oldest].bytes;
    remove_dead(directory, work->candidate[oldest].name);
    work->candidate[oldest] = work->candidate[--work->count];
    return bytes;
}

void sg_retention_sweep(int directory)
{
    static char buffer[4096]; /* the attaching thread may have little stack; the caller's attach_lock protects this */
    uint32_t count = 0;
    sg_directory_visit(directory, buffer, sizeof buffer, count_segment, &count);
    struct workspace *work = count > KEEP_MAX ? begin_work() : NULL;
    if (work == NULL)
        return;
    sg_directory_visit(directory, work->buffer, sizeof work->buffer, collect_dead, work);
    for (uint32_t left = work->own > KEEP_MAX ? work->own : 0; left > KEEP_LEAST && work->count > 0; left--)
        (void)remove_oldest(directory, work);
    (void)sg_sys_munmap(work, sizeof *work);
}

/* If the directory holds more than CANDIDATES copies, only the first CANDIDATES are considered. The next process
 * continues. */
void sg_retention_trim(int directory, uint64_t bytes_max)
{
    uint64_t bytes = 0;
    struct workspace *work = begin_work();
    if (work == NULL)
        return;
    sg_directory_visit(directory, work->buffer, sizeof work->buffer, collect_copy, work);
    for (uint32_t i = 0; i < work->count; i++)
        bytes += work->candidate[i].bytes;
    while (bytes > bytes_max && work->count > 0)
        bytes -= remove_oldest(directory, work);
    (void)sg_sys_munmap(work, sizeof *work);
}
