/*
 * holder.c - see holder.h.
 */
#include "admit/holder.h"

#include "admit/containers.h"
#include "admit/headroom.h"
#include "base/atomics.h"
#include "base/clock.h"
#include "base/directory.h"
#include "base/options.h"
#include "base/procfs.h"
#include "base/seccomp.h"
#include "base/syscall.h"
#include "shared/decision_lock.h"
#include "shared/own_entry.h"
#include "shared/segment.h"

#include <fcntl.h>
#include <string.h>

#define SEARCH_NS UINT64_C(20000000) /* 2 % of the time, since a line is written once a second at most */

struct holder {
    uint64_t bytes;
    uint32_t pid; /* 0: no process */
    /* Of a guarded process, whose PID may be a number of another PID namespace: */
    uint64_t start_ticks, pid_namespace, job_hash;
    bool is_guarded;
};

static uint32_t is_searching SG_AT_FORK; /* (atomic) 1: a thread uses `buffer` */
static char buffer[2048];                /* not on the stack, which may be a small one */

/* Bytes that the owner of an entry holds of the constraint that refused the request. */
static uint64_t held_by(const struct sg_registry_entry *entry, const struct sg_answer *answer)
{
    const struct sg_registry_entry *own = sg_entry_own();
    uint64_t granted = sg_load(&entry->slot.granted_bytes), inherited = sg_load(&entry->slot.inherited_bytes);
    uint64_t device = sg_load(&entry->slot.device_bytes);
    uint64_t bytes = granted > inherited ? granted - inherited : 0;
    bool is_member = answer->cgroup_bytes == 0;
    for (uint32_t i = 0; !is_member && i < SG_ENTRY_LEVELS && sg_load(&own->level[i]) != 0; i++)
        is_member = sg_entry_is_member(entry, sg_load(&own->level[i]));
    if (!is_member || (answer->reason == SG_REASON_LIMIT && entry->slot.job_hash != own->slot.job_hash))
        return 0;
    if (answer->reason == SG_REASON_DEVICE)
        return device;
    bool is_elsewhere = answer->reason != SG_REASON_LIMIT && sg_headroom_unified() == 0;
    return is_elsewhere ? (bytes > device ? bytes - device : 0) : bytes;
}

/* Whether the entry is this process's, or that of the program that it was before an exec. */
static bool is_own(const struct sg_registry_entry *entry)
{
    return entry == sg_entry_own() || sg_load(&entry->slot.state) == SG_STATE_REPLACED ||
           (entry->slot.pid == sg_own->slot.pid && entry->slot.start_ticks == sg_own->slot.start_ticks &&
            sg_load(&entry->pid_namespace) == sg_own->pid_namespace);
}

static void find_guarded(struct holder *largest, const struct sg_answer *answer)
{
    struct sg_registry *registry = sg_entry_shared_registry();
    for (uint32_t i = 0; registry != NULL && i < sg_entry_count(registry); i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        uint64_t bytes = sg_entry_is_live(entry) && !is_own(entry) ? held_by(entry, answer) : 0;
        if (bytes > largest->bytes && bytes < SG_BYTES_MAX)
            *largest = (struct holder){.bytes = bytes,
                                       .pid = entry->slot.pid,
                                       .start_ticks = entry->slot.start_ticks,
                                       .pid_namespace = sg_load(&entry->pid_namespace),
                                       .job_hash = entry->slot.job_hash,
                                       .is_guarded = true};
    }
}

/* Whether a PID of that namespace is known to be no number of this process's namespace. */
static bool is_foreign(uint64_t pid_namespace)
{
    return pid_namespace != 0 && sg_own->pid_namespace != 0 && pid_namespace != sg_own->pid_namespace;
}

/* Whether a process has a registry entry. An entry whose PID is not that process's here is of another PID namespace,
 * and only the start tells which process it is. */
static bool is_guarded(uint32_t pid)
{
    struct sg_registry *registry = sg_entry_shared_registry();
    uint64_t start = sg_procfs_start_ticks(pid);
    for (uint32_t i = 0; registry != NULL && i < sg_entry_count(registry); i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (sg_entry_is_live(entry) && entry->slot.start_ticks == start &&
            (is_foreign(sg_load(&entry->pid_namespace)) || entry->slot.pid == pid ||
             sg_procfs_start_ticks(entry->slot.pid) != start))
            return true;
    }
    return false;
}

