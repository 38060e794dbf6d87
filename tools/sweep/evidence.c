/*
 * evidence.c - finds out whether a run was guarded: the sweep goes on to a larger one only where the library was in the
 * program.
 *
 * Each process of a sweep leaves a record (SG_VARIABLE_RECORD). A run whose processes are all small has shown nothing
 * yet: then each sign of a program without the library ends the sweep. Such signs are a run without a record, a record
 * that a program without the library has replaced, a resident size that no record has, and work that is done elsewhere.
 * Where a record is large, only an unguarded process that a scan saw ends it.
 */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/procfs.h"
#include "common/text.h"
#include "common/tool.h"
#include "model/host/host.h"
#include "sweep/sweep.h"

#define OTHER_BYTES (UINT64_C(8) << 20)       /* resident sizes differ by less */
#define ELSEWHERE_BYTES (UINT64_C(256) << 20) /* the machine loses less without a program's work */
#define LOST "has lost LD_PRELOAD (env -i, unset, sudo, ssh, a static program)"

/* Between two looks, and how many there are at most: 3 s, for a process that is about to become a program. */
#define LOOK_NS 50000000
enum { LOOKS = 60, NAME_WIDTH = 60 };

/* Returns whether a process that knows the job by its environment is still there. */
static bool is_job_alive(const char *job)
{
    DIR *stream = opendir("/proc");
    const struct dirent *entry;
    bool is_alive = false;
    while (stream != NULL && !is_alive && (entry = readdir(stream)) != NULL) {
        struct procfs_stat stat;
        uint32_t pid = (uint32_t)strtoul(entry->d_name, NULL, 10);
        if (!isdigit((unsigned char)entry->d_name[0]) || procfs_stat(pid, &stat) != 0 || stat.is_ending)
            continue;
        const char *named = host_variable(pid, sg_option_table[SG_OPTION_JOB].variable);
        is_alive = named != NULL && strcmp(named, job) == 0;
    }
    if (stream != NULL)
        closedir(stream);
    return is_alive;
}

/* Returns the sweep's job; NULL: none of it is on record. */
static const struct model_job *read_job(const struct launch *launch)
{
    const struct model_scope scope = {.directories = &launch->directory,
                                      .directory_count = 1,
                                      .job = launch->job,
                                      .job_hash = model_own_job(launch->job, true)};
    return model_build(&scope)->jobs;
}

/* What the records of a run say. */
struct found {
    size_t count;
    uint64_t peak_bytes;     /* of the largest process */
    uint64_t resident_bytes; /* largest recorded resident size; SG_UNKNOWN: a process recorded none */
    const struct model_process *replaced, *passing, *client;
};

/* Returns whether another program has taken the process over and left no record. */
static bool is_lost(const struct model_job *job, const struct model_process *process)
{
    const struct model_process *other;
    if (process->state != SG_STATE_REPLACED)
        return false;
    DL_FOREACH (job->processes, other)
        if (other->pid == process->pid && other->start_ticks == process->start_ticks &&
            other->state != SG_STATE_REPLACED)
            return false;
    return true;
}

/* Returns whether a process is a client of those that start a program elsewhere. */
static bool is_client(const struct model_process *process)
{
    static const char clients[] = "ssh|systemd-run|machinectl|docker|podman|nerdctl|kubectl|srun|at|batch";
    return text_is_one_of(basename(text_copy(process->command, strcspn(process->command, " "))), clients);
}

static struct found look(const struct launch *launch, const struct model_job *job)
{
    struct found found = {0};
    const struct model_process *process;
    if (job == NULL)
        return found;
    DL_FOREACH (job->processes, process) {
        if (!launch_is_of_run(launch, process))
            continue;
        found.count++;
        found.peak_bytes = bytes_max(found.peak_bytes, process->peak_bytes);
        launch_take_resident(&found.resident_bytes, process);
        found.replaced = is_lost(job, process) ? process : found.replaced;
        found.passing = process->is_guarding ? found.passing : process;
        found.client = is_client(process) ? process : found.client;
    }
    return found;
}

