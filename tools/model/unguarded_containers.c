/*
 * unguarded_containers.c - see unguarded_containers.h.
 *
 * Pages of files are left out, and shared memory counts as much as the process with the most of it has: the processes
 * of a container mostly share one library and one segment.
 */
#include <string.h>

#include "common/bytes.h"
#include "common/procfs.h"
#include "common/tool.h"
#include "model/unguarded_containers.h"

void model_unguarded_containers_add(struct model_unguarded_sums *sums, const struct model *model,
                                    const struct model_unguarded *process, const char *status)
{
    const struct host_container *record;
    uint64_t anonymous = procfs_kib(procfs_number_after(status, "RssAnon"));
    uint64_t shared = procfs_kib(procfs_number_after(status, "RssShmem"));
    char *id = host_container_id(&model->containers, process->pid, &record);
    size_t at = 0;
    if (id == NULL)
        return;
    while (at < sums->count && strcmp(sums->at[at].id, id) != 0)
        at++;
    if (at == sums->count)
        sums->at = tool_grow(sums->at, sums->count, sizeof *sums->at);
    struct model_unguarded_container *sum = &sums->at[at];
    if (at == sums->count) {
        *sum =
            (struct model_unguarded_container){.id = id, .device_bytes = process->device_bytes, .user = process->user};
        sums->count++;
    } else {
        bool is_known = sum->device_bytes != SG_UNKNOWN && process->device_bytes != SG_UNKNOWN;
        sum->device_bytes = is_known ? bytes_add(sum->device_bytes, process->device_bytes) : SG_UNKNOWN;
    }
    sum->process_count++;
    sum->anonymous_bytes = bytes_add(sum->anonymous_bytes, anonymous == SG_UNKNOWN ? 0 : anonymous);
    sum->shared_bytes = bytes_max(sum->shared_bytes, shared == SG_UNKNOWN ? 0 : shared);
    if (process->resident_bytes >= sum->largest_bytes) {
        sum->largest_bytes = process->resident_bytes;
        sum->largest_pid = process->pid;
        sum->user = process->user;
    }
}

/* The order of the list: the largest first, by what of it is the machine's. */
static uint64_t size_of(const struct model *model, const struct model_unguarded_container *sum)
{
    bool is_apart = model->machine.unified == 0 || sum->device_bytes == SG_UNKNOWN;
    return bytes_add(sum->resident_bytes, is_apart ? 0 : sum->device_bytes);
}

static void explain(const struct model *model, struct model_unguarded_container *sum)
{
    const struct host_container *record = host_containers_find(&model->containers, sum->id);
    sum->name = host_container_name(&model->containers, sum->id);
    sum->reason = host_unguarded_reason(record, sum->largest_pid);
}

void model_unguarded_containers_keep(struct model_unguarded_sums *sums, struct model *model, uint64_t least_bytes)
{
    struct model_unguarded_container *kept = model->unguarded_containers;
    for (size_t i = 0; i < sums->count; i++) {
        struct model_unguarded_container *sum = &sums->at[i];
        size_t place = model->unguarded_container_count;
        sum->resident_bytes = bytes_add(sum->anonymous_bytes, sum->shared_bytes);
        while (place > 0 && size_of(model, &kept[place - 1]) < size_of(model, sum))
            place--;
        if (place == MODEL_UNGUARDED_CAPACITY || size_of(model, sum) < least_bytes)
            continue;
        if (model->unguarded_container_count == MODEL_UNGUARDED_CAPACITY)
            model->unguarded_container_count--;
        memmove(&kept[place + 1], &kept[place], (model->unguarded_container_count - place) * sizeof *kept);
        kept[place] = *sum;
        model->unguarded_container_count++;
    }
    for (size_t i = 0; i < model->unguarded_container_count; i++)
        explain(model, &kept[i]);
}
