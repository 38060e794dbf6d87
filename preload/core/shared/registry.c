/*
 * registry.c - see registry.h. Takes and releases this process's registry entry, marks dead entries, and queues
 * requests.
 */
#include "shared/registry.h"

#include "base/atomics.h"
#include "shared/same_bytes.h"
#include "shared/registry_file.h"
#include "shared/segment.h"
#include "shared/settings.h"
#include "base/file.h"
#include "base/clock.h"
#include "base/procfs.h"
#include "base/syscall.h"
#include "base/text.h"
#include "shared/job_notice.h"
#include "shared/own_entry.h"
#include "shared/peers.h"

#include <fcntl.h>
#include <string.h>

enum { UNTRIED, SHARING, ALONE };

#define CHECK_NS UINT64_C(500000000) /* interval between checks that the registry's file is still in its place */

static struct {
    uint32_t membership; /* (atomic) UNTRIED, SHARING, ALONE */
    uint64_t retry_ns;
    uint64_t checked_ns;          /* when the registry's file was last checked */
    bool had_no_room;             /* the last attempt to take an entry found none free */
    uint32_t tries;               /* how often the sums of a new entry could not be compared */
    long reserved;                /* the number of the registry entry whose byte is locked, plus one; 0: none */
    struct sg_registry_file file; /* the mapped file; a forked child inherits the mapping */
    uint64_t claim;               /* of the registry entry */
    uint64_t level[SG_ENTRY_LEVELS];
    uint64_t parent_entry, parent_claim; /* of a forked child */
    struct sg_origin origin[SG_ORIGIN_CAPACITY];
} own SG_AT_FORK;

/* ---- the registry entry ------------------------------------------------------------------------------------------ */

static void fill_entry(struct sg_registry_entry *entry)
{
    const struct sg_slot *slot = &sg_own->slot;
    memset((char *)entry + offsetof(struct sg_registry_entry, ticket), 0,
           own.file.entry_bytes - offsetof(struct sg_registry_entry, ticket));
    memset(&entry->slot, 0, sizeof entry->slot);
    entry->slot.abi_version = SG_ABI_VERSION;
    entry->slot.pid = slot->pid;
    entry->slot.start_ticks = slot->start_ticks;
    entry->slot.inherited_bytes = slot->inherited_bytes;
    entry->slot.limit_bytes = slot->limit_bytes;
    entry->slot.job_hash = slot->job_hash;
    entry->slot.flags = slot->flags;
    entry->slot.inherited_promise_bytes = slot->inherited_promise_bytes;
    entry->flight_device = sg_entry_flight_device();
    entry->parent_entry = own.parent_entry;
    entry->parent_claim = own.parent_claim;
    entry->pid_namespace = sg_own->pid_namespace;
    entry->job_run = sg_own->run;
    for (unsigned i = 0; i < SG_ENTRY_LEVELS; i++)
        entry->level[i] = own.level[i];
}

/* Another thread may be changing these ranges. sg_tmpfs_show follows and writes them again. */
static void fill_names(struct sg_registry_entry *names)
{
    memcpy(names->origin, own.origin, sizeof own.origin);
    memcpy(names->file, sg_own->file, sizeof names->file);
    sg_store(&names->file_bytes, sg_load(&sg_own->shared_bytes));
}

void sg_registry_set_levels(const uint64_t *identity, uint32_t count)
{
    struct sg_registry_entry *entry = sg_entry_own();
    for (uint32_t i = 0; i < SG_ENTRY_LEVELS; i++) {
        own.level[i] = i < count ? identity[i] : 0;
        sg_store(&entry->level[i], own.level[i]);
    }
}

/* ---- taking a registry entry ------------------------------------------------------------------------------------- */

/* Locks the byte of the first free registry entry. Returns the entry's number, or -errno. What is set for a job is live
 * and nobody holds its lock: it may have become so before this process had it. */
static long lock_free_entry(int fd)
{
    struct sg_registry *registry = own.file.registry;
    for (uint32_t i = 0; i < SG_ENTRY_CAPACITY; i++) {
        if (SG_CLAIM_STATE(sg_load(&sg_entry_at(registry, i)->claim)) == SG_CLAIM_LIVE)
            continue;
        long result = sg_registry_file_lock(fd, i);
        if (result == 0 && SG_CLAIM_STATE(sg_load(&sg_entry_at(registry, i)->claim)) != SG_CLAIM_LIVE)
            return i;
        if (result == 0)
            sg_registry_file_unlock(fd, i);
        else if (result != -EAGAIN && result != -EACCES) /* the file system has no such locks: no other byte would do */
            return result;
    }
    return -ENOSPC;
}

