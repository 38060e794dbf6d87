/*
 * procfs.c - see common/procfs.h.
 */
#include "common/procfs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sparkguard_abi.h"

/* PF_EXITING of linux/sched.h, in field 9. An ending process releases its segment before it becomes a zombie. Testing
 * for zombies alone would take such a process for one that runs unguarded. */
#define TASK_EXITING 0x4u

const char *procfs_live_root = "";

long procfs_read_text(const char *path, char *text, unsigned long capacity)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return -errno;
    size_t length = 0;
    ssize_t got = 0;
    while (length + 1 < capacity && (got = read(fd, text + length, capacity - 1 - length)) > 0)
        length += (size_t)got;
    int failure = got < 0 ? errno : 0;
    close(fd);
    text[length] = '\0';
    return failure ? -failure : (long)length;
}

long procfs_read(uint32_t pid, const char *file, char *text, unsigned long capacity)
{
    char path[PROCFS_PATH_CAPACITY];
    snprintf(path, sizeof path, "%s/proc/%" PRIu32 "/%s", procfs_live_root, pid, file);
    return procfs_read_text(path, text, capacity);
}

uint64_t procfs_number_after(const char *text, const char *key)
{
    size_t length = strlen(key);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) != 0 || (line[length] != ' ' && line[length] != ':' && line[length] != '\t'))
            continue;
        uint64_t value;
        return sscanf(line + length + 1, " %" SCNu64, &value) == 1 ? value : SG_UNKNOWN;
    }
    return SG_UNKNOWN;
}

uint64_t procfs_kib(uint64_t kib)
{
    return kib > (UINT64_C(1) << 50) ? SG_UNKNOWN : kib * 1024;
}

int procfs_stat(uint32_t pid, struct procfs_stat *out)
{
    char text[1024], state;
    unsigned flags;
    long length = procfs_read(pid, "stat", text, sizeof text);
    if (length < 0)
        return (int)length;
    const char *rest = strrchr(text, ')'); /* the process name may itself contain blanks and parentheses */
    if (rest == NULL ||
        sscanf(rest + 1, " %c %" SCNu32 " %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64,
               &state, &out->parent_pid, &flags, &out->start_ticks) != 4)
        return -EINVAL;
    out->is_ending = state == 'Z' || state == 'X' || (flags & TASK_EXITING) != 0;
    return 0;
}

bool procfs_maps(uint32_t pid, const char *name)
{
    static const char deleted[] = " (deleted)"; /* the file was replaced by another version while the program runs */
    char path[PROCFS_PATH_CAPACITY], *line = NULL;
    size_t capacity = 0, length = strlen(name);
    bool is_there = false;
    snprintf(path, sizeof path, "%s/proc/%" PRIu32 "/maps", procfs_live_root, pid);
    FILE *maps = fopen(path, "re");
    if (maps != NULL)
        __fsetlocking(maps,
                      FSETLOCKING_BYCALLER); /* another thread may flush all streams while the kernel lets us wait */
    for (ssize_t got; maps != NULL && !is_there && (got = getline(&line, &capacity, maps)) > 0;) {
        const char *end = line + got - (line[got - 1] == '\n');
        if (end - line > (ssize_t)strlen(deleted) && strncmp(end - strlen(deleted), deleted, strlen(deleted)) == 0)
            end -= strlen(deleted);
        is_there = end - line > (ssize_t)length && end[-(ssize_t)length - 1] == '/' &&
                   strncmp(end - length, name, length) == 0;
    }
    free(line);
    if (maps != NULL)
        fclose(maps);
    return is_there;
}

bool procfs_boot_id(uint64_t id[2])
{
    char path[PROCFS_PATH_CAPACITY], text[64];
    uint64_t part[5];
    snprintf(path, sizeof path, "%s/proc/sys/kernel/random/boot_id", procfs_live_root);
    if (procfs_read_text(path, text, sizeof text) <= 0 ||
        sscanf(text, "%8" SCNx64 "-%4" SCNx64 "-%4" SCNx64 "-%4" SCNx64 "-%12" SCNx64, &part[0], &part[1], &part[2],
               &part[3], &part[4]) != 5)
        return false;
    id[0] = part[0] << 32 | part[1] << 16 | part[2];
    id[1] = part[3] << 48 | part[4];
    return true;
}

uint64_t procfs_resident_bytes(uint32_t pid, uint64_t start_ticks)
{
    char text[8192] = "";
    struct procfs_stat stat;
    if (procfs_read(pid, "status", text, sizeof text) <= 0 || procfs_stat(pid, &stat) != 0 ||
        stat.start_ticks != start_ticks || stat.is_ending)
        return SG_UNKNOWN;
    uint64_t anonymous = procfs_kib(procfs_number_after(text, "RssAnon"));
    uint64_t shared = procfs_kib(procfs_number_after(text, "RssShmem"));
    return anonymous == SG_UNKNOWN || shared == SG_UNKNOWN ? SG_UNKNOWN : anonymous + shared;
}
