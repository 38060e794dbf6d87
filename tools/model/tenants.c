/*
 * tenants.c - see tenants.h.
 */
#include "model/tenants.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/bytes.h"
#include "common/command.h"
#include "common/procfs.h"
#include "common/text.h"
#include "common/tool.h"
#include "model/model.h"
#include "observer/observe.h"
#include "shared/settings.h"
#include "sparkguard_abi.h"
#include "sparkguard_options.h"

/* Sorts granted claims first, by place; then the queue in its order. */
static int compare(const void *left, const void *right)
{
    const struct model_claim *a = left, *b = right;
    if (a->is_queued != b->is_queued)
        return a->is_queued ? 1 : -1;
    if (a->is_queued && a->priority != b->priority)
        return a->priority > b->priority ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

static void add_claim(struct model_claims *claims, uint32_t number, const char *path)
{
    const struct sg_registry_entry *entry = sg_observe_entry(number);
    bool is_queued = entry->claim_wanted_bytes != 0;
    claims->at = tool_grow(claims->at, claims->count, sizeof *claims->at);
    claims->at[claims->count++] =
        (struct model_claim){.directory = path,
                             .job_hash = entry->slot.job_hash,
                             .pid = entry->slot.pid,
                             .start_ticks = entry->slot.start_ticks,
                             .bytes = is_queued ? entry->claim_wanted_bytes : entry->claimed_bytes,
                             .rest_bytes = is_queued ? 0 : sg_observe_claim_rest(number),
                             .is_queued = is_queued,
                             .priority = (int64_t)entry->claim_priority,
                             .place = entry->claim_place,
                             .share = bytes_max(bytes_min(entry->claim_share, SG_SHARE_MAX), SG_SHARE_MIN)};
}

static void add_setting(struct model_claims *claims, const struct sg_registry_entry *entry, const char *path)
{
    for (size_t i = 0; i < claims->setting_count; i++)
        if (claims->settings[i].job_hash == entry->slot.job_hash && claims->settings[i].directory == path)
            return;
    claims->settings = tool_grow(claims->settings, claims->setting_count, sizeof *claims->settings);
    claims->settings[claims->setting_count++] =
        (struct model_setting){.directory = path,
                               .job_hash = entry->slot.job_hash,
                               .limit_bytes = entry->set_limit_bytes,
                               .reserve_bytes = entry->set_reserve_bytes,
                               .user = entry->set_user != 0 ? entry->set_user - 1 : 0};
}

void model_claims_observe(struct model_claims *claims, const char *path)
{
    const size_t first = claims->count;
    uint64_t position = 0;
    for (uint32_t i = 0; i < sg_observe_count(); i++) {
        const struct sg_registry_entry *entry = sg_observe_entry(i);
        if (entry != NULL && (entry->slot.flags & SG_SLOT_JOB) != 0 &&
            (entry->claimed_bytes != 0 || entry->claim_wanted_bytes != 0))
            add_claim(claims, i, path);
        if (entry != NULL && sg_settings_are_in(entry))
            add_setting(claims, entry, path);
    }
    if (claims->count > first)
        qsort(claims->at + first, claims->count - first, sizeof *claims->at, compare);
    for (size_t i = first; i < claims->count; i++)
        claims->at[i].queue_position = claims->at[i].is_queued ? ++position : 0;
}

void model_claims_name(struct model_claims *claims, const char *path, const struct model_process *process)
{
    for (size_t i = 0; i < claims->count; i++) {
        struct model_claim *claim = &claims->at[i];
        if (claim->job_hash != process->job_hash || strcmp(claim->directory, path) != 0)
            continue;
        if (process->job[0] != '\0')
            claim->job = process->job;
        if (process->pid == claim->pid && process->start_ticks == claim->start_ticks)
            claim->command = process->command;
    }
}

/* A small program leaves no record. Its name of the job is believed if it makes the job's hash. */
static void name_by_kernel(struct model_claim *claim)
{
    struct procfs_stat stat;
    struct stat status;
    char *path = text_format("%s/proc/%" PRIu32, procfs_live_root, claim->pid);
    if (procfs_stat(claim->pid, &stat) != 0 || stat.start_ticks != claim->start_ticks || lstat(path, &status) != 0)
        return;
    char *job = host_variable(claim->pid, sg_option_table[SG_OPTION_JOB].variable);
    if (job != NULL && (sg_job_hash(job, status.st_uid) == claim->job_hash || sg_job_hash(job, 0) == claim->job_hash))
        claim->job = job;
    char *command = host_command(claim->pid);
    char *inside = command != NULL ? command_in_claim(command) : NULL;
    claim->command = inside != NULL ? inside : command;
}

void model_claims_name_rest(struct model_claims *claims)
{
    for (size_t i = 0; i < claims->count; i++)
        if (claims->at[i].job == NULL || claims->at[i].command == NULL)
            name_by_kernel(&claims->at[i]);
}

struct model_job_claims model_claims_of(const struct model_claims *claims, const struct model_job *job)
{
    struct model_job_claims of = {.share = SG_SHARE_MIN};
    for (size_t i = 0; i < claims->count; i++) {
        const struct model_claim *claim = &claims->at[i];
        if (claim->job_hash != job->hash || strcmp(claim->directory, job->directory) != 0)
            continue;
        of.is_held = of.is_held || !claim->is_queued;
        of.share = bytes_max(of.share, claim->share);
        of.rest_bytes = bytes_add(of.rest_bytes, claim->rest_bytes);
        if (!claim->is_queued || (!of.is_held && of.queue_position == 0))
            of.bytes = bytes_add(of.bytes, claim->bytes);
        if (claim->is_queued && of.queue_position == 0)
            of.queue_position = claim->queue_position;
    }
    return of;
}

struct model_setting model_claims_setting_of(const struct model_claims *claims, const struct model_job *job)
{
    for (size_t i = 0; i < claims->setting_count; i++)
        if (claims->settings[i].job_hash == job->hash && strcmp(claims->settings[i].directory, job->directory) == 0)
            return claims->settings[i];
    return (struct model_setting){0};
}

const char *model_claims_state(const struct model_job_claims *claims)
{
    return claims->is_held ? "held" : claims->queue_position != 0 ? "queued" : "none";
}