struct search {
    struct holder largest;
    uint64_t until_ns;
    uint32_t own_pid;
    bool is_cut;
};

static bool look_at(int directory, const char *name, void *context)
{
    (void)directory;
    struct search *search = context;
    const char *cursor = name;
    if (*name < '1' || *name > '9')
        return true;
    uint32_t pid = (uint32_t)sg_text_read_number(&cursor);
    uint64_t bytes = pid == search->own_pid ? 0 : sg_procfs_anonymous_bytes(pid);
    if (bytes > search->largest.bytes && !is_guarded(pid))
        search->largest = (struct holder){.bytes = bytes, .pid = pid};
    search->is_cut = sg_clock_ns(CLOCK_MONOTONIC) > search->until_ns;
    return !search->is_cut;
}

/* Memory of a unified machine that neither a kernel counter nor a guarded process explains, by the last snapshot; 0:
 * unknown. */
static uint64_t unaccounted_bytes(void)
{
    struct sg_registry *registry = sg_entry_shared_registry();
    if (sg_headroom_unified() != 1 || registry == NULL)
        return 0;
    uint64_t bytes = sg_load_relaxed(&sg_headroom_last.snapshot.unexplained_bytes);
    uint64_t base = sg_load(&registry->unexplained_base_bytes);
    bytes = bytes > base ? bytes - base : 0;
    for (uint32_t i = 0; i < sg_entry_count(registry); i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        uint64_t known = sg_load(&entry->slot.device_bytes) + sg_load(&entry->managed_bytes);
        if (sg_entry_is_live(entry))
            bytes = bytes > known ? bytes - known : 0;
    }
    return bytes;
}

/* Replaces *largest by a larger unguarded process, or by memory that belongs to no process. */
static void find_unguarded(struct holder *largest)
{
    uint32_t nobody = 0;
    if (sg_seccomp_is_strict() || !sg_cas_u32(&is_searching, &nobody, 1))
        return;
    struct search search = {
        .largest = *largest, .until_ns = sg_clock_ns(CLOCK_MONOTONIC) + SEARCH_NS, .own_pid = sg_sys_getpid()};
    long fd = sg_sys_openat((int)SG_AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd >= 0) {
        sg_directory_visit((int)fd, buffer, sizeof buffer, look_at, &search);
        (void)sg_sys_close((int)fd);
        uint64_t unaccounted = unaccounted_bytes();
        if (!search.is_cut)
            *largest = search.largest;
        if (unaccounted > largest->bytes && unaccounted < SG_BYTES_MAX)
            *largest = (struct holder){.bytes = unaccounted};
    }
    sg_store_release(&is_searching, 0u);
}

/* Replaces what could control a terminal, and all bytes that are not ASCII. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

struct record_search {
    const struct holder *holder;
    char prefix[16]; /* "PID-", with which the names of its records begin */
    char job[SG_JOB_BYTES + 1];
};

/* Takes the job's name from a segment if that is the holder's. Another user of the directory may have written any name
 * into it; the registry entry's hash must be that of the name. */
static bool take_job(int directory, const char *name, void *context)
{
    struct record_search *search = context;
    const size_t prefix = strlen(search->prefix);
    struct sg_slot slot = {0};
    uint32_t user = 0;
    char job[SG_JOB_BYTES + 1] = "";
    if (strlen(name) != prefix + 16 + strlen(SG_SEGMENT_SUFFIX) || strncmp(name, search->prefix, prefix) != 0 ||
        strcmp(name + prefix + 16, SG_SEGMENT_SUFFIX) != 0)
        return true;
    long fd = sg_sys_openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0)
        return true;
    if (sg_sys_pread((int)fd, &slot, sizeof slot, 0) == sizeof slot && slot.pid == search->holder->pid &&
        slot.start_ticks == search->holder->start_ticks &&
        sg_sys_pread((int)fd, job, SG_JOB_BYTES, offsetof(struct sg_segment, job)) == SG_JOB_BYTES &&
        sg_sys_pread((int)fd, &user, sizeof user, offsetof(struct sg_segment, uid)) == sizeof user &&
        (sg_job_hash(job, user) == search->holder->job_hash || sg_job_hash(job, 0) == search->holder->job_hash))
        memcpy(search->job, job, sizeof job);
    (void)sg_sys_close((int)fd);
    return search->job[0] == '\0';
}

