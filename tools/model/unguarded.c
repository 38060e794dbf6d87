/*
 * unguarded.c - lists the largest processes that run without the guard, whose memory no promise and no limit covers.
 *
 * A process is guarded if a running segment has its start time and its PID, here or in its own PID namespace.
 */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/procfs.h"
#include "model/unguarded_containers.h"
#include "common/bytes.h"
#include "common/text.h"

/* The list holds processes from 1 % of the machine's memory on, but none below this size. */
#define LEAST_BYTES (UINT64_C(64) << 20)

/* Smaller processes add nothing to what a container holds. */
#define LEAST_OF_CONTAINER (UINT64_C(4) << 20)

static bool is_guarded(const struct model *model, uint32_t pid, const char *status)
{
    struct procfs_stat stat;
    const struct model_job *job;
    const struct model_process *process;
    uint32_t inner_pid = host_inner_pid(status);
    if (procfs_stat(pid, &stat) != 0)
        return true; /* the process has ended meanwhile */
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process) {
            bool is_one = process->state == SG_STATE_RUNNING && process->start_ticks == stat.start_ticks;
            if (is_one &&
                (process->host_pid != 0 ? process->host_pid == pid : process->pid == pid || process->pid == inner_pid))
                return true;
        }
    return false;
}

static char *command_or_name(uint32_t pid, const char *status)
{
    char *command = host_command(pid);
    if (command != NULL)
        return command;
    if (strncmp(status, "Name:\t", 6) != 0)
        return text_copy("-", 1);
    return text_copy(status + 6, (size_t)(strchrnul(status, '\n') - status - 6));
}

uint64_t model_unguarded_bytes(const struct model *model, const struct model_unguarded *unguarded)
{
    bool is_apart = model->machine.unified == 0 || unguarded->device_bytes == SG_UNKNOWN;
    return bytes_add(unguarded->resident_bytes, is_apart ? 0 : unguarded->device_bytes);
}

/* Inserts a process by size. A full list drops its smallest process. */
static void keep_unguarded(struct model *model, const struct model_unguarded *candidate, const char *status)
{
    size_t place = model->unguarded_count;
    while (place > 0 &&
           model_unguarded_bytes(model, &model->unguarded[place - 1]) < model_unguarded_bytes(model, candidate))
        place--;
    if (place == MODEL_UNGUARDED_CAPACITY)
        return;
    if (model->unguarded_count == MODEL_UNGUARDED_CAPACITY)
        model->unguarded_count--;
    memmove(&model->unguarded[place + 1], &model->unguarded[place],
            (model->unguarded_count - place) * sizeof model->unguarded[0]);
    model->unguarded[place] = *candidate;
    model->unguarded[place].command = command_or_name(candidate->pid, status);
    model->unguarded_count++;
}

/* Fills what takes longer to find, for the processes that stay in the list. */
static void explain(const struct model *model, struct model_unguarded *unguarded)
{
    const struct host_container *record;
    char *id = host_container_id(&model->containers, unguarded->pid, &record);
    if (id != NULL)
        unguarded->container = host_container_name(&model->containers, id);
    unguarded->reason = host_unguarded_reason(id != NULL ? record : NULL, unguarded->pid);
}

void model_unguarded_fill(struct model *model, bool wants_devices)
{
    uint64_t total = model->machine.total_bytes;
    uint64_t least = total == SG_UNKNOWN ? LEAST_BYTES : bytes_max(total / 100, LEAST_BYTES);
    const struct host_devices *devices = wants_devices ? host_devices_ask() : NULL;
    struct model_unguarded_sums sums = {0};
    char status[8192];
    DIR *stream = opendir(text_format("%s/proc", procfs_live_root));
    const struct dirent *entry;
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        struct model_unguarded candidate = {.pid = (uint32_t)strtoul(entry->d_name, NULL, 10)};
        if (procfs_read(candidate.pid, "status", status, sizeof status) <= 0)
            continue;
        candidate.resident_bytes = procfs_kib(procfs_number_after(status, "VmRSS"));
        candidate.device_bytes = devices != NULL ? host_device_bytes(devices, candidate.pid) : SG_UNKNOWN;
        candidate.user = (uid_t)procfs_number_after(status, "Uid");
        if (candidate.resident_bytes == SG_UNKNOWN || model_unguarded_bytes(model, &candidate) < LEAST_OF_CONTAINER ||
            is_guarded(model, candidate.pid, status))
            continue;
        model_unguarded_containers_add(&sums, model, &candidate, status);
        if (model_unguarded_bytes(model, &candidate) >= least)
            keep_unguarded(model, &candidate, status);
    }
    if (stream != NULL)
        closedir(stream);
    model_unguarded_containers_keep(&sums, model, least);
    for (size_t i = 0; i < model->unguarded_count; i++)
        explain(model, &model->unguarded[i]);
}