void sweep_await_records(const struct launch *launch)
{
    for (unsigned i = 0; i < LOOKS && launch->is_guarded; i++) {
        size_t mark = tool_arena_mark();
        bool is_over = look(launch, read_job(launch)).peak_bytes >= SWEEP_SMALL_BYTES || !is_job_alive(launch->job);
        tool_arena_release(mark);
        if (is_over)
            return;
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
}

/* Removes the records that the processes would not have left without a sweep. */
static void forget_small(const struct launch *launch, const struct model_job *job)
{
    const struct model_process *process;
    if (job == NULL)
        return;
    DL_FOREACH (job->processes, process)
        if (process->state != SG_STATE_RUNNING && process->peak_bytes < SWEEP_SMALL_BYTES &&
            process->refused_count == 0 && process->unaccounted_bytes == SG_UNKNOWN &&
            launch_is_of_run(launch, process))
            (void)unlink(process->segment_path);
}

/* Returns the resident anonymous memory of this tool: its child had as much until it became the program, and the kernel
 * takes that into the program's largest size. */
static uint64_t own_resident_bytes(void)
{
    struct procfs_stat stat;
    uint64_t bytes = SG_UNKNOWN;
    if (procfs_stat((uint32_t)getpid(), &stat) == 0)
        bytes = procfs_resident_bytes((uint32_t)getpid(), stat.start_ticks);
    return bytes != SG_UNKNOWN ? bytes : 0;
}

static char *short_command(const char *command)
{
    char *name = text_printable(command, false);
    text_shorten(name, NAME_WIDTH);
    return name;
}

/* Returns a sentence about a sign in a run whose processes are small; NULL: there is none. */
static char *find_sign(const struct sweep *sweep, const struct sweep_run *run, const struct launch *launch,
                       const struct found *found)
{
    char *program = short_command(launch->program[0]);
    bool is_room_known = run->headroom_bytes != SG_UNKNOWN && run->start_headroom_bytes != SG_UNKNOWN;
    uint64_t lost_bytes = is_room_known ? bytes_less(run->start_headroom_bytes, run->headroom_bytes) : 0;
    if (found->count == 0) {
        const char *fault = launch_directory_fault(launch->directory);
        if (fault == NULL)
            return sweep_is_false_start(sweep, run) ? NULL : text_format("%s ran unguarded: it " LOST, program);
        char *directory = text_printable(launch->directory, false);
        return text_format("%s left no record: %s: %s (SPARKGUARD_DIR)", program, directory, fault);
    }
    if (found->replaced != NULL)
        return text_format("%s, or what it became, ran unguarded: it " LOST, short_command(found->replaced->command));
    if (found->passing != NULL)
        return text_format("%s ran unguarded: every call passes through", short_command(found->passing->command));
    if (found->client != NULL)
        return text_format("%s ran unguarded: its work is done by a process elsewhere, which is not on record",
                           short_command(found->client->command));
    uint64_t known_bytes = bytes_max(found->resident_bytes, own_resident_bytes());
    if (found->resident_bytes != SG_UNKNOWN && launch->children_bytes >= bytes_add(known_bytes, OTHER_BYTES))
        return text_format("%s, or a program that it started, held %s and ran unguarded: it " LOST, program,
                           text_size(launch->children_bytes));
    if (lost_bytes >= ELSEWHERE_BYTES)
        return text_format("the machine lost %s meanwhile, and %s took less than 16 MiB of it: the work is done by a "
                           "process elsewhere, which ran unguarded",
                           text_size(lost_bytes), program);
    return NULL;
}

int sweep_check_guarded(const struct sweep *sweep, const struct sweep_run *run, const struct launch *launch)
{
    char *sign = NULL;
    const struct launch_children *seen = &launch->children;
    if (!launch->is_guarded)
        return 0;
    const struct model_job *job = read_job(launch);
    const struct found found = look(launch, job);
    if (seen->unguarded_bytes != 0)
        sign = text_format("%s held %s and ran unguarded: it %s", short_command(seen->unguarded_name),
                           text_size(seen->unguarded_bytes),
                           seen->unguarded_advice != NULL ? seen->unguarded_advice : LOST);
    else if (found.peak_bytes < SWEEP_SMALL_BYTES && run->refused_count == 0 && run->status != SWEEP_INTERRUPTED)
        sign = find_sign(sweep, run, launch, &found);
    forget_small(launch, job);
    if (sign == NULL)
        return 0;
    fprintf(stderr, "sparkguard-sweep: %s\n", sign);
    fputs("sparkguard-sweep: the sweep ends here, without a result: a larger run could take the machine down\n",
          stderr);
    return LAUNCH_FAILED;
}
