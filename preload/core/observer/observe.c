/*
 * observe.c - see observe.h.
 */
#include "observer/observe.h"

#include "account/driver_pool.h"
#include "admit/bounds.h"
#include "admit/headroom.h"
#include "admit/reclaim/pool_room.h"
#include "base/options.h"
#include "base/syscall.h"
#include "shared/claims.h"
#include "shared/container.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/registry.h"
#include "shared/registry_file.h"
#include "shared/same_bytes.h"
#include "shared/segment.h"
#include "shared/settings.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

extern char **environ;

/* In the copy, entries lie as in a registry of this version, whatever version made the file. */
enum { ENTRY_BYTES = sizeof(struct sg_registry_entry) };

static struct sg_registry *copy; /* NULL: there is no memory for it, and nothing is known of other processes */
static bool has_entries;

/* The segment that the file names, while it is copied; NULL: the file is the registry. */
static const char *attached;
static uint64_t attached_bytes;

static bool read_whole(int fd, void *to, size_t bytes, uint64_t at)
{
    size_t read = 0;
    if (attached != NULL) {
        if (at > attached_bytes || bytes > attached_bytes - at)
            return false;
        memcpy(to, attached + at, bytes);
        return true;
    }
    while (read < bytes) {
        long got = sg_sys_pread(fd, (char *)to + read, bytes - read, at + read);
        if (got <= 0)
            return false;
        read += (size_t)got;
    }
    return true;
}

