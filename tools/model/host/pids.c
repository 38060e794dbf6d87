/*
 * pids.c - finds the processes of records that were written in another PID namespace.
 *
 * The kernel shows a process's number in each namespace from the reader's on (NSpid in /proc/PID/status). The last one
 * is that of the record. Processes of two containers may have the same number and the same start; the inode of their
 * namespace tells them apart where it may be read.
 */
#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/procfs.h"
#include "common/tool.h"
#include "model/host/host.h"

struct inner {
    uint32_t pid, inner_pid;
};

static struct inner *found; /* processes of other namespaces; NULL: not searched yet */
static size_t found_count;

void host_pids_forget(void)
{
    found = NULL;
    found_count = 0;
}

/* Returns the inode of a process's PID namespace; 0 if it may not be read. `who` is a number or "self". */
static uint32_t namespace_of(const char *who)
{
    char path[PROCFS_PATH_CAPACITY];
    struct stat status;
    snprintf(path, sizeof path, "%s/proc/%s/ns/pid", procfs_live_root, who);
    return stat(path, &status) == 0 ? (uint32_t)status.st_ino : 0;
}

bool host_is_own_namespace(uint32_t pid_namespace)
{
    uint32_t own = pid_namespace != 0 ? namespace_of("self") : 0;
    return own == 0 || own == pid_namespace;
}

/* That is the last number of a line "NSpid: 4711 7". */
uint32_t host_inner_pid(const char *status)
{
    const char *line = strstr(status, "\nNSpid:");
    unsigned long pid = 0;
    int count = 0;
    char *end;
    if (line == NULL)
        return 0;
    for (line += strlen("\nNSpid:"); *line == '\t' || *line == ' '; line = end, count++) {
        unsigned long number = strtoul(line, &end, 10);
        if (end == line)
            break;
        pid = number;
    }
    return count > 1 ? (uint32_t)pid : 0;
}

static void search(void)
{
    char path[PROCFS_PATH_CAPACITY], status[8192];
    found = tool_allocate(1, sizeof *found);
    snprintf(path, sizeof path, "%s/proc", procfs_live_root);
    DIR *stream = opendir(path);
    const struct dirent *entry;
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        uint32_t pid = (uint32_t)strtoul(entry->d_name, NULL, 10);
        uint32_t inner_pid = procfs_read(pid, "status", status, sizeof status) > 0 ? host_inner_pid(status) : 0;
        if (inner_pid == 0)
            continue;
        found = tool_grow(found, found_count, sizeof *found);
        found[found_count++] = (struct inner){pid, inner_pid};
    }
    if (stream != NULL)
        closedir(stream);
}

static bool is_the_one(uint32_t pid, uint64_t start_ticks)
{
    struct procfs_stat stat;
    return procfs_stat(pid, &stat) == 0 && stat.start_ticks == start_ticks && !stat.is_ending;
}

/* Returns whether a process may be in a namespace: it is, or its namespace may not be read. */
static bool may_be_in(uint32_t pid, uint32_t pid_namespace)
{
    char who[16];
    snprintf(who, sizeof who, "%" PRIu32, pid);
    uint32_t is_in = pid_namespace != 0 ? namespace_of(who) : 0;
    return is_in == 0 || is_in == pid_namespace;
}

uint32_t host_pid_of(uint32_t pid, uint64_t start_ticks, uint32_t pid_namespace)
{
    bool is_known = pid_namespace != 0, is_own = host_is_own_namespace(pid_namespace);
    if (is_own && is_the_one(pid, start_ticks) && may_be_in(pid, pid_namespace))
        return pid;
    if (is_known && is_own)
        return 0;
    if (found == NULL)
        search();
    for (size_t i = 0; i < found_count; i++)
        if (found[i].inner_pid == pid && is_the_one(found[i].pid, start_ticks) &&
            may_be_in(found[i].pid, pid_namespace))
            return found[i].pid;
    return 0;
}
