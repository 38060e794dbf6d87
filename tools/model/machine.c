/*
 * machine.c - the machine now, as the library sees it (preload/core/observer/observe.h); the settings (reserve, floor,
 * unified) as the running processes see them, else as a process started here would.
 *
 * The machine and each cgroup level with a limit is a constraint that keeps its own reserve; what is shown is the one
 * that leaves the least headroom, so that usable - reserve is what admission would grant.
 *
 * Each directory has a registry of its own, whose processes do not know of the others. What those of all directories
 * have taken is taken off.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/procfs.h"
#include "common/text.h"
#include "model/model.h"
#include "sparkguard_options.h"

/* ---- what the core says ------------------------------------------------------------------------------------------ */

static uint64_t cgroup_limit_of(const struct sg_observation *observed)
{
    uint64_t limit = SG_UNKNOWN;
    for (uint32_t i = 1; i < observed->count; i++)
        limit = bytes_min(limit, observed->at[i].limit_bytes);
    return limit;
}

/* The reserve and floor that a process publishes. */
struct settings {
    uint64_t reserve_bytes, floor_bytes;
};

/* Returns those of the running process with the largest reserve among those with our cgroup limit; SG_UNKNOWN: of
 * none. */
static struct settings ask_settings(const struct model *model, uint64_t cgroup_limit_bytes)
{
    struct settings largest = {SG_UNKNOWN, SG_UNKNOWN};
    const struct model_job *job;
    const struct model_process *process;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process) {
            const struct sg_machine *seen = &process->machine;
            if (process->state == SG_STATE_RUNNING && seen->reserve_bytes <= INT64_MAX &&
                seen->cgroup_limit_bytes == cgroup_limit_bytes &&
                (largest.reserve_bytes == SG_UNKNOWN || seen->reserve_bytes > largest.reserve_bytes))
                largest = (struct settings){seen->reserve_bytes, bytes_min(seen->floor_bytes, seen->reserve_bytes)};
        }
    return largest;
}

/* Processes publish reserve and floor of the constraint with the least headroom. Returns that constraint if they are no
 * constraint's of ours, because the processes run with other options; else NULL. A reserve beyond a cgroup's limit is
 * another constraint's, from before the headrooms changed. */
static struct sg_observed_constraint *set_otherwise(struct sg_observation *observed, const struct settings *published)
{
    struct sg_observed_constraint *least = &observed->at[0];
    for (uint32_t i = 0; i < observed->count; i++) {
        struct sg_observed_constraint *constraint = &observed->at[i];
        if (constraint->reserve_bytes == published->reserve_bytes && constraint->floor_bytes == published->floor_bytes)
            return NULL;
        if (constraint->headroom_bytes < least->headroom_bytes)
            least = constraint;
    }
    bool is_cgroup = least != &observed->at[0];
    bool is_known = published->reserve_bytes != SG_UNKNOWN;
    return !is_known || (is_cgroup && published->reserve_bytes > least->limit_bytes) ? NULL : least;
}

/* Observes a registry as a process with the reserve of those that run. */
static struct sg_observation observe(const struct model *model, int registry)
{
    struct sg_observation seen;
    struct sg_observer observer = {.job = model->joins};
    sg_observe(registry, &observer, &seen);
    const struct settings published = ask_settings(model, cgroup_limit_of(&seen));
    struct sg_observed_constraint *constraint = set_otherwise(&seen, &published);
    if (constraint != NULL) {
        observer.reserve_bytes = bytes_max(published.reserve_bytes, 1);
        sg_observe(registry, &observer, &seen);
        constraint->floor_bytes = published.floor_bytes;
    }
    return seen;
}

/* Adds what the processes of a further directory have taken, and takes the settings that are known by now. */
static void add_taken(struct sg_observation *sum, const struct sg_observation *seen)
{
    for (uint32_t i = 0; i < sum->count && i < seen->count; i++) {
        struct sg_observed_constraint *at = &sum->at[i];
        at->promised_bytes = bytes_add(at->promised_bytes, seen->at[i].promised_bytes);
        at->claimed_bytes = bytes_add(at->claimed_bytes, seen->at[i].claimed_bytes);
        at->taken_bytes = bytes_add(at->taken_bytes, seen->at[i].taken_bytes);
        at->usable_bytes = bytes_less(at->headroom_bytes, at->taken_bytes);
        at->reserve_bytes = seen->at[i].reserve_bytes;
        at->floor_bytes = seen->at[i].floor_bytes;
    }
    sum->device_bytes = bytes_less(sum->device_bytes, seen->at[0].taken_bytes);
}