static void make_copy(void)
{
    if (copy != NULL) {
        memset(copy, 0, sizeof *copy + (size_t)sg_entry_count(copy) * ENTRY_BYTES);
        return;
    }
    void *memory = sg_sys_mmap(NULL, SG_REGISTRY_BYTES(ENTRY_BYTES), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    copy = sg_is_error(memory) ? NULL : memory;
}

/* Reads the entries in use. Of another version's entries only the part that all versions share is valid. */
static bool read_entries(int fd, const struct sg_registry *header, uint32_t used)
{
    bool is_this_version = header->version == SG_REGISTRY_VERSION;
    if (is_this_version)
        return read_whole(fd, copy->entry, (size_t)used * ENTRY_BYTES, sizeof *header);
    for (uint32_t i = 0; i < used; i++)
        if (!read_whole(fd, &copy->entry[i], SG_ENTRY_FROZEN_BYTES, sizeof *header + (uint64_t)i * header->entry_bytes))
            return false;
    return true;
}

/* Further ranges of shared memory are read when they are asked for: the caller may have closed the file by then. */
static void keep_open(int registry)
{
    static int kept = -1;
    if (kept >= 0)
        (void)sg_sys_close(kept);
    kept = registry >= 0 ? (int)sg_syscall(SYS_fcntl, registry, F_DUPFD_CLOEXEC, 0, 0, 0, 0) : -1;
    sg_registry_file_read_from(kept);
}

/* Copies the registry, whose bytes are a file's or a segment's. False: it is none that this version can share, and the
 * copy is empty. */
static bool read_bytes(int fd, uint64_t bytes)
{
    static struct sg_registry header; /* static: too large for a small stack */
    if (!read_whole(fd, &header, sizeof header, 0) || !sg_registry_is_usable(&header, bytes))
        return false;
    uint32_t used = sg_entry_count(&header);
    memcpy(copy, &header, sizeof header);
    copy->entry_used = used;
    if (!read_entries(fd, &header, used)) { /* its owner cuts it at this moment */
        memset(copy, 0, sizeof *copy + (size_t)used * ENTRY_BYTES);
        return false;
    }
    sg_entry_note_layout(copy, (struct sg_registry_layout){ENTRY_BYTES, header.version == SG_REGISTRY_VERSION});
    (void)sg_registry_mark_dead_in(copy, fd, NULL);
    return true;
}

static bool read_registry(int fd)
{
    struct stat info = {0};
    struct sg_registry_link link;
    void *address = NULL;
    if (copy == NULL || fd < 0 || sg_sys_fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return false;
    if (sg_registry_link_read(fd, &link) != 0)
        return read_bytes(fd, (uint64_t)info.st_size);
    if (sg_registry_link_attach(&link, info.st_gid, true, &address) != 0)
        return false;
    attached = address;
    attached_bytes = link.bytes;
    bool is_read = read_bytes(fd, link.bytes);
    attached = NULL;
    sg_registry_link_detach(address);
    return is_read;
}

/* Whether processes have found out that device memory is the machine's. */
static bool is_unified(void)
{
    for (uint32_t i = 0; i < sg_observe_count(); i++) {
        const struct sg_registry_entry *entry = sg_observe_entry(i);
        if (entry != NULL && (entry->slot.flags & SG_SLOT_UNIFIED) != 0)
            return true;
    }
    return has_entries && copy->pool_proven_bytes != 0; /* programs that have ended gave it back to the driver */
}

/* Decides as a CUDA program that knows what the running ones have found out. Its context is not counted: it has
 * none. */
static void take_unified(void)
{
    sg_own->slot.flags &= ~(uint32_t)SG_SLOT_UNIFIED; /* of the last observation */
    sg_headroom_set_unified(is_unified() ? 1 : -1, false);
    sg_entry_own()->slot.flags &= ~(uint32_t)SG_SLOT_UNIFIED;
}

/* Reads what is set for the job. `reserve_bytes`: the reserve of those that run, 0: not known. */
static void take_settings(uint64_t reserve_bytes)
{
    static uint64_t observations; /* each copy of the registry is another one */
    sg_entry_registry()->settings = ++observations;
    (void)sg_settings_read();
    if (reserve_bytes != 0)
        sg_store(&sg_settings.reserve_bytes, reserve_bytes);
}

static void fill_constraint(struct sg_observed_constraint *out, uint32_t number)
{
    const struct sg_constraint *constraint = &sg_headroom_last.snapshot.at[number];
    *out = (struct sg_observed_constraint){
        .limit_bytes = constraint->limit_bytes,
        .headroom_bytes = constraint->headroom_bytes,
        .reserve_bytes = constraint->reserve_bytes,
        .floor_bytes = constraint->floor_bytes,
        .promised_bytes = sg_headroom_taken(number, SG_HEADROOM_PROMISES | SG_HEADROOM_NO_CLAIMS),
        .claimed_bytes = sg_headroom_claimed_by_others(number),
        .taken_bytes = sg_headroom_taken(number, SG_HEADROOM_PROMISES | SG_HEADROOM_FLIGHT),
        .usable_bytes = sg_headroom_usable(number, SG_HEADROOM_PROMISES | SG_HEADROOM_FLIGHT, false)};
}

void sg_observe(int registry, const struct sg_observer *observer, struct sg_observation *out)
{
    *out = (struct sg_observation){.left_bytes = UINT64_MAX};
    sg_options_read_quietly(environ);
    sg_bounds_read();
    (void)sg_driver_pool_is_used(); /* what a CUDA program learns at its start */
    make_copy();
    keep_open(registry);
    has_entries = out->has_registry = read_registry(registry);
    out->has_names = has_entries && copy->version == SG_REGISTRY_VERSION;
    sg_own->slot.job_hash = observer->job;
    if (sg_own->pid_namespace == 0) /* whose processes the kernel can be asked about */
        sg_container_describe(sg_own);
    sg_same_bytes_atfork_child(); /* what was gathered belongs to the last copy */
    sg_entry_set_registry(copy);
    take_unified();
    take_settings(observer->reserve_bytes);
    sg_headroom_forget();
    sg_headroom_refresh(0, true);
    const struct sg_snapshot *snapshot = &sg_headroom_last.snapshot;
    if (!snapshot->is_valid)
        return;
    out->is_known = true;
    out->total_bytes = snapshot->total_bytes;
    out->count = snapshot->count;
    for (uint32_t i = 0; i < snapshot->count; i++)
        fill_constraint(&out->at[i], i);
    out->host_bytes = sg_headroom_for_host();
    out->device_bytes = sg_headroom_for_cuda(false, sg_pool_room_for_all(true));
    out->limit_bytes = sg_headroom_limit_bytes();
    out->is_limit_bound = (sg_own->slot.flags & SG_SLOT_LIMIT_BOUND) != 0;
    uint64_t held = sg_headroom_job_bytes(SG_HEADROOM_ALL);
    if (out->limit_bytes != 0)
        out->left_bytes = out->limit_bytes > held ? out->limit_bytes - held : 0;
}

uint32_t sg_observe_count(void)
{
    return has_entries ? sg_entry_count(copy) : 0;
}

const struct sg_registry_entry *sg_observe_entry(uint32_t number)
{
    if (number >= sg_observe_count())
        return NULL;
    const struct sg_registry_entry *entry = sg_entry_at(copy, number);
    return sg_entry_is_live(entry) ? entry : NULL;
}

uint64_t sg_observe_promise(uint32_t number)
{
    return sg_peers_promised_by(number);
}

uint64_t sg_observe_claim_rest(uint32_t number)
{
    return sg_claims_rest(number);
}

uint64_t sg_observe_shared(uint64_t job)
{
    const uint64_t joined = sg_own->slot.job_hash;
    sg_own->slot.job_hash = job;
    sg_same_bytes_count_every_job(job == 0);
    uint64_t bytes = has_entries ? sg_same_bytes_of_job_now() : 0;
    sg_same_bytes_count_every_job(false);
    sg_own->slot.job_hash = joined;
    return bytes;
}

uint64_t sg_observe_held_by(uint64_t job)
{
    return sg_claims_held_by(job);
}

void sg_observe_containers(sg_container_visitor *visitor, void *data)
{
    struct sg_snapshot snapshot = sg_headroom_last.snapshot;
    sg_containers_visit(&snapshot, visitor, data);
}
