/*
 * record.c - writes how the child ended into its segment and into the segment's copy in the history, and syncs both
 * to disk. A child that was killed could not write that itself.
 *
 * This is the only place where a tool writes to a segment. The file must be regular, our own, of our ABI version, of
 * exactly this child (PID and start time), and without an owner. Only the fields of the process's end are written,
 * and the hash of the command line; the latter in the records of all processes that the child has started, too.
 *
 * The launcher syncs because the child does not: an ending child that waited for the disk would keep all its memory
 * meanwhile, while the launcher holds almost none.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "launch/launch.h"
#include "model/model.h"
#include "model/segment_reader.h"
#include "sparkguard_abi.h"
#include "common/text.h"
#include "common/tool.h"

/* The kernel releases the lock while the process ends. Another process that inspects its memory delays that a little;
 * so the test is repeated every 5 ms. */
enum { LOCK_TRIES = 20 };

static bool is_abandoned(int fd)
{
    for (int i = 0; i < LOCK_TRIES && model_is_locked(fd); i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    return !model_is_locked(fd);
}

static void put_field(int fd, size_t offset, const void *value, size_t bytes)
{
    while (pwrite(fd, value, bytes, (off_t)offset) < 0 && errno == EINTR)
        continue;
}

uint32_t launch_command_hash(char *const *program)
{
    uint64_t hash = 0;
    for (; *program != NULL; program++)
        hash = sg_hash_text(text_format("%016" PRIx64 " %s", hash, *program));
    uint32_t folded = (uint32_t)(hash ^ hash >> 32);
    return folded != 0 ? folded : 1;
}

/* Finds out whether the kernel's OOM killer ended the child. A signal does not tell who sent it. */
static uint32_t find_oom(const struct launch *launch)
{
    if (!WIFSIGNALED(launch->wait_status) || WTERMSIG(launch->wait_status) != SIGKILL)
        return SG_OOM_UNKNOWN;
    if (model_kernel_log_names((uint32_t)launch->child, launch->started_ns, tool_now_ns()))
        return SG_OOM_NAMED;
    uint64_t now = launch_oom_kills();
    bool is_likely = now != SG_UNKNOWN && launch->oom_kills != SG_UNKNOWN && now > launch->oom_kills;
    return is_likely ? SG_OOM_LIKELY : SG_OOM_UNKNOWN;
}

/* Writes the end. A process that a signal killed during its exit handlers may already have written "exited"; the signal
 * replaces that. */
static void write_end(int fd, const struct launch *launch, uint32_t state)
{
    bool is_killed = WIFSIGNALED(launch->wait_status);
    const int64_t now_ns = tool_now_ns();
    const int32_t number = is_killed ? WTERMSIG(launch->wait_status) : WEXITSTATUS(launch->wait_status);
    const uint32_t end = is_killed ? SG_STATE_KILLED : SG_STATE_EXITED;
    if (state != SG_STATE_RUNNING && !(state == SG_STATE_EXITED && is_killed))
        return;
    put_field(fd, is_killed ? offsetof(struct sg_segment, signal) : offsetof(struct sg_segment, exit_code), &number,
              sizeof number);
    const uint32_t oom = find_oom(launch);
    put_field(fd, offsetof(struct sg_segment, oom), &oom, sizeof oom);
    put_field(fd, offsetof(struct sg_segment, ended_time_ns), &now_ns, sizeof now_ns);
    put_field(fd, offsetof(struct sg_slot, state), &end, sizeof end); /* last: readers test the state first */
}

/* Whether the file is a record that this launcher may write: regular, our own, of our ABI version. Reads the slot. */
static bool is_ours(int fd, struct sg_slot *slot)
{
    struct stat status;
    return fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
           status.st_size >= (off_t)sizeof(struct sg_segment) &&
           pread(fd, slot, sizeof *slot, 0) == (ssize_t)sizeof *slot && slot->magic == SG_ABI_MAGIC &&
           slot->abi_version == SG_ABI_VERSION;
}

/* Writes the command line's hash into a record of this run, unless another launcher has written its own there. */
static void write_hash(int fd, const struct launch *launch, bool is_childs)
{
    uint64_t run = 0;
    uint32_t before = 0;
    bool is_known =
        pread(fd, &run, sizeof run, offsetof(struct sg_segment, run)) == (ssize_t)sizeof run &&
        pread(fd, &before, sizeof before, offsetof(struct sg_segment, command_hash)) == (ssize_t)sizeof before;
    if (!is_childs && !(is_known && before == 0 && run == SG_RUN((uint32_t)launch->child, launch->child_ticks)))
        return;
    const uint32_t hash = launch_command_hash(launch->program);
    put_field(fd, offsetof(struct sg_segment, command_hash), &hash, sizeof hash);
}

/* Records the end in one file, or removes it if the child was no program yet. Returns whether the file belongs to the
 * child. */
static bool record_in(int directory, const char *name, const struct launch *launch)
{
    struct sg_slot slot;
    int fd = openat(directory, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool is_record = is_ours(fd, &slot);
    bool is_childs =
        is_record && slot.pid == (uint32_t)launch->child && slot.start_ticks == launch->child_ticks && is_abandoned(fd);
    if (is_childs && launch->has_no_claim) {
        (void)unlinkat(directory, name, 0);
    } else if (is_record) {
        write_hash(fd, launch, is_childs);
        if (is_childs) {
            write_end(fd, launch, slot.state);
            (void)fdatasync(fd);
        }
    }
    close(fd);
    return is_childs;
}

static void record_below(const char *path, const struct launch *launch)
{
    char **names = NULL;
    bool is_found = false;
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return;
    long count = model_segment_names(directory, &names);
    for (long i = 0; i < count; i++)
        is_found = record_in(directory, names[i], launch) || is_found;
    if (count >= 0)
        if (is_found)
            (void)fsync(directory); /* syncs the name under which the child saved its last copy */
    close(directory);
}

void launch_record(const struct launch *launch)
{
    char *history = model_history_directory();
    if (launch->child_ticks != 0) {
        record_below(launch->directory, launch);
        if (history != NULL)
            record_below(history, launch);
    }
}
