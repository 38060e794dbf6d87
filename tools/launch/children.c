/*
 * children.c - which descendants of the launcher run unguarded. /proc is read a few times a second.
 *
 * A process is a descendant if it is the child, if its parent is a descendant, or if it was one when /proc was last
 * read: its parent may have ended since. An orphan in the launcher's process group is one too if it began after the
 * child and its parent is in another session, as init is. The launcher does not become a subreaper
 * (PR_SET_CHILD_SUBREAPER) to see more orphans: programs compare getppid() with 1.
 *
 * A process is guarded if it maps the library. Nothing here ends the launcher: without memory or /proc nothing is
 * found.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "launch/launch.h"
#include "common/procfs.h"
#include "sparkguard_abi.h"
#include "common/bytes.h"
#include "common/text.h"

#define LEAST_NS INT64_C(250000000) /* between two readings, which take at most a hundredth of one processor */

enum { COST_FACTOR = 100, FIRST_CAPACITY = 512 };

struct process {
    uint32_t pid, parent_pid;
    uint64_t start_ticks;
    bool is_descendant;
};

struct processes {
    struct process *at; /* by pid, as /proc lists them */
    size_t count, room;
};

static struct processes last; /* the descendants when /proc was last read */

static int64_t clock_ns(clockid_t clock)
{
    struct timespec time = {0};
    clock_gettime(clock, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static bool add(struct processes *all, const struct process *process)
{
    if (all->count == all->room) {
        size_t room = all->room == 0 ? FIRST_CAPACITY : 2 * all->room;
        struct process *larger = realloc(all->at, room * sizeof *larger);
        if (larger == NULL)
            return false;
        all->at = larger;
        all->room = room;
    }
    all->at[all->count++] = *process;
    return true;
}

static bool is_orphan_of_ours(const struct launch *launch, const struct process *process)
{
    return process->start_ticks >= launch->child_ticks && getpgid((pid_t)process->pid) == getpgrp() &&
           getsid((pid_t)process->parent_pid) != getsid(0);
}

static bool was_descendant(const struct process *process)
{
    for (size_t i = 0; i < last.count; i++)
        if (last.at[i].pid == process->pid && last.at[i].start_ticks == process->start_ticks)
            return true;
    return false;
}

static const struct process *find(const struct processes *all, uint32_t pid)
{
    for (size_t i = 0; i < all->count; i++)
        if (all->at[i].pid == pid)
            return &all->at[i];
    return NULL;
}

static void read_all(const struct launch *launch, struct processes *all)
{
    DIR *stream = opendir("/proc");
    const struct dirent *entry;
    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        struct procfs_stat stat;
        struct process process = {.pid = (uint32_t)strtoul(entry->d_name, NULL, 10)};
        if (!isdigit((unsigned char)entry->d_name[0]) || process.pid == (uint32_t)getpid() ||
            procfs_stat(process.pid, &stat) != 0 || stat.is_ending || stat.start_ticks < launch->child_ticks)
            continue;
        process.parent_pid = stat.parent_pid;
        process.start_ticks = stat.start_ticks;
        process.is_descendant =
            process.pid == (uint32_t)launch->child || was_descendant(&process) || is_orphan_of_ours(launch, &process);
        if (!add(all, &process))
            break;
    }
    if (stream != NULL)
        closedir(stream);
}

/* Adds the children of descendants, and drops all other processes. */
static void keep_descendants(struct processes *all)
{
    bool is_changed = true;
    while (is_changed) {
        is_changed = false;
        for (size_t i = 0; i < all->count; i++) {
            struct process *process = &all->at[i];
            const struct process *parent = process->is_descendant ? NULL : find(all, process->parent_pid);
            if (parent != NULL && parent->is_descendant)
                process->is_descendant = is_changed = true;
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < all->count; i++)
        if (all->at[i].is_descendant)
            all->at[kept++] = all->at[i];
    all->count = kept;
}

static void take_unguarded(struct launch_children *children, const struct process *process, uint64_t bytes)
{
    if (bytes <= children->unguarded_bytes)
        return;
    char path[64];
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/comm", process->pid);
    children->unguarded_bytes = bytes;
    children->unguarded_pid = process->pid;
    if (procfs_read_text(path, children->unguarded_name, sizeof children->unguarded_name) < 0)
        children->unguarded_name[0] = '\0';
    children->unguarded_name[strcspn(children->unguarded_name, "\n")] = '\0';
}

/* False where the mappings cannot be seen although the process is the same user's: it closed itself. A process of
 * another user, as sudo starts, runs unguarded: the dynamic linker preloads nothing there. */
static bool may_be_judged(uint32_t pid, const char *status)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/maps", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || procfs_number_after(status, "Uid") != getuid();
}

/* The memory is read after the mappings: the process may have become another program, or have ended, meanwhile. */
static void look_at(struct launch_children *children, const struct process *process)
{
    char path[64], status[8192];
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/status", process->pid);
    if (procfs_read_text(path, status, sizeof status) <= 0)
        return;
    uint64_t highest_bytes = procfs_kib(procfs_number_after(status, "VmHWM"));
    if (highest_bytes == SG_UNKNOWN || highest_bytes < LAUNCH_UNGUARDED_BYTES || !may_be_judged(process->pid, status))
        return;
    bool is_guarded = procfs_maps(process->pid, children->library_name);
    uint64_t own_bytes = procfs_resident_bytes(process->pid, process->start_ticks);
    if (is_guarded)
        children->guarded_bytes = bytes_max(children->guarded_bytes, highest_bytes);
    else if (own_bytes != SG_UNKNOWN && own_bytes >= LAUNCH_UNGUARDED_BYTES)
        take_unguarded(children, process, own_bytes);
}

static void look(struct launch *launch)
{
    struct processes all = {0};
    read_all(launch, &all);
    keep_descendants(&all);
    free(last.at);
    last = all;
    for (size_t i = 0; i < all.count; i++)
        look_at(&launch->children, &all.at[i]);
}

int64_t launch_children_look(struct launch *launch)
{
    struct launch_children *children = &launch->children;
    if (!launch->is_guarded || launch->is_quiet)
        return INT64_MAX;
    int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    if (now_ns >= children->next_ns) {
        int64_t begin_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        look(launch);
        int64_t pause_ns = COST_FACTOR * (clock_ns(CLOCK_PROCESS_CPUTIME_ID) - begin_ns);
        now_ns = clock_ns(CLOCK_MONOTONIC);
        children->next_ns = now_ns + (pause_ns > LEAST_NS ? pause_ns : LEAST_NS);
    }
    return children->next_ns - now_ns;
}