/* Sets the promise of a process to what the other processes count. */
static void find_entry(struct model_process *process, bool has_names)
{
    for (uint32_t i = 0; i < sg_observe_count(); i++) {
        const struct sg_registry_entry *entry = sg_observe_entry(i);
        if (entry == NULL || entry->slot.pid != process->pid || entry->slot.start_ticks != process->start_ticks ||
            (entry->slot.flags & SG_SLOT_JOB) != 0 || entry->slot.state == SG_STATE_REPLACED)
            continue;
        process->promised_bytes = sg_observe_promise(i);
        process->is_named = has_names;
        return;
    }
}

void model_machine_observe(struct model *model, int directory, const struct model_directory *from)
{
    struct model_job *job, *next;
    struct model_process *process;
    int registry =
        directory < 0 ? -1 : openat(directory, SG_REGISTRY_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const struct sg_observation seen = observe(model, registry);
    if (registry >= 0)
        close(registry);
    /* The host's programs count no container's promises. */
    bool is_counted = from == NULL || from->origin != MODEL_CONTAINER;
    if (is_counted && model->has_observed)
        add_taken(&model->observed, &seen);
    else if (is_counted)
        model->observed = seen;
    model->has_observed = model->has_observed || is_counted;
    if (directory < 0)
        return;
    model_claims_observe(&model->claims, from->path);
    model->shared_bytes = bytes_add(model->shared_bytes, sg_observe_shared(0));
    HASH_ITER (hh, model->by_key, job, next) {
        job->shared_bytes = sg_observe_shared(job->hash);
        DL_FOREACH (job->processes, process) {
            if (process->state != SG_STATE_RUNNING)
                continue;
            find_entry(process, seen.has_names);
            model_claims_name(&model->claims, from->path, process);
        }
    }
}

/* Fills the kernel's figures. Returns false where they cannot be read: then the core decides by less exact ones. */
static bool fill_kernel(struct model_machine *machine, const struct sg_observation *observed)
{
    const char *root = getenv("SPARKGUARD_SYSTEM_ROOT");
    char path[4096], text[16384];
    snprintf(path, sizeof path, "%s/proc/meminfo", root == NULL || strcmp(root, "/") == 0 ? "" : root);
    if (procfs_read_text(path, text, sizeof text) < 0)
        text[0] = '\0';
    machine->swap_total_bytes = procfs_kib(procfs_number_after(text, "SwapTotal"));
    uint64_t swap_free = procfs_kib(procfs_number_after(text, "SwapFree"));
    machine->swap_used_bytes = machine->swap_total_bytes == SG_UNKNOWN || swap_free == SG_UNKNOWN
                                   ? SG_UNKNOWN
                                   : bytes_less(machine->swap_total_bytes, swap_free);
    bool has_total = procfs_number_after(text, "MemTotal") != SG_UNKNOWN,
         has_available = procfs_number_after(text, "MemAvailable") != SG_UNKNOWN;
    machine->total_bytes = has_total && observed->is_known ? observed->total_bytes : SG_UNKNOWN;
    machine->ordinary_bytes = has_total && observed->is_known ? observed->at[0].limit_bytes : SG_UNKNOWN;
    machine->available_bytes = has_available && observed->is_known ? observed->at[0].headroom_bytes : SG_UNKNOWN;
    return has_total && has_available && observed->is_known;
}

/* What a constraint has above its reserve; negative below it. */
static int64_t room_of(const struct sg_observed_constraint *constraint)
{
    return (int64_t)constraint->usable_bytes - (int64_t)constraint->reserve_bytes;
}

const struct sg_observed_constraint *model_tightest(const struct sg_observation *observed)
{
    const struct sg_observed_constraint *tightest = &observed->at[0];
    for (uint32_t i = 1; i < observed->count; i++)
        if (room_of(&observed->at[i]) < room_of(tightest))
            tightest = &observed->at[i];
    return tightest;
}

/* Fills usable, reserve and floor, and what could be had of an empty machine. */
static void fill_constraints(struct model_machine *machine, const struct sg_observation *observed)
{
    const struct sg_observed_constraint *tightest = model_tightest(observed);
    machine->usable_bytes = tightest->usable_bytes;
    machine->reserve_bytes = tightest->reserve_bytes;
    machine->floor_bytes = tightest->floor_bytes;
    for (uint32_t i = 0; i < observed->count; i++)
        machine->most_bytes =
            bytes_min(machine->most_bytes, bytes_less(observed->at[i].limit_bytes, observed->at[i].reserve_bytes));
}

/* ---- what the processes say -------------------------------------------------------------------------------------- */

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

/* Takes what running processes published of devices; the detection of unified memory comes from the newest snapshot. */
static void ask_processes(const struct model *model, struct model_machine *machine)
{
    const struct model_job *job;
    const struct model_process *process;
    int64_t latest_ns = -1;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process) {
            const struct sg_machine *seen = &process->machine;
            if (process->state != SG_STATE_RUNNING)
                continue;
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
    const struct model_job *job;
    const struct model_process *process;
    const char *directory = NULL;
    uint64_t device = 0;
    machine->guarded_bytes = model->shared_bytes;
    DL_FOREACH (model->jobs, job)
        DL_FOREACH (job->processes, process) {
            if (process->state != SG_STATE_RUNNING)
                continue;
            uint64_t unaccounted = process->unaccounted_bytes, sum = machine->unaccounted_bytes;
            machine->guarded_bytes = bytes_add(machine->guarded_bytes, model_process_own_bytes(process));
            device = bytes_add(device, bytes_of_device(process, machine->unified));
            if (unaccounted != SG_UNKNOWN)
                machine->unaccounted_bytes = sum == SG_UNKNOWN ? unaccounted : bytes_add(sum, unaccounted);
            if (model_process_is_alone(process) || (directory != NULL && directory != job->directory))
                machine->is_sharing = false;
            directory = job->directory;
        }
    machine->guarded_bytes = bytes_less(machine->guarded_bytes, device);
}

static void add_told(const struct sg_container_figures *container, void *data)
{
    struct model *model = data;
    const uint64_t total = model->observed.total_bytes;
    if (model->told_count < MODEL_TOLD_CAPACITY)
        model->told[model->told_count] = (struct model_told){
            .name = text_copy(container->name, SIZE_MAX),
            .limit_bytes =
                container->limit_bytes != 0 && container->limit_bytes <= total ? container->limit_bytes : SG_UNKNOWN,
            .live_bytes = container->live_bytes <= total ? container->live_bytes : SG_UNKNOWN,
            .promised_bytes = container->promised_bytes};
    model->told_count++;
}

void model_machine_fill(struct model *model)
{
    struct model_machine *machine = &model->machine;
    if (!model->has_observed)
        model_machine_observe(model, -1, NULL);
    const struct sg_observation *observed = &model->observed;
    *machine = (struct model_machine){.unified = -1,
                                      .is_sharing = model->directory_count > 0 && model_directories_are_read(model) &&
                                                    model->other_directory_count == 0 && model->own_directory == NULL &&
                                                    model->veiled_count == 0,
                                      .unaccounted_bytes = SG_UNKNOWN,
                                      .usable_bytes = SG_UNKNOWN,
                                      .reserve_bytes = SG_UNKNOWN,
                                      .floor_bytes = SG_UNKNOWN,
                                      .most_bytes = SG_UNKNOWN,
                                      .device_room_bytes = SG_UNKNOWN,
                                      .cgroup_limit_bytes = cgroup_limit_of(observed),
                                      .promised_bytes = observed->at[0].promised_bytes,
                                      .claimed_bytes = observed->at[0].claimed_bytes,
                                      .limit_left_bytes = observed->left_bytes,
                                      .is_limit_bound = observed->is_limit_bound};
    bool is_known = fill_kernel(machine, observed);
    model->told_count = 0;
    sg_observe_containers(add_told, model);
    ask_processes(model, machine);
    sum_processes(model, machine);
    if (!is_known)
        return;
    machine->device_room_bytes = machine->unified != 0 ? observed->device_bytes : SG_UNKNOWN;
    fill_constraints(machine, observed);
}
