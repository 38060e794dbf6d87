/*
 * children.c - finds descendants of the launcher that run unguarded, by scanning /proc at most four times a second.
 *
 * Descendants are the child, processes whose parent is a descendant, and descendants of the last scan, whose parent may
 * have ended since. An orphan counts as a descendant if it is in the launcher's process group, began after the child,
 * and has a parent in another session, as init is. The launcher does not become a subreaper (PR_SET_CHILD_SUBREAPER),
 * which would show more orphans: programs detect the end of their parent by getppid() == 1.
 *
 * A process is guarded if it maps the library. Without memory or /proc the scan finds nothing; the launcher goes on.
 */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "launch/launch.h"
#include "common/procfs.h"
#include "model/host/host.h"
#include "sparkguard_abi.h"
#include "common/bytes.h"
#include "common/tool.h"

/* Shortest pause between two scans. COST_FACTOR makes the pause longer, so that scans take at most 1 % of one CPU. */
#define LEAST_NS INT64_C(250000000)

/* Between the two looks at a process that did not find the library. */
#define LOOK_AGAIN_NS 20000000

enum { COST_FACTOR = 100, FIRST_CAPACITY = 512 };

struct process {
    uint32_t pid, parent_pid;
    uint64_t start_ticks;
    bool is_descendant;
};

struct processes {
    struct process *at; /* sorted by PID, as /proc lists them */
    size_t count, capacity;
};

static struct processes last; /* the descendants of the last scan */

static pthread_mutex_t found_lock = PTHREAD_MUTEX_INITIALIZER; /* never held while a file is read */
static struct launch_children found;

static struct {
    pthread_t thread;
    bool has_thread;
    bool is_stuck;      /* a thread was left behind, which may still use what is here: there is no other one */
    char *library_name; /* stays: a thread that is stuck in the kernel may still read it */
    /* Under step_lock, with step_changed at each change. */
    bool has_child; /* launch->child runs the program */
    bool must_end;
    bool has_ended; /* the thread is about to return */
} scans;

/* Not semaphores and pthread_clockjoin_np: those with a monotonic clock need a glibc later than 2.28. */
static pthread_mutex_t step_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t step_changed; /* with CLOCK_MONOTONIC */

/* How long the launcher waits for the end of a scan. */
#define END_NS INT64_C(200000000)

static void reach(bool *step)
{
    pthread_mutex_lock(&step_lock);
    *step = true;
    pthread_cond_broadcast(&step_changed);
    pthread_mutex_unlock(&step_lock);
}

/* Waits for a step until a time of CLOCK_MONOTONIC, without end if that is NULL. */
static bool wait_for(const bool *step, const struct timespec *end)
{
    int error = 0;
    pthread_mutex_lock(&step_lock);
    while (!*step && error == 0)
        error = end == NULL ? pthread_cond_wait(&step_changed, &step_lock)
                            : pthread_cond_timedwait(&step_changed, &step_lock, end);
    bool is_reached = *step;
    pthread_mutex_unlock(&step_lock);
    return is_reached;
}

static bool must_end(void)
{
    pthread_mutex_lock(&step_lock);
    bool must_end = scans.must_end;
    pthread_mutex_unlock(&step_lock);
    return must_end;
}

/* CLOCK_MONOTONIC in `wait_ns` from now. */
static struct timespec time_after(int64_t wait_ns)
{
    int64_t end_ns = tool_clock_ns(CLOCK_MONOTONIC) + wait_ns;
    return (struct timespec){end_ns / 1000000000, end_ns % 1000000000};
}

