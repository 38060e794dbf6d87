/*
 * machine.c - the machine now: /proc/meminfo and the cgroups, less what guarded processes have been promised; the
 * settings (reserve, floor, unified) as the running processes see them, else as a process started here would.
 *
 * The machine and each cgroup level with a limit is a constraint that keeps its own reserve; what is shown is the one
 * that leaves the least headroom, so that usable - reserve is what admission would grant.
 *
 * What was promised and is in flight is taken off as the library does it, but by what the segments alone say:
 *   - A cgroup is charged with the processes in it. The report knows its own cgroups only and no other process's, so it
 *     takes a process to be in one of them unless it has noted that no limit above it is as small as that cgroup's.
 *   - In flight counts in full, also where it is device memory, which no cgroup bounds, or that of a discrete GPU,
 *     which is not the machine's: for as long as the call takes, too little is shown as usable, never too much.
 *   - Device memory of a discrete GPU under SPARKGUARD_UNIFIED=on, which the library takes off too, is not.
 * A claim counts against every constraint, also against a cgroup that its job is not in: the report cannot tell.
 * Promises of forked children are their own: what they inherited is promised to the parent.
 *
 * The same prefix as the library's, SPARKGUARD_SYSTEM_ROOT, stands before /proc/meminfo and the cgroups.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cgroup.h"
#include "common/procfs.h"
#include "model/model.h"
#include "model/tmpfs_usage.h"
#include "sparkguard_options.h"
#include "common/bytes.h"
#include "common/text.h"

#define RESERVE_LEAST (UINT64_C(512) << 20)

struct constraints {
    struct cgroup_constraint at[24]; /* at[0] is the machine */
    size_t count;
};

static void read_meminfo(struct model_machine *machine, const char *root)
{
    char path[4096], text[16384];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (procfs_read_text(path, text, sizeof text) < 0)
        text[0] = '\0';
    machine->total_bytes = procfs_kib(procfs_number_after(text, "MemTotal"));
    machine->available_bytes = procfs_kib(procfs_number_after(text, "MemAvailable"));
    machine->ordinary_bytes = procfs_ordinary_bytes(text);
    if (machine->available_bytes != SG_UNKNOWN)
        machine->available_bytes = bytes_min(machine->available_bytes, machine->ordinary_bytes);
    machine->swap_total_bytes = procfs_kib(procfs_number_after(text, "SwapTotal"));
    uint64_t swap_free = procfs_kib(procfs_number_after(text, "SwapFree"));
    machine->swap_used_bytes = machine->swap_total_bytes == SG_UNKNOWN || swap_free == SG_UNKNOWN
                                   ? SG_UNKNOWN
                                   : bytes_less(machine->swap_total_bytes, swap_free);
}

static struct sg_size option_size(enum sg_option option)
{
    struct sg_size size = {0}, none = {0};
    const char *text = getenv(sg_option_table[option].variable);
    return text != NULL && sg_parse_size(text, &size) == 0 ? size : none;
}

/* Sets the reserve and floor that a process started with this environment would keep. A percentage, and the default,
 * refer to the constraint's limit. The machine's default is at least 512 MiB, but at most a quarter of the machine.
 * In a cgroup, a reserve in bytes is at most a quarter of the limit. */
static void set_reserve(struct cgroup_constraint *constraint, bool is_machine)
{
    uint64_t limit = constraint->limit_bytes, bytes;
    struct sg_size reserve = option_size(SG_OPTION_RESERVE), floor = option_size(SG_OPTION_FLOOR);
    if (limit == SG_UNKNOWN)
        return;
    if (!reserve.is_set) {
        (void)sg_parse_size(sg_option_table[SG_OPTION_RESERVE].fallback, &reserve);
        bytes = bytes_max(sg_size_of(reserve, limit), is_machine ? bytes_min(RESERVE_LEAST, limit / 4) : 0);
    } else {
        bytes = sg_size_of(reserve, limit);
        if (!is_machine && reserve.percent_milli == 0)
            bytes = bytes_min(bytes, limit / 4);
    }
    constraint->reserve_bytes = bytes_min(bytes, INT64_MAX);
    constraint->floor_bytes = bytes_min(constraint->reserve_bytes, floor.is_set ? sg_size_of(floor, limit) : bytes / 4);
}

