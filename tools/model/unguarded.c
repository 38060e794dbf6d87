/*
 * unguarded.c - lists the largest processes that run without the guard, whose memory no promise and no limit covers.
 *
 * A process is guarded if a running segment has its start time and its PID, here or in its own PID namespace.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/procfs.h"
#include "model/model.h"
#include "common/bytes.h"
#include "common/text.h"

/* The list holds processes from 1 % of the machine's memory on, but none below this size. */
#define LEAST_BYTES (UINT64_C(64) << 20)

static bool is_guarded(const struct model *model, uint32_t pid, const char *status)
{
    struct procfs_stat stat;
    const struct model_job *job;
    const struct model_process *process;
    uint32_t inner_pid = pid;
    const char *line = strstr(status, "\nNSpid:");
    if (line != NULL) {
        const char *end = strchrnul(line + 1, '\n');
        while (end > line && isdigit((unsigned char)end[-1]))
            end--;
        inner_pid = (uint32_t)strtoul(end, NULL, 10);
    }
    if (procfs_stat(pid, &stat) != 0)
        return true; /* the process has ended meanwhile */
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            if (process->state == SG_STATE_RUNNING && process->start_ticks == stat.start_ticks &&
                (process->pid == pid || process->pid == inner_pid))
                return true;
    return false;
}

static char *read_command(uint32_t pid, const char *status)
{
    char path[PROCFS_PATH_CAPACITY], text[SG_COMMAND_BYTES];
    snprintf(path, sizeof path, "%s/proc/%" PRIu32 "/cmdline", procfs_live_root, pid);
    long length = procfs_read_text(path, text, sizeof text);
    while (length > 0 && text[length - 1] == '\0')
        length--;
    for (long i = 0; i < length; i++)
        if (text[i] == '\0')
            text[i] = ' ';
    if (length > 0)
        return text_copy(text, (size_t)length);
    if (strncmp(status, "Name:\t", 6) != 0)
        return text_copy("-", 1);
    return text_copy(status + 6, (size_t)(strchrnul(status, '\n') - status - 6));
}

/* Inserts a process by size. A full list drops its smallest process. */
static void keep(struct model *model, uint32_t pid, uint64_t resident_bytes, const char *status)
{
    size_t place = model->unguarded_count;
    while (place > 0 && model->unguarded[place - 1].resident_bytes < resident_bytes)
        place--;
    if (place == MODEL_UNGUARDED_CAPACITY || is_guarded(model, pid, status))
        return;
    if (model->unguarded_count == MODEL_UNGUARDED_CAPACITY)
        free(model->unguarded[--model->unguarded_count].command);
    memmove(&model->unguarded[place + 1], &model->unguarded[place],
            (model->unguarded_count - place) * sizeof model->unguarded[0]);
    model->unguarded[place] = (struct model_unguarded){pid, resident_bytes, read_command(pid, status)};
    model->unguarded_count++;
}

void model_unguarded_fill(struct model *model)
{
    uint64_t total = model->machine.total_bytes;
    uint64_t least = total == SG_UNKNOWN ? LEAST_BYTES : bytes_max(total / 100, LEAST_BYTES);
    char path[PROCFS_PATH_CAPACITY], status[8192];
    snprintf(path, sizeof path, "%s/proc", procfs_live_root);
    DIR *stream = opendir(path);
    const struct dirent *entry;
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof path, "%s/proc/%s/status", procfs_live_root, entry->d_name);
        if (procfs_read_text(path, status, sizeof status) <= 0)
            continue;
        uint64_t resident_bytes = procfs_kib(procfs_number_after(status, "VmRSS"));
        if (resident_bytes == SG_UNKNOWN || resident_bytes < least)
            continue;
        keep(model, (uint32_t)strtoul(entry->d_name, NULL, 10), resident_bytes, status);
    }
    if (stream != NULL)
        closedir(stream);
}