enum { TRIES_MAX = 8 }; /* sg_registry_join makes one attempt per second */

/* Fills the registry entry before its claim makes other processes count it. Another thread may be in the middle of a
 * change of sums, stopped there or gone by longjmp. After TRIES_MAX failed attempts its change is taken as finished. */
static long use_entry(struct sg_registry_entry *entry)
{
    fill_entry(entry);
    sg_entry_set_own(entry);
    sg_entry_set_registry(own.file.registry);
    fill_names(sg_entry_own_names());
    bool is_reconciled = false;
    for (int i = 0; i < 1000 && !(is_reconciled = sg_entry_reconcile(false)); i++)
        (void)sg_syscall(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
    if (!is_reconciled && ++own.tries > TRIES_MAX)
        is_reconciled = sg_entry_reconcile(true);
    if (is_reconciled)
        return 0;
    sg_entry_set_registry(NULL);
    sg_entry_set_own(NULL);
    return -EAGAIN;
}

/* Publishes the claim. The entry's bytes are added to asked_bytes first, because earlier snapshots of other processes
 * do not include them. Bytes in flight are read before promises: bytes move in that direction, so none is missed. */
static void publish_claim(struct sg_registry_entry *entry, uint64_t generation)
{
    uint64_t in_flight_bytes = sg_load(&sg_own->slot.in_flight_bytes);
    sg_registry_count(in_flight_bytes + sg_load(&sg_own->slot.promised_bytes));
    own.claim = generation << 2 | SG_CLAIM_LIVE;
    sg_store(&entry->claim, own.claim);
}

/* Notes the device memory of an ended owner: the driver keeps it in its pool, or returns it in a moment. Memory that a
 * forked child inherited does not count, because it is not the child's own. After the claim: until then the memory has
 * an owner (pool_room.c). */
static void note_ended(struct sg_registry *registry, const struct sg_registry_entry *entry)
{
    uint64_t granted = sg_load(&entry->slot.granted_bytes), inherited = sg_load(&entry->slot.inherited_bytes);
    uint64_t own_bytes = granted > inherited ? granted - inherited : 0;
    uint64_t bytes = sg_load(&entry->slot.device_bytes);
    bytes = bytes < own_bytes ? bytes : own_bytes;
    if ((sg_load(&entry->slot.flags) & SG_SLOT_UNIFIED) == 0 || bytes == 0)
        return;
    sg_store(&registry->ended_ns, sg_clock_ns(CLOCK_MONOTONIC));
    sg_fetch_add(&registry->pool_proven_bytes, bytes + sg_load(&registry->context_bytes));
}

/* Whether a process is seen to live. One of another PID namespace is not. */
static bool is_seen(uint64_t run, uint64_t pid_namespace)
{
    bool is_here = pid_namespace == 0 || sg_own->pid_namespace == 0 || pid_namespace == sg_own->pid_namespace;
    return run != 0 && is_here && sg_procfs_start_ticks((uint32_t)SG_RUN_PID(run)) == SG_RUN_TICKS(run);
}

/* How many entries a search for dead owners may ask about in all, for the sake of what is set for jobs. Where each job
 * has one entry with what is set, as sparkguard --set makes it, it asks for each entry twice at most. */
enum { ASKED_MAX = 2 * SG_ENTRY_CAPACITY };

/* Whether the job lives for which `entry` has what sparkguard --set has set. A process that has left its entry may live
 * on: it has called exec, and its next entry is not taken yet. So a process that is seen to live becomes the heir of
 * the job's first process. *asked: see ASKED_MAX; then the job is taken to live. */
static bool is_job_alive(struct sg_registry *registry, int fd, struct sg_registry_entry *entry, uint32_t *asked)
{
    uint64_t run = sg_load(&entry->job_run);
    bool is_alive = is_seen(run, entry->pid_namespace);
    for (uint32_t i = 0, used = sg_entry_count(registry); !is_alive && i < used; i++) {
        const struct sg_registry_entry *other = sg_entry_at(registry, i);
        if (other->slot.job_hash != entry->slot.job_hash || sg_settings_are_in(other))
            continue;
        if (++*asked > ASKED_MAX)
            return true;
        uint64_t heir = SG_RUN(other->slot.pid, other->slot.start_ticks);
        bool is_heir = is_seen(heir, other->pid_namespace) && other->pid_namespace == entry->pid_namespace;
        is_alive = is_heir || sg_registry_file_has_owner(fd, i);
        if (is_heir)
            (void)sg_cas_u64(&entry->job_run, &run, heir);
    }
    return is_alive;
}

/* Whether the owner of a live entry has ended. What is set for a job has no owner, and ends with the job: who holds its
 * lock only writes there. */
static bool is_dead(struct sg_registry *registry, int fd, uint32_t number, uint32_t *asked)
{
    struct sg_registry_entry *entry = sg_entry_at(registry, number);
    return sg_settings_are_in(entry) ? !is_job_alive(registry, fd, entry, asked)
                                     : !sg_registry_file_has_owner(fd, number);
}

uint32_t sg_registry_mark_dead_in(struct sg_registry *registry, int fd, const uint64_t *job)
{
    uint32_t used = sg_entry_count(registry), found = 0, asked = 0;
    for (uint32_t i = 0; i < used; i++) {
        struct sg_registry_entry *entry = sg_entry_at(registry, i);
        uint64_t claim = sg_load(&entry->claim);
        if (entry == sg_entry_shared_own() || SG_CLAIM_STATE(claim) != SG_CLAIM_LIVE)
            continue;
        if ((job != NULL && entry->slot.job_hash != *job) || !is_dead(registry, fd, i, &asked))
            continue;
        if (sg_cas_u64(&entry->claim, &claim, (claim & ~UINT64_C(3)) | SG_CLAIM_DEAD)) {
            note_ended(registry, entry);
            found++;
        }
    }
    return found;
}

/* Ends what was set for an earlier run of this process's job. Before this process counts as one of the job. */
static void end_old_settings(int fd)
{
    struct sg_registry *registry = own.file.registry;
    uint32_t number, asked = 0;
    if (SG_LIKELY(sg_load(&registry->settings) == 0))
        return;
    struct sg_registry_entry *entry = sg_settings_find(registry, sg_own->slot.job_hash, &number);
    uint64_t claim = entry != NULL ? sg_load(&entry->claim) : 0;
    if (entry != NULL && SG_CLAIM_STATE(claim) == SG_CLAIM_LIVE && is_dead(registry, fd, number, &asked))
        (void)sg_cas_u64(&entry->claim, &claim, (claim & ~UINT64_C(3)) | SG_CLAIM_DEAD);
}

static uint32_t mark_dead(int fd)
{
    return sg_registry_mark_dead_in(own.file.registry, fd, NULL);
}

/* The decision lock is not held here, so this process may move to another registry meanwhile. The locks on that file
 * say nothing about the entries of this one: the registry is compared again after the file was opened. */
void sg_registry_mark_dead_in_passing(bool is_of_job_only)
{
    struct sg_registry *registry = sg_entry_shared_registry();
    long fd = registry != NULL ? sg_registry_file_open(O_RDONLY) : -ENOENT;
    if (fd < 0)
        return;
    if (sg_registry_file_is_same(&own.file, (int)fd) && registry == sg_entry_shared_registry())
        (void)sg_registry_mark_dead_in(registry, (int)fd, is_of_job_only ? &sg_own->slot.job_hash : NULL);
    (void)sg_sys_close((int)fd);
}

static void drop_entry(void)
{
    sg_entry_set_registry(NULL);
    sg_entry_set_own(NULL);
    sg_store(&own.membership, (uint32_t)UNTRIED);
    sg_fetch_and(&sg_own->slot.flags, ~(uint32_t)SG_SLOT_SHARING);
    own.retry_ns = 0;
    own.reserved = 0;
    own.tries = 0;
}

/* As lock_free_entry(); a full registry is searched for dead owners first. */
static long lock_entry(int fd)
{
    long number = lock_free_entry(fd);
    return number == -ENOSPC && mark_dead(fd) != 0 ? lock_free_entry(fd) : number;
}

/* Locks the byte of one registry entry for the life of this process. Returns the entry's number, or -errno. The lock is
 * kept even if the entry cannot be used at once. One of our threads may have seen the entry and may write to it later,
 * when the entry would otherwise belong to another process. */
static long reserve_entry(int fd)
{
    if (own.reserved != 0)
        return own.reserved - 1;
    long number = lock_entry(fd);
    long result = number >= 0 ? sg_file_keep_open(fd) : number;
    if (result != 0)
        return result;
    own.reserved = number + 1;
    return number;
}

static void note_used(uint32_t number)
{
    uint32_t used = sg_load(&own.file.registry->entry_used);
    while (used < number + 1 && !sg_cas_u32(&own.file.registry->entry_used, &used, number + 1))
        ;
}

static long take_entry(void)
{
    long fd = sg_registry_file_open(O_RDWR);
    if (fd < 0)
        return fd;
    bool is_same = sg_registry_file_is_same(&own.file, (int)fd);
    if (is_same)
        end_old_settings((int)fd);
    else
        own.reserved = 0;
    long number = is_same ? reserve_entry((int)fd) : -ESTALE;
    struct sg_registry_entry *entry = number >= 0 ? sg_entry_at(own.file.registry, (uint32_t)number) : NULL;
    long result = entry != NULL ? use_entry(entry) : number;
    if (entry != NULL && result == 0) {
        note_used((uint32_t)number);
        publish_claim(entry, (sg_load(&entry->claim) >> 2) + 1);
    }
    (void)sg_sys_close((int)fd);
    return result;
}

static void fill_job(struct sg_registry_entry *entry, const struct sg_job_words *words)
{
    fill_entry(entry);
    entry->slot.inherited_bytes = entry->slot.limit_bytes = entry->slot.inherited_promise_bytes = 0;
    entry->slot.flags = SG_SLOT_JOB;
    entry->slot.job_hash = words->job;
    entry->parent_entry = entry->parent_claim = 0;
    entry->published_ns = sg_clock_ns(CLOCK_MONOTONIC);
    entry->job_run = words->run;
    entry->pid_namespace = words->pid_namespace;
    entry->claim_wanted_bytes = words->wanted_bytes;
    entry->claim_place = words->place;
    entry->claim_priority = (uint64_t)words->priority;
    entry->claim_share = words->share;
    entry->set_limit_bytes = words->limit_bytes;
    entry->set_reserve_bytes = words->reserve_bytes;
    entry->set_user = words->user;
}

long sg_registry_add_job(const struct sg_job_words *words, struct sg_registry_entry **entry)
{
    long fd = sg_registry_file_open(O_RDWR);
    if (fd < 0)
        return fd;
    long number = sg_registry_file_is_same(&own.file, (int)fd) ? lock_entry((int)fd) : -ESTALE;
    if (number < 0) {
        (void)sg_sys_close((int)fd);
        return number;
    }
    *entry = sg_entry_at(own.file.registry, (uint32_t)number);
    fill_job(*entry, words);
    note_used((uint32_t)number);
    sg_store(&(*entry)->claim, ((sg_load(&(*entry)->claim) >> 2) + 1) << 2 | SG_CLAIM_LIVE);
    return fd;
}

long sg_registry_enter(void)
{
    long result = sg_registry_file_map(&own.file, true);
    if (result == 0)
        sg_entry_set_registry(own.file.registry);
    return result;
}

long sg_registry_open(void)
{
    long fd = sg_registry_file_open(O_RDWR);
    if (fd < 0 || sg_registry_file_is_same(&own.file, (int)fd))
        return fd;
    (void)sg_sys_close((int)fd);
    return -ESTALE;
}

static void report_alone(long error)
{
    char what[112];
    struct sg_text text = sg_text_begin(what, sizeof what);
    sg_text_add(&text, "not sharing: ");
    sg_text_add(&text, error == -ENOSPC ? "no room in the machine's ledger or in its file system"
                       : error == -EPROTO
                           ? "the machine's ledger is damaged, or another version's that cannot be shared"
                       : error == -EXDEV                     ? "the machine's ledger is in another IPC namespace"
                       : error == -EPERM || error == -EACCES ? "the machine's ledger belongs to somebody else"
                                                             : "the machine's ledger cannot be used; errno ");
    if (error != -ENOSPC && error != -EPROTO && error != -EXDEV && error != -EPERM && error != -EACCES)
        sg_text_add_number(&text, (uint64_t)-error);
    sg_segment_add_event(what);
}

enum sg_registry_step sg_registry_due(void)
{
    uint32_t membership = sg_load(&own.membership);
    if (SG_UNLIKELY(membership == UNTRIED) && sg_segment_is_shared())
        return own.retry_ns == 0 || sg_clock_ns(CLOCK_MONOTONIC) >= own.retry_ns ? SG_REGISTRY_JOIN
                                                                                 : SG_REGISTRY_NOTHING;
    bool is_due = membership == SHARING && sg_clock_ns(CLOCK_MONOTONIC) - own.checked_ns >= CHECK_NS;
    return is_due ? SG_REGISTRY_CHECK : SG_REGISTRY_NOTHING;
}

/* If the mapped file was removed, another one is mapped. The old mapping stays: a thread that was stopped may go on in
 * it. */
static long join_registry(void)
{
    long result = own.file.registry != NULL ? take_entry() : -ESTALE;
    if (result != -ESTALE && result != -ENOENT)
        return result;
    own.file.registry = NULL;
    result = sg_registry_file_map(&own.file, false);
    return result == 0 ? take_entry() : result;
}

/* Whether another attempt may succeed: a descriptor or an entry becomes free, say. */
static bool is_for_now(long error)
{
    return error == -EMFILE || error == -ENFILE || error == -ESTALE || error == -EAGAIN || error == -ENOSPC;
}

/* An event says that there was no room, or that there is by now. */
static void note_room(bool has_room)
{
    if (has_room && own.had_no_room)
        sg_segment_add_event("sharing: there is room in the machine's ledger by now");
    else if (!has_room && !own.had_no_room)
        report_alone(-ENOSPC);
    own.had_no_room = !has_room;
}

void sg_registry_join(void)
{
    if (own.retry_ns != 0 && sg_clock_ns(CLOCK_MONOTONIC) < own.retry_ns)
        return;
    sg_procfs_find_clock_offset();
    long result = join_registry();
    if (result == 0) {
        sg_fetch_or(&sg_own->slot.flags, (uint32_t)SG_SLOT_SHARING);
        own.checked_ns = sg_clock_ns(CLOCK_MONOTONIC);
        sg_store(&own.membership, (uint32_t)SHARING);
        note_room(true);
    } else if (is_for_now(result)) {
        if (result == -ENOSPC)
            note_room(false);
        own.retry_ns = sg_clock_ns(CLOCK_MONOTONIC) + 1000000000u;
    } else {
        report_alone(result);
        sg_store(&own.membership, (uint32_t)ALONE);
    }
}

void sg_registry_leave(void)
{
    struct sg_registry_entry *entry = sg_entry_shared_own();
    if (entry == NULL)
        return;
    sg_store(&entry->claim, (sg_load(&entry->claim) & ~UINT64_C(3)) | SG_CLAIM_EMPTY);
    note_ended(own.file.registry, entry);
    sg_peers_advance();
}

void sg_registry_note_replaced(void)
{
    sg_store(&sg_entry_own()->slot.state, (uint32_t)SG_STATE_REPLACED);
}

/* The entry's byte stayed locked, so no other process has taken the entry. As in publish_claim, the bytes held are
 * added to asked_bytes, because snapshots that other processes made meanwhile do not include them. */
void sg_registry_come_back(void)
{
    struct sg_registry_entry *entry = sg_entry_shared_own();
    if (entry == NULL)
        return;
    uint64_t claim = sg_load(&entry->claim);
    sg_store(&entry->slot.state, (uint32_t)SG_STATE_RUNNING);
    if (SG_CLAIM_STATE(claim) != SG_CLAIM_EMPTY)
        return;
    uint64_t in_flight_bytes = sg_load(&sg_own->slot.in_flight_bytes);
    sg_registry_count(in_flight_bytes + sg_load(&sg_own->slot.promised_bytes));
    (void)sg_cas_u64(&entry->claim, &claim, claim | SG_CLAIM_LIVE);
}

/* Leaves a registry whose file, or whole directory, was removed, because new processes use another one. The old mapping
 * stays: other threads may be using it. */
static bool leave_if_gone(long fd)
{
    bool is_gone = fd >= 0 ? !sg_registry_file_is_same(&own.file, (int)fd) && sg_registry_file_is_directory_ours()
                           : fd == -ENOENT && sg_registry_file_is_in_reach(&own.file);
    own.checked_ns = sg_clock_ns(CLOCK_MONOTONIC);
    if (!is_gone)
        return false;
    sg_registry_leave();
    own.file.registry = NULL;
    drop_entry();
    return true;
}

bool sg_registry_check_place(void)
{
    long fd = sg_registry_file_open(O_RDONLY);
    bool is_in_place = !leave_if_gone(fd) && fd >= 0 && sg_registry_file_is_same(&own.file, (int)fd);
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
    return is_in_place;
}

bool sg_registry_reap(void)
{
    if (sg_load(&own.membership) != SHARING)
        return false;
    long fd = sg_registry_file_open(O_RDONLY);
    bool is_gone = leave_if_gone(fd);
    uint32_t found = fd >= 0 && !is_gone ? mark_dead((int)fd) : 0;
    if (fd >= 0)
        (void)sg_sys_close((int)fd);
    if (found != 0)
        sg_peers_advance();
    return found != 0;
}

void sg_registry_atfork_child(void)
{
    struct sg_registry_entry *parent = sg_entry_shared_own();
    own.parent_entry = parent != NULL ? (uint64_t)own.reserved : 0;
    own.parent_claim = parent != NULL ? own.claim : 0; /* not from the entry: another process may own it by now */
    if (sg_entry_is_changing() && sg_registry_file_unshare(&own.file) == 0)
        parent = NULL;
    sg_job_notice_set_parent(parent != NULL ? &parent->slot.flags : NULL);
    drop_entry();
    if (sg_entry_is_changing())
        own.tries = TRIES_MAX; /* the interrupted change may never end: do not wait for it when joining */
    sg_entry_atfork_child_sums();
    sg_same_bytes_atfork_child();
}

/* `own.origin` is a copy of the parent's list: the memory that the parent has from its ancestors. If the list is full,
 * the two farthest ancestors are joined into one, which counts after the nearer of the two has ended. */
void sg_registry_inherit(uint64_t bytes, uint32_t parent_pid)
{
    if (own.parent_claim != 0) {
        own.origin[SG_ORIGIN_CAPACITY - 2].bytes += own.origin[SG_ORIGIN_CAPACITY - 1].bytes;
        memmove(&own.origin[1], &own.origin[0], (SG_ORIGIN_CAPACITY - 1) * sizeof own.origin[0]);
        own.origin[0] = (struct sg_origin){own.parent_claim, bytes, (uint32_t)own.parent_entry, parent_pid};
    }
    memcpy(sg_own->origin, own.origin, sizeof own.origin);
}

void sg_registry_place(uintptr_t *begin, uintptr_t *end)
{
    *begin = (uintptr_t)sg_entry_shared_registry();
    *end = *begin != 0 ? *begin + SG_REGISTRY_BYTES(own.file.entry_bytes) : 0;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

void sg_registry_announce(uint64_t source, uint64_t bytes)
{
    struct sg_registry *registry = sg_entry_registry();
    struct sg_registry_entry *entry = sg_entry_own();
    sg_store(&entry->queued_bytes, bytes);
    sg_store(&entry->queued_source, source);
    sg_store(&entry->ticket, SG_TICKET_CHOOSING);
    sg_store(&entry->ticket, sg_fetch_add(&registry->asked_bytes, bytes) + SG_TICKET_FIRST);
}

void sg_registry_count(uint64_t bytes)
{
    sg_fetch_add(&sg_entry_registry()->asked_bytes, bytes);
}

bool sg_registry_take(uint64_t bytes, const uint64_t *limit)
{
    struct sg_registry *registry = sg_entry_registry();
    uint64_t limit_place = sg_load(limit);
    if (registry != sg_entry_registry()) /* joining now: the limit may be a place in the other registry's order */
        return false;
    /* A signed difference: asked_bytes may wrap after some years. */
    int64_t distance = (int64_t)(limit_place - sg_load(&registry->asked_bytes));
    if (limit_place == 0 || distance <= 0 || bytes > (uint64_t)distance / 16)
        return false;
    return (int64_t)(limit_place - (sg_fetch_add(&registry->asked_bytes, bytes) + bytes)) >= 0;
}
