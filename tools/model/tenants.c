/*
 * tenants.c - see tenants.h. Reads the registry without a lock, as all tools do: each word is true by itself.
 */
#define _GNU_SOURCE
#include "model/tenants.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/tool.h"
#include "sparkguard_abi.h"
#include "sparkguard_options.h"

/* A copy of the registry's entries in use. */
struct entries {
    char *bytes;
    size_t count, entry_bytes;
};

/* Returns an entry. Only its first SG_ENTRY_FROZEN_BYTES are valid. */
static const struct sg_registry_entry *entry_at(const struct entries *entries, size_t number)
{
    return (const struct sg_registry_entry *)(const void *)(entries->bytes + number * entries->entry_bytes);
}

static bool read_entries(struct entries *entries, int fd)
{
    struct stat status;
    struct sg_registry *header = tool_allocate(1, sizeof *header);
    *entries = (struct entries){0};
    bool is_usable = fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
                     pread(fd, header, sizeof *header, 0) == (ssize_t)sizeof *header &&
                     sg_registry_is_usable(header, (uint64_t)status.st_size);
    if (is_usable) {
        entries->count = bytes_min(header->entry_used, SG_ENTRY_CAPACITY);
        entries->entry_bytes = header->entry_bytes;
    }
    free(header);
    size_t length = entries->count * entries->entry_bytes;
    entries->bytes = tool_allocate(length + sizeof(struct sg_registry_entry), 1);
    return is_usable && pread(fd, entries->bytes, length, sizeof *header) == (ssize_t)length;
}

/* Returns whether the entry has an owner: a killed one's claim is LIVE until a guarded process notices. */
static bool is_owned(int fd, size_t number)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t)number, .l_len = 1};
    return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static bool is_live(const struct sg_registry_entry *entry)
{
    return SG_CLAIM_STATE(entry->claim) == SG_CLAIM_LIVE;
}

static uint64_t used_by(const struct entries *entries, uint64_t job)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < entries->count; i++) {
        const struct sg_registry_entry *entry = entry_at(entries, i);
        bool counts = is_live(entry) && entry->slot.job_hash == job &&
                      (entry->slot.flags & (SG_SLOT_CLAIM | SG_SLOT_HELPER)) == 0 &&
                      entry->slot.state != SG_STATE_REPLACED;
        if (counts)
            sum = bytes_add(sum, bytes_add(bytes_less(entry->slot.granted_bytes, entry->slot.inherited_bytes),
                                           entry->slot.in_flight_bytes));
    }
    return sum;
}

uint64_t model_claims_used_by(int fd, const char *job)
{
    struct entries entries;
    uint64_t used = read_entries(&entries, fd) ? used_by(&entries, sg_hash_text(job)) : UINT64_MAX;
    free(entries.bytes);
    return used;
}

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

static void *grow(void *array, size_t count, size_t element_bytes)
{
    void *grown = reallocarray(array, count, element_bytes);
    if (grown == NULL)
        tool_end_without_memory();
    return grown;
}

static void add_claim(struct model_claims *claims, const struct sg_registry_entry *entry, const char *path)
{
    bool is_queued = entry->claim_wanted_bytes != 0;
    claims->at = grow(claims->at, claims->count + 1, sizeof *claims->at);
    claims->at[claims->count++] =
        (struct model_claim){.directory = path,
                             .job_hash = entry->slot.job_hash,
                             .pid = entry->slot.pid,
                             .bytes = is_queued ? entry->claim_wanted_bytes : entry->claimed_bytes,
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
    claims->settings = grow(claims->settings, claims->setting_count + 1, sizeof *claims->settings);
    claims->settings[claims->setting_count++] =
        (struct model_setting){.directory = path,
                               .job_hash = entry->slot.job_hash,
                               .limit_bytes = entry->set_limit_bytes,
                               .reserve_bytes = entry->set_reserve_bytes,
                               .user = entry->set_user != 0 ? entry->set_user - 1 : 0};
}

/* Fills what is left of the granted claims from `first` on, and the positions of the others. */
static void fill_rest(struct model_claims *claims, size_t first, const struct entries *entries)
{
    uint64_t position = 0;
    for (size_t i = first; i < claims->count; i++) {
        struct model_claim *claim = &claims->at[i];
        if (claim->is_queued) {
            claim->queue_position = ++position;
            continue;
        }
        uint64_t used = used_by(entries, claim->job_hash);
        for (size_t k = first; k < i; k++) /* a job's earlier claims have taken their part */
            if (claims->at[k].job_hash == claim->job_hash)
                used = bytes_less(used, claims->at[k].bytes);
        claim->rest_bytes = bytes_less(claim->bytes, used);
    }
}

void model_claims_read(struct model_claims *claims, int directory, const char *path)
{
    struct entries entries;
    size_t first = claims->count;
    int fd = openat(directory, SG_REGISTRY_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (read_entries(&entries, fd)) {
        for (size_t i = 0; i < entries.count; i++) {
            const struct sg_registry_entry *entry = entry_at(&entries, i);
            bool is_claim = is_live(entry) && (entry->slot.flags & SG_SLOT_CLAIM) != 0 &&
                            (entry->claimed_bytes != 0 || entry->claim_wanted_bytes != 0);
            bool is_set = is_live(entry) && (entry->set_limit_bytes != 0 || entry->set_reserve_bytes != 0);
            if (is_claim && is_owned(fd, i))
                add_claim(claims, entry, path);
            if (is_set && is_owned(fd, i))
                add_setting(claims, entry, path);
        }
        if (claims->count > first)
            qsort(claims->at + first, claims->count - first, sizeof *claims->at, compare);
        fill_rest(claims, first, &entries);
    }
    free(entries.bytes);
    close(fd);
}

struct model_job_claims model_claims_of(const struct model_claims *claims, const char *job, const char *directory)
{
    struct model_job_claims of = {.share = SG_SHARE_MIN};
    uint64_t hash = sg_hash_text(job);
    for (size_t i = 0; i < claims->count; i++) {
        const struct model_claim *claim = &claims->at[i];
        if (claim->job_hash != hash || strcmp(claim->directory, directory) != 0)
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

struct model_setting model_claims_setting_of(const struct model_claims *claims, const char *job, const char *directory)
{
    uint64_t hash = sg_hash_text(job);
    for (size_t i = 0; i < claims->setting_count; i++)
        if (claims->settings[i].job_hash == hash && strcmp(claims->settings[i].directory, directory) == 0)
            return claims->settings[i];
    return (struct model_setting){0};
}

const char *model_claims_state(const struct model_job_claims *claims)
{
    return claims->is_held ? "held" : claims->queue_position != 0 ? "queued" : "none";
}

void model_claims_free(struct model_claims *claims)
{
    free(claims->at);
    free(claims->settings);
    *claims = (struct model_claims){0};
}