/* Appends the job of a guarded process in another PID namespace. Apart: only such a refusal pays for its stack. */
static SG_APART void add_job(struct sg_text *text, const struct holder *holder)
{
    struct stat info = {0};
    struct record_search search = {.holder = holder};
    struct sg_text prefix = sg_text_begin(search.prefix, sizeof search.prefix);
    uint32_t nobody = 0;
    sg_text_add_number(&prefix, holder->pid);
    sg_text_add(&prefix, "-");
    if (!sg_seccomp_is_strict() && sg_cas_u32(&is_searching, &nobody, 1)) {
        int fd = sg_directory_open(sg_options.dir, &info);
        if (fd >= 0) {
            sg_directory_visit(fd, buffer, sizeof buffer, take_job, &search);
            (void)sg_sys_close(fd);
        }
        sg_store_release(&is_searching, 0u);
    }
    make_printable(search.job);
    sg_text_add(text, search.job[0] != '\0' ? "job " : "a process of another container");
    sg_text_add(text, search.job);
}

/* Appends the name of a process and its PID, or the PID alone if another process has that number here; of another PID
 * namespace the name of its job. */
static void add_process(struct sg_text *text, const struct holder *holder)
{
    uint32_t pid = holder->pid;
    char name[32];
    if (holder->is_guarded && is_foreign(holder->pid_namespace)) {
        add_job(text, holder);
        return;
    }
    bool is_here = !holder->is_guarded || sg_procfs_start_ticks(pid) == holder->start_ticks;
    long length = is_here ? sg_procfs_read(pid, "/comm", name, sizeof name) : 0;
    if (length > 1) {
        name[length - 1] = '\0'; /* the line break */
        make_printable(name);
        sg_text_add(text, name);
        sg_text_add(text, " ");
    } else {
        sg_text_add(text, "process ");
    }
    sg_text_add_number(text, pid);
}

/* Whether another user runs the process: it may be guarded with a registry of that user's own. */
static bool is_of_another_user(uint32_t pid)
{
    int64_t user = sg_procfs_user(pid);
    return user >= 0 && user != sg_syscall(SYS_geteuid, 0, 0, 0, 0, 0, 0);
}

/* Appends the container that has promised the most, if that is more than `least_bytes`: no figure of the kernel shows
 * it. Apart: only such a refusal pays for its stack. */
static SG_APART bool add_container(struct sg_text *text, uint64_t least_bytes)
{
    char name[sizeof sg_containers.most_name];
    struct sg_lock_state lock;
    uint64_t bytes = sg_load_relaxed(&sg_containers.most_bytes);
    if (bytes <= least_bytes || !sg_lock_acquire_within(&sg_decision_lock, &lock, SEARCH_NS))
        return false;
    memcpy(name, sg_containers.most_name, sizeof name);
    sg_lock_release(&sg_decision_lock, &lock);
    make_printable(name);
    sg_text_add(text, "; largest other: container ");
    sg_text_add(text, name);
    sg_text_add(text, ", ");
    sg_text_add_size(text, bytes);
    sg_text_add(text, " promised");
    return true;
}

void sg_holder_add(struct sg_text *text, const struct sg_request *request, const struct sg_answer *answer)
{
    bool is_machine = answer->reason == SG_REASON_RESERVE || answer->reason == SG_REASON_FLOOR;
    uint64_t whole = answer->reason == SG_REASON_LIMIT    ? answer->kept_bytes
                     : answer->reason == SG_REASON_DEVICE ? request->card.total_bytes
                     : answer->cgroup_bytes != 0          ? answer->cgroup_bytes
                                                          : sg_load_relaxed(&sg_own->machine.total_bytes);
    struct holder largest = {.bytes = whole / 64};
    find_guarded(&largest, answer);
    if (is_machine && answer->cgroup_bytes == 0)
        find_unguarded(&largest);
    if (is_machine && answer->cgroup_bytes == 0 && add_container(text, largest.bytes))
        return;
    if (largest.bytes == whole / 64)
        return;
    sg_text_add(text, "; largest other: ");
    if (largest.pid != 0) {
        add_process(text, &largest);
        sg_text_add(text, ", ");
    }
    sg_text_add_size(text, largest.bytes);
    if (largest.pid == 0)
        sg_text_add(text, " unaccounted, such as GPU memory of unguarded programs");
    else if (!largest.is_guarded)
        sg_text_add(text, is_of_another_user(largest.pid) ? ", another user's" : ", unguarded");
}
