/*
 * facts.c - reads files below the root, and facts about the machine that several checks need.
 *
 * A file may be missing, unreadable, a directory, a pipe or contain anything. Content that cannot be parsed is unknown.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

#include "doctor/doctor.h"
#include "common/procfs.h"
#include "common/bytes.h"
#include "common/text.h"
#include "common/tool.h"

enum { PROCESSES_MAX = 65536 };

long doctor_read(const struct doctor *doctor, const char *path, char *text, size_t capacity)
{
    struct stat status;
    char *full = text_format("%s%s", doctor->root, path);
    long length = stat(full, &status) != 0 ? -errno : -EINVAL;
    if (length == -EINVAL &&
        S_ISREG(status.st_mode)) /* only regular files: open(2) can have effects on devices, and a pipe would block */
        length = procfs_read_text(full, text, capacity);
    else if (length == -EINVAL && S_ISCHR(status.st_mode) && status.st_rdev == makedev(1, 3))
        length = 0; /* systemd masks a file by a link to /dev/null */
    if (length <= 0)
        text[0] = '\0';
    return length;
}

bool doctor_read_number(const struct doctor *doctor, const char *path, int64_t *value)
{
    char text[64], rest;
    if (doctor_read(doctor, path, text, sizeof text) <= 0)
        return false;
    *value = INT64_MAX;
    text[strcspn(text, "\n")] = '\0';
    return strcmp(text, "max") == 0 || sscanf(text, "%" SCNd64 "%c", value, &rest) == 1;
}

bool doctor_exists(const struct doctor *doctor, const char *path)
{
    struct stat status;
    return stat(text_format("%s%s", doctor->root, path), &status) == 0;
}

uint64_t doctor_meminfo(const struct doctor *doctor, const char *key)
{
    return procfs_kib(procfs_number_after(doctor->meminfo, key));
}

/* Reads one process from its status file. Returns false if it has ended or the file cannot be read. */
static bool read_process(const struct doctor *doctor, const char *number, struct doctor_process *process)
{
    char text[4096], *path = text_format("/proc/%s/status", number);
    long length = doctor_read(doctor, path, text, sizeof text);
    const char *state = strstr(text, "\nState:");
    uint64_t parent = procfs_number_after(text, "PPid");
    if (length <= 0 || strncmp(text, "Name:\t", 6) != 0)
        return false;
    *process = (struct doctor_process){.pid = (uint32_t)strtoul(number, NULL, 10), .state = '?'};
    process->is_roots = procfs_number_after(text, "Uid") == 0;
    process->parent_pid = parent <= INT32_MAX ? (uint32_t)parent : 0;
    if (state != NULL)
        sscanf(state + sizeof "\nState:" - 1, " %c", &process->state);
    size_t name_length = strcspn(text + 6, "\n");
    snprintf(process->name, sizeof process->name, "%.*s", (int)bytes_min(name_length, 63), text + 6);
    return true;
}

static int compare_processes(const void *a, const void *b)
{
    const struct doctor_process *first = a, *second = b;
    return first->pid < second->pid ? -1 : first->pid > second->pid;
}

/* Reads zombies again after a moment. A parent that is at work collects its children a little late, and that is no
 * fault of it. */
static void settle_zombies(struct doctor *doctor)
{
    static const struct timespec moment = {0, 300000000};
    bool has_waited = false;
    for (size_t i = 0; i < doctor->process_count; i++) {
        struct doctor_process *process = &doctor->processes[i], now = {0};
        char number[16];
        if (process->state != 'Z')
            continue;
        if (!has_waited)
            nanosleep(&moment, NULL);
        has_waited = true;
        snprintf(number, sizeof number, "%" PRIu32, process->pid);
        process->state = 'X';
        if (read_process(doctor, number, &now) && now.parent_pid == process->parent_pid)
            process->state = now.state;
    }
}

static void list_processes(struct doctor *doctor)
{
    DIR *stream = opendir(text_format("%s/proc", doctor->root));
    const struct dirent *entry;
    while (stream != NULL && doctor->process_count < PROCESSES_MAX && (entry = readdir(stream)) != NULL) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        doctor->processes = tool_grow(doctor->processes, doctor->process_count, sizeof *doctor->processes);
        doctor->process_count += read_process(doctor, entry->d_name, &doctor->processes[doctor->process_count]);
    }
    if (stream != NULL)
        closedir(stream);
    doctor->has_processes = doctor->process_count > 0;
    if (doctor->has_processes)
        qsort(doctor->processes, doctor->process_count, sizeof *doctor->processes, compare_processes);
    settle_zombies(doctor);
}

/* Returns whether this is a container, by the files that Docker, Podman and systemd-nspawn leave in one. */
static bool is_container(const struct doctor *doctor)
{
    return doctor_exists(doctor, "/.dockerenv") || doctor_exists(doctor, "/run/.containerenv") ||
           doctor_exists(doctor, "/run/systemd/container");
}

void doctor_learn_machine(struct doctor *doctor)
{
    doctor->is_contained = is_container(doctor);
    doctor->meminfo = tool_allocate(DOCTOR_TEXT_CAPACITY, 1);
    (void)doctor_read(doctor, "/proc/meminfo", doctor->meminfo, DOCTOR_TEXT_CAPACITY);
    list_processes(doctor);
}