static bool add_descendant(struct processes *all, const struct process *process)
{
    if (all->count == all->capacity) {
        size_t capacity = all->capacity == 0 ? FIRST_CAPACITY : 2 * all->capacity;
        struct process *larger = realloc(all->at, capacity * sizeof *larger);
        if (larger == NULL)
            return false;
        all->at = larger;
        all->capacity = capacity;
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
    while (stream != NULL && !must_end() && (entry = readdir(stream)) != NULL) {
        struct procfs_stat stat;
        struct process process = {.pid = (uint32_t)strtoul(entry->d_name, NULL, 10)};
        if (!isdigit((unsigned char)entry->d_name[0]) || process.pid == (uint32_t)getpid() ||
            procfs_stat(process.pid, &stat) != 0 || stat.is_ending || stat.start_ticks < launch->child_ticks)
            continue;
        process.parent_pid = stat.parent_pid;
        process.start_ticks = stat.start_ticks;
        process.is_descendant =
            process.pid == (uint32_t)launch->child || was_descendant(&process) || is_orphan_of_ours(launch, &process);
        if (!add_descendant(all, &process))
            break;
    }
    if (stream != NULL)
        closedir(stream);
}

/* Marks the children of descendants as descendants, and drops all other processes. */
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

/* Returns why the library is not in a process. Its variables are another program's while it calls exec or ends: that it
 * did not find the library is believed if two looks agree. HOST_WHY_COUNT: it is loaded by now. */
static enum host_why why_not_loaded(uint32_t pid)
{
    const struct timespec pause = {.tv_nsec = LOOK_AGAIN_NS};
    enum host_why why = host_why_not_loaded(pid, scans.library_name);
    if (why != HOST_WHY_NOT_FOUND)
        return why;
    nanosleep(&pause, NULL);
    bool is_loaded = procfs_maps(pid, scans.library_name);
    enum host_why again = host_why_not_loaded(pid, scans.library_name);
    return is_loaded ? HOST_WHY_COUNT : again;
}

/* Returns why the library is not in a process, and what to do about it; NULL: it is loaded by now. */
static const char *advice_about(uint32_t pid, const char *status)
{
    static const char lost[] =
        "has lost LD_PRELOAD from its environment: put sparkguard behind what clears it (env -i sparkguard PROGRAM)";
    static const char *const advice[HOST_WHY_COUNT] = {
        [HOST_WHY_UNKNOWN] = "cannot be looked at: sparkguard --check PROGRAM may tell why",
        [HOST_WHY_FOREIGN] = "is for another architecture: take a build for this machine, or bound it by --jail=SIZE",
        [HOST_WHY_STATIC] = "is linked statically: link it dynamically, or bound it by --jail=SIZE",
        [HOST_WHY_MUSL] = "is linked with musl: take a build for glibc, or bound it by --jail=SIZE",
        [HOST_WHY_NOT_FOUND] =
            "did not find the library: it sees other files, as in a container; put sparkguard into it",
        [HOST_WHY_NO_PRELOAD] = lost,
    };
    if (procfs_number_after(status, "Uid") != getuid())
        return "runs as another user: write sudo sparkguard PROGRAM, not sparkguard sudo PROGRAM";
    enum host_why why = why_not_loaded(pid);
    return why != HOST_WHY_COUNT ? advice[why] : NULL;
}

static void take_unguarded(const struct process *process, uint64_t bytes, const char *status)
{
    if (bytes <= found.unguarded_bytes)
        return;
    char name[sizeof found.unguarded_name] = "";
    const char *advice = advice_about(process->pid, status);
    if (advice == NULL)
        return;
    if (procfs_read(process->pid, "comm", name, sizeof name) < 0)
        name[0] = '\0';
    name[strcspn(name, "\n")] = '\0';
    pthread_mutex_lock(&found_lock);
    found.unguarded_bytes = bytes;
    found.unguarded_pid = process->pid;
    found.unguarded_advice = advice;
    memcpy(found.unguarded_name, name, sizeof name);
    pthread_mutex_unlock(&found_lock);
}

static void take_guarded(uint64_t bytes)
{
    pthread_mutex_lock(&found_lock);
    found.guarded_bytes = bytes_max(found.guarded_bytes, bytes);
    pthread_mutex_unlock(&found_lock);
}

/* Returns whether the process can be classified as guarded or unguarded. A process of the same user with an unreadable
 * /proc/PID/maps has made itself undumpable and may well be guarded: false. A process of another user, such as one
 * under sudo, runs unguarded, because the dynamic linker preloads nothing there: true. */
static bool may_be_judged(uint32_t pid, const char *status)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/maps", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || procfs_number_after(status, "Uid") != getuid();
}

