/*
 * reaper.c - keeps SPARKGUARD_DIR small: evidence of the last dead processes stays, older evidence goes.
 *
 * Runs once in a process, when it attaches, with signals blocked, and looks closer only if the directory holds more than
 * KEEP_MOST files. Removes the oldest dead ones until KEEP_LEAST files are left. What is alive (somebody holds its
 * lock), is not ours to remove, or is no segment, stays. What was being made when its maker was killed goes after a while.
 */
#include "segment.h"
#include "syscall.h"
#include "text.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>

enum {
    KEEP_MOST = 128,
    KEEP_LEAST = 64,
    NAME_ROOM = 48,
    BUFFER_BYTES = 32768,
    CANDIDATES = 1024,
    UNFINISHED_SECONDS = 10
};

struct candidate {
    int64_t ended_ns;
    char name[NAME_ROOM];
};

struct workspace {
    char buffer[BUFFER_BYTES];
    struct candidate candidate[CANDIDATES];
};

static bool is_segment_name(const char *name)
{
    size_t length = strnlen(name, NAME_ROOM);
    size_t suffix = sizeof SG_SEGMENT_SUFFIX - 1;
    return length < NAME_ROOM && length > suffix && strcmp(name + length - suffix, SG_SEGMENT_SUFFIX) == 0;
}

/* A file that somebody was making when he was killed: nobody makes one for as long as this. */
static void remove_unfinished(int directory, const char *name)
{
    const size_t suffix = sizeof SG_UNFINISHED_SUFFIX - 1, length = strlen(name);
    struct stat info = {0};
    if (length <= suffix || strcmp(name + length - suffix, SG_UNFINISHED_SUFFIX) != 0)
        return;
    long fd = sg_sys_openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return;
    int64_t now = (int64_t)(sg_sys_clock_ns(CLOCK_REALTIME) / 1000000000u);
    if (sg_sys_fstat((int)fd, &info) == 0 && S_ISREG(info.st_mode) && now - info.st_ctim.tv_sec > UNFINISHED_SECONDS)
        (void)sg_sys_unlinkat(directory, name);
    (void)sg_sys_close((int)fd);
}

/* Whether nobody lives behind the file; then also when it ended, as far as the file system knows. */
static bool is_dead(int directory, const char *name, int64_t *ended_ns)
{
    long fd = sg_sys_openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return false;
    struct stat info = {0};
    bool is_free =
        sg_sys_fstat((int)fd, &info) == 0 && S_ISREG(info.st_mode) && sg_sys_flock((int)fd, LOCK_SH | LOCK_NB) == 0;
    if (is_free)
        *ended_ns =
            info.st_size == 0 ? 0 : (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec; /* says nothing */
    (void)sg_sys_close((int)fd);
    return is_free;
}

/* Counts the segments; with a workspace also collects the dead ones. */
static uint32_t read_directory(int directory, struct workspace *work, uint32_t *dead)
{
    char small[4096] = {0};
    char *buffer = work != NULL ? work->buffer : small;
    size_t room = work != NULL ? sizeof work->buffer : sizeof small;
    uint32_t count = 0;
    (void)sg_syscall(SYS_lseek, directory, 0, 0 /* SEEK_SET */, 0, 0, 0);
    for (long got; (got = sg_sys_getdents(directory, buffer, room)) > 0;) {
        for (long at = 0; at < got;) {
            const struct sg_directory_entry *entry = (const struct sg_directory_entry *)(const void *)(buffer + at);
            at += entry->length;
            if (!is_segment_name(entry->name)) {
                if (work == NULL)
                    remove_unfinished(directory, entry->name);
                continue;
            }
            count++;
            if (work == NULL || *dead == CANDIDATES)
                continue;
            struct candidate *candidate = &work->candidate[*dead];
            if (is_dead(directory, entry->name, &candidate->ended_ns)) {
                memcpy(candidate->name, entry->name,
                       strnlen(entry->name, NAME_ROOM - 1) + 1); /* is_segment_name: it fits */
                ++*dead;
            }
        }
    }
    return count;
}

/* Its time line first, which is found by it. */
static void remove_dead(int directory, const char *name)
{
    char timeline[NAME_ROOM + sizeof SG_TIMELINE_SUFFIX];
    struct sg_text text = sg_text_begin(timeline, sizeof timeline);
    sg_text_add(&text, name);
    text.length -= sizeof SG_SEGMENT_SUFFIX - 1;
    sg_text_add(&text, SG_TIMELINE_SUFFIX);
    (void)sg_sys_unlinkat(directory, timeline);
    (void)sg_sys_unlinkat(directory, name);
}

void sg_reaper_sweep(int directory)
{
    uint32_t dead = 0;
    if (read_directory(directory, NULL, NULL) <= KEEP_MOST)
        return;
    struct workspace *work =
        sg_sys_mmap(NULL, sizeof *work, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (sg_is_error(work))
        return;
    uint32_t count = read_directory(directory, work, &dead);
    while (count > KEEP_LEAST && dead > 0) {
        uint32_t oldest = 0;
        for (uint32_t i = 1; i < dead; i++)
            if (work->candidate[i].ended_ns < work->candidate[oldest].ended_ns)
                oldest = i;
        remove_dead(directory, work->candidate[oldest].name);
        work->candidate[oldest] = work->candidate[--dead];
        count--;
    }
    (void)sg_sys_munmap(work, sizeof *work);
}