static void find_constraints(struct constraints *constraints, struct model_machine *machine, const char *root)
{
    struct cgroup_constraint *at = constraints->at;
    at[0] = (struct cgroup_constraint){machine->ordinary_bytes, machine->available_bytes, SG_UNKNOWN, SG_UNKNOWN};
    constraints->count = 1 + cgroup_read(root, at + 1, sizeof constraints->at / sizeof *at - 1);
    machine->cgroup_limit_bytes = SG_UNKNOWN;
    for (size_t i = 0; i < constraints->count; i++) {
        set_reserve(&at[i], i == 0);
        if (i > 0)
            machine->cgroup_limit_bytes = bytes_min(machine->cgroup_limit_bytes, at[i].limit_bytes);
    }
}

/* Processes publish reserve and floor of the constraint with the least headroom. If those are none of ours, they run
 * with other options; a reserve beyond a cgroup's limit is another constraint's, from before the headrooms changed. */
static void take_settings(struct constraints *constraints, const struct cgroup_constraint *published)
{
    struct cgroup_constraint *least = &constraints->at[0];
    for (size_t i = 0; i < constraints->count; i++) {
        struct cgroup_constraint *constraint = &constraints->at[i];
        if (constraint->reserve_bytes == published->reserve_bytes && constraint->floor_bytes == published->floor_bytes)
            return;
        if (constraint->headroom_bytes < least->headroom_bytes)
            least = constraint;
    }
    bool is_cgroup = least != &constraints->at[0];
    if (published->reserve_bytes == SG_UNKNOWN || (is_cgroup && published->reserve_bytes > least->limit_bytes))
        return;
    least->reserve_bytes = published->reserve_bytes;
    least->floor_bytes = published->floor_bytes;
}

/* Returns whether a process may be in our cgroup with this limit: its smallest limit is then at most this one. */
static bool may_be_within(const struct model_process *process, uint64_t limit_bytes)
{
    return process->machine.time_ns <= 0 || process->machine.cgroup_limit_bytes <= limit_bytes;
}

/* Returns the promises and bytes in flight of the running processes within a constraint, which the kernel's figures do
 * not show yet. */
static uint64_t taken_of(const struct model *model, const struct cgroup_constraint *constraint, bool is_machine)
{
    const struct model_job *job;
    const struct model_process *process;
    struct model_same_bytes promised = {0};
    uint64_t taken = 0;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process)
            if (process->state == SG_STATE_RUNNING && (is_machine || may_be_within(process, constraint->limit_bytes))) {
                model_same_bytes_add(&promised, process);
                taken = bytes_add(taken, process->in_flight_bytes);
            }
    taken = bytes_add(taken, model_same_bytes_promised(&promised, model));
    taken = bytes_add(taken, model->machine.claimed_bytes);
    model_same_bytes_free(&promised);
    return taken;
}

/* Fills usable, reserve and floor from the constraint with the least headroom. */
static void choose_tightest(const struct model *model, const struct constraints *constraints,
                            struct model_machine *machine)
{
    const struct cgroup_constraint *tightest = &constraints->at[0];
    int64_t least = INT64_MAX;
    bool is_known = machine->total_bytes != SG_UNKNOWN && machine->available_bytes != SG_UNKNOWN;
    for (size_t i = 0; is_known && i < constraints->count; i++) {
        const struct cgroup_constraint *constraint = &constraints->at[i];
        uint64_t usable = bytes_less(constraint->headroom_bytes, taken_of(model, constraint, i == 0));
        int64_t headroom = (int64_t)usable - (int64_t)constraint->reserve_bytes;
        if (headroom < least) {
            least = headroom;
            tightest = constraint;
            machine->usable_bytes = usable;
        }
    }
    machine->reserve_bytes = tightest->reserve_bytes;
    machine->floor_bytes = tightest->floor_bytes;
}

/* Adds one device of a process. The figures of a forked child include those inherited from its parent, and no record
 * tells on which devices. So inherited bytes are subtracted from the first devices. */
static void add_device(struct model_device *sum, const struct sg_device *device, uint64_t *inherited_bytes)
{
    if (device->is_known != 1)
        return;
    if (!sum->is_known) {
        *sum = (struct model_device){.is_known = true, .total_bytes = SG_UNKNOWN, .reserve_bytes = SG_UNKNOWN};
        memcpy(sum->name, device->name, sizeof device->name);
    }
    if (device->total_bytes != SG_UNKNOWN)
        sum->total_bytes = device->total_bytes;
    uint64_t reserve_bytes = (uint64_t)device->reserve_mib << 20;
    if (reserve_bytes != 0 && (sum->reserve_bytes == SG_UNKNOWN || reserve_bytes > sum->reserve_bytes))
        sum->reserve_bytes = reserve_bytes;
    if (device->live_bytes <= INT64_MAX) {
        sum->live_bytes = bytes_add(sum->live_bytes, bytes_less(device->live_bytes, *inherited_bytes));
        *inherited_bytes = bytes_less(*inherited_bytes, device->live_bytes);
    }
}