/* Examines one process. The memory is read after the mappings, because the process may exec or end in between; its
 * memory before exec must not be taken for an unguarded program's. */
static void scan_process(const struct process *process)
{
    char status[8192];
    if (procfs_read(process->pid, "status", status, sizeof status) <= 0)
        return;
    uint64_t highest_bytes = procfs_kib(procfs_number_after(status, "VmHWM"));
    if (highest_bytes == SG_UNKNOWN || highest_bytes < LAUNCH_UNGUARDED_BYTES || !may_be_judged(process->pid, status))
        return;
    bool is_guarded = procfs_maps(process->pid, scans.library_name);
    uint64_t own_bytes = procfs_resident_bytes(process->pid, process->start_ticks);
    if (is_guarded)
        take_guarded(highest_bytes);
    else if (own_bytes != SG_UNKNOWN && own_bytes >= LAUNCH_UNGUARDED_BYTES)
        take_unguarded(process, own_bytes, status);
}

static void scan_once(const struct launch *launch)
{
    struct processes all = {0};
    read_all(launch, &all);
    keep_descendants(&all);
    free(last.at);
    last = all;
    for (size_t i = 0; i < all.count && !must_end(); i++)
        scan_process(&all.at[i]);
}

/* The scans run in a thread of their own: the mappings of a process that is stuck in the kernel cannot be read, and the
 * launcher must hear signals and the child's end meanwhile. */
static void *scan(void *context)
{
    const struct launch *launch = context;
    (void)wait_for(&scans.has_child, NULL);
    while (!must_end()) {
        int64_t begin_ns = tool_clock_ns(CLOCK_THREAD_CPUTIME_ID);
        scan_once(launch);
        int64_t pause_ns = COST_FACTOR * (tool_clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns);
        struct timespec end = time_after(pause_ns > LEAST_NS ? pause_ns : LEAST_NS);
        (void)wait_for(&scans.must_end, &end);
    }
    reach(&scans.has_ended);
    return NULL;
}

static void prepare_steps(void)
{
    static bool is_prepared;
    pthread_condattr_t attributes;
    if (is_prepared)
        return;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    is_prepared = pthread_cond_init(&step_changed, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
}

void launch_children_prepare(const struct launch *launch)
{
    if (!launch->is_guarded || launch->is_quiet || scans.is_stuck)
        return;
    found = (struct launch_children){0};
    last.count = 0;
    free(scans.library_name);
    scans.has_child = scans.must_end = scans.has_ended = false;
    prepare_steps();
    scans.library_name = strdup(launch->library_name);
    scans.has_thread =
        scans.library_name != NULL && pthread_create(&scans.thread, NULL, scan, (void *)(uintptr_t)launch) == 0;
}

void launch_children_begin(void)
{
    if (scans.has_thread)
        reach(&scans.has_child);
}

void launch_children_end(struct launch *launch)
{
    if (!scans.has_thread)
        return;
    struct timespec end = time_after(END_NS);
    reach(&scans.must_end);
    reach(&scans.has_child); /* also where the program never began */
    scans.is_stuck = !wait_for(&scans.has_ended, &end);
    (void)(scans.is_stuck ? pthread_detach(scans.thread) : pthread_join(scans.thread, NULL));
    scans.has_thread = false;
    pthread_mutex_lock(&found_lock);
    launch->children = found;
    pthread_mutex_unlock(&found_lock);
}