/* Takes what running processes published. Reserve and floor come from the process with the largest reserve among those
 * with our cgroup limit; the detection of unified memory comes from the newest snapshot. */
static void ask_processes(const struct model *model, struct model_machine *machine, struct cgroup_constraint *published)
{
    const struct model_job *job;
    const struct model_process *process;
    int64_t latest_ns = -1;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process) {
            const struct sg_machine *seen = &process->machine;
            if (process->state != SG_STATE_RUNNING)
                continue;
            if (seen->reserve_bytes <= INT64_MAX && seen->cgroup_limit_bytes == machine->cgroup_limit_bytes &&
                (published->reserve_bytes == SG_UNKNOWN || seen->reserve_bytes > published->reserve_bytes)) {
                published->reserve_bytes = seen->reserve_bytes;
                published->floor_bytes = bytes_min(seen->floor_bytes, seen->reserve_bytes);
            }
            if ((seen->unified == 0 || seen->unified == 1) && seen->time_ns > latest_ns) {
                machine->unified = seen->unified;
                latest_ns = seen->time_ns;
            }
            uint64_t inherited_bytes = process->inherited_device_bytes;
            for (int i = 0; i < SG_DEVICE_CAPACITY; i++)
                add_device(&machine->device[i], &process->device[i], &inherited_bytes);
        }
}

/* Returns the bytes that a process holds in a discrete GPU's own memory. */
static uint64_t bytes_of_device(const struct model_process *process, int unified)
{
    return unified == 0 ? bytes_less(process->domain[SG_DOMAIN_DEVICE].live_bytes, process->inherited_device_bytes) : 0;
}

static void sum_processes(const struct model *model, struct model_machine *machine)
{
    struct model_same_bytes running = {0};
    const struct model_job *job;
    const struct model_process *process;
    const char *directory = NULL;
    uint64_t device = 0;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process) {
            if (process->state != SG_STATE_RUNNING)
                continue;
            uint64_t unaccounted = process->unaccounted_bytes, sum = machine->unaccounted_bytes;
            model_same_bytes_add(&running, process);
            device = bytes_add(device, bytes_of_device(process, machine->unified));
            if (unaccounted != SG_UNKNOWN)
                machine->unaccounted_bytes = sum == SG_UNKNOWN ? unaccounted : bytes_add(sum, unaccounted);
            if (model_process_is_alone(process) || (directory != NULL && directory != job->directory))
                machine->is_sharing = false;
            directory = job->directory;
        }
    machine->guarded_bytes = bytes_less(model_same_bytes_live(&running, model), device);
    machine->promised_bytes = model_same_bytes_promised(&running, model);
    for (size_t i = 0; i < model->claims.count; i++)
        machine->claimed_bytes = bytes_add(machine->claimed_bytes, model->claims.at[i].rest_bytes);
    model_same_bytes_free(&running);
}

void model_machine_fill(struct model *model)
{
    struct model_machine *machine = &model->machine;
    const char *root = getenv("SPARKGUARD_SYSTEM_ROOT");
    if (root == NULL || strcmp(root, "/") == 0)
        root = "";
    *machine = (struct model_machine){.unified = -1,
                                      .is_sharing = model->directory_count > 0 && model_directories_are_read(model) &&
                                                    model->other_directory_count == 0 && model->veiled_count == 0,
                                      .unaccounted_bytes = SG_UNKNOWN,
                                      .usable_bytes = SG_UNKNOWN,
                                      .reserve_bytes = SG_UNKNOWN,
                                      .floor_bytes = SG_UNKNOWN};
    read_meminfo(machine, root);
    struct constraints constraints;
    struct cgroup_constraint published = {SG_UNKNOWN, SG_UNKNOWN, SG_UNKNOWN, SG_UNKNOWN};
    find_constraints(&constraints, machine, root);
    ask_processes(model, machine, &published);
    take_settings(&constraints, &published);
    sum_processes(model, machine);
    choose_tightest(model, &constraints, machine);
}
