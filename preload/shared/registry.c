/*
 * registry.c - see registry.h: the file, the registry entry in it, and who is alive.
 */
#include "shared/registry.h"

#include "base/atomics.h"
#include "shared/foreign.h"
#include "shared/same_bytes.h"
#include "shared/registry_file.h"
#include "shared/segment.h"
#include "base/shared_file.h"
#include "base/syscall.h"
#include "base/text.h"
#include "shared/told.h"
#include "shared/own_entry.h"
#include "shared/peers.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

enum { UNTRIED, SEATED, ALONE };

#define CHECK_NS UINT64_C(500000000) /* so often a process looks whether others still meet in its ledger */

static struct {
    uint32_t standing; /* (atomic) UNTRIED, SEATED, ALONE */
    uint64_t retry_ns;
    uint64_t checked_ns;          /* when the ledger's file was last found in its place */
    uint32_t tries;               /* to sit down */
    long reserved;                /* the number of the registry entry whose byte is locked, plus one; 0: none */
    struct sg_registry_file file; /* as we have it mapped, also in a forked child */
    uint64_t claim;               /* of the registry entry */
    uint64_t level[SG_ENTRY_LEVELS];
    uint64_t parent_entry, parent_claim; /* of a forked child */
    struct sg_origin origin[SG_ORIGIN_CAPACITY];
} own;

/* ---- the registry entry ------------------------------------------------------------------------------------------ */

static void fill_seat(struct sg_registry_entry *entry)
{
    const struct sg_slot *slot = &sg_own->slot;
    memset((char *)entry + offsetof(struct sg_registry_entry, ticket), 0,
           sizeof *entry - offsetof(struct sg_registry_entry, ticket));
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
    for (unsigned i = 0; i < SG_ENTRY_LEVELS; i++)
        entry->level[i] = own.level[i];
    memcpy(entry->origin, own.origin, sizeof own.origin);
    memcpy(entry->file, sg_own->file, sizeof entry->file); /* sg_tmpfs_show follows: a thread may be changing them */
    entry->file_bytes = sg_load(&sg_own->shared_bytes);
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

/* Locks the first registry entry nobody has. Its number, or -errno. */
static long choose_seat(int fd)
{
    struct sg_registry *ledger = own.file.ledger;
    for (uint32_t i = 0; i < SG_ENTRY_CAPACITY; i++) {
        if (SG_CLAIM_STATE(sg_load(&ledger->entry[i].claim)) == SG_CLAIM_LIVE)
            continue;
        long result = sg_registry_file_lock(fd, i);
        if (result == 0)
            return i;
        if (result != -EAGAIN && result != -EACCES) /* a lock that cannot be had at all */
            return result;
    }
    return -ENOSPC;
}

/* Makes the registry entry ours before anybody else counts it. A thread that is in the middle of a change may be parked
 * there, or have left it for good by a longjmp: after a while its change is taken to be over. */
static long sit_down(struct sg_registry_entry *entry)
{
    enum { TRIES_MAX = 8 }; /* a second each */
    fill_seat(entry);
    sg_entry_set_own(entry);
    sg_entry_set_registry(own.file.ledger);
    bool is_right = false;
    for (int i = 0; i < 1000 && !(is_right = sg_entry_reconcile()); i++)
        (void)sg_syscall(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
    if (is_right || ++own.tries > TRIES_MAX)
        return 0;
    sg_entry_set_registry(NULL);
    sg_entry_set_own(NULL);
    return -EAGAIN;
}

/* What the registry entry holds is added to what was ever asked for: looks that others made before do not know of it.
 * In flight first: from there it moves to the promises. */
static void go_live(struct sg_registry_entry *entry, uint64_t generation)
{
    uint64_t flying = sg_load(&sg_own->slot.in_flight_bytes);
    sg_registry_count(flying + sg_load(&sg_own->slot.promised_bytes));
    own.claim = generation << 2 | SG_CLAIM_LIVE;
    sg_store(&entry->claim, own.claim);
}

/* The owner's CUDA memory goes with it, into the driver's pools as a rule. The part that a forked child inherited is
 * not its own. */
static void note_ended(struct sg_registry *ledger, const struct sg_registry_entry *entry)
{
    uint64_t granted = sg_load(&entry->slot.granted_bytes), inherited = sg_load(&entry->slot.inherited_bytes);
    uint64_t own_bytes = granted > inherited ? granted - inherited : 0;
    uint64_t bytes = sg_load(&entry->slot.device_bytes) + sg_load(&entry->pinned_bytes);
    bytes = bytes < own_bytes ? bytes : own_bytes;
    if ((sg_load(&entry->slot.flags) & SG_SLOT_UNIFIED) != 0 && bytes != 0)
        sg_fetch_add(&ledger->ended_bytes, bytes + sg_load(&ledger->context_bytes));
}

/* Of all jobs, or of one. */
static uint32_t mark_dead_of(struct sg_registry *ledger, int fd, const uint64_t *job)
{
    uint32_t used = sg_load(&ledger->entry_used), found = 0;
    for (uint32_t i = 0; i < used && i < SG_ENTRY_CAPACITY; i++) {
        struct sg_registry_entry *entry = &ledger->entry[i];
        uint64_t claim = sg_load(&entry->claim);
        if (entry == sg_entry_shared_own() || SG_CLAIM_STATE(claim) != SG_CLAIM_LIVE)
            continue;
        if ((job != NULL && entry->slot.job_hash != *job) || sg_registry_file_has_owner(fd, i))
            continue;
        if (sg_cas_u64(&entry->claim, &claim, (claim & ~UINT64_C(3)) | SG_CLAIM_DEAD)) {
            note_ended(ledger, entry);
            found++;
        }
    }
    return found;
}

static uint32_t mark_dead(int fd)
{
    return mark_dead_of(own.file.ledger, fd, NULL);
}

/* This process may move to another ledger meanwhile: locks of that one's file say nothing of this one. */
void sg_registry_mark_dead_of_job(void)
{
    struct sg_registry *ledger = sg_entry_shared_registry();
    long fd = ledger != NULL ? sg_registry_file_open(O_RDONLY) : -ENOENT;
    if (fd < 0)
        return;
    if (sg_registry_file_is_same(&own.file, (int)fd) && ledger == sg_entry_shared_registry())
        (void)mark_dead_of(ledger, (int)fd, &sg_own->slot.job_hash);
    (void)sg_sys_close((int)fd);
}

static void stand_up(void)
{
    sg_entry_set_registry(NULL);
    sg_entry_set_own(NULL);
    sg_store(&own.standing, (uint32_t)UNTRIED);
    sg_fetch_and(&sg_own->slot.flags, ~(uint32_t)SG_SLOT_SHARING);
    own.retry_ns = 0;
    own.reserved = 0;
    own.tries = 0;
}

/* The number of a registry entry whose byte is locked for as long as this process lives. It is kept if it cannot be
 * taken at once: a thread of ours may have seen it and write to it later, when it would be somebody else's. */
static long reserve_seat(int fd)
{
    if (own.reserved != 0)
        return own.reserved - 1;
    long number = choose_seat(fd);
    if (number == -ENOSPC && mark_dead(fd) != 0)
        number = choose_seat(fd);
    long result = number >= 0 ? sg_shared_file_keep_open(fd) : number;
    if (result != 0)
        return result;
    own.reserved = number + 1;
    return number;
}

static long take_seat(void)
{
    long fd = sg_registry_file_open(O_RDWR);
    if (fd < 0)
        return fd;
    bool is_same = sg_registry_file_is_same(&own.file, (int)fd);
    if (!is_same)
        own.reserved = 0;
    long number = is_same ? reserve_seat((int)fd) : -ESTALE;
    struct sg_registry_entry *entry = number >= 0 ? &own.file.ledger->entry[number] : NULL;
    long result = entry != NULL ? sit_down(entry) : number;
    if (result == 0) {
        uint32_t used = sg_load(&own.file.ledger->entry_used);
        while (used < (uint32_t)number + 1 && !sg_cas_u32(&own.file.ledger->entry_used, &used, (uint32_t)number + 1))
            ;
        go_live(entry, (sg_load(&entry->claim) >> 2) + 1);
    }
    (void)sg_sys_close((int)fd);
    return result;
}

static void note_alone(long error)
{
    char what[112];
    struct sg_text text = sg_text_begin(what, sizeof what);
    sg_text_add(&text, "not sharing: ");
    sg_text_add(&text, error == -ENOSPC   ? "no room in the machine's ledger or in its file system"
                       : error == -EPROTO ? "the machine's ledger is another version's, whose processes count here"
                       : error == -EPERM || error == -EACCES ? "the machine's ledger belongs to somebody else"
                                                             : "the machine's ledger cannot be used; errno ");
    if (error != -ENOSPC && error != -EPROTO && error != -EPERM && error != -EACCES)
        sg_text_add_number(&text, (uint64_t)-error);
    sg_segment_add_event(what);
}

bool sg_registry_may_join(void)
{
    return SG_UNLIKELY(sg_load(&own.standing) == UNTRIED) && sg_segment_is_shared();
}

static long join_ledger(void)
{
    long result = own.file.ledger != NULL ? take_seat() : -ESTALE;
    if (result != -ESTALE && result != -ENOENT)
        return result;
    sg_told_set_parent(NULL);    /* its entry is in the ledger that goes */
    if (own.file.ledger != NULL) /* somebody has removed the file since */
        (void)sg_sys_munmap(own.file.ledger, SG_REGISTRY_BYTES(SG_ENTRY_CAPACITY));
    own.file.ledger = NULL;
    result = sg_registry_file_map(&own.file);
    return result == 0 ? take_seat() : result;
}

void sg_registry_join(void)
{
    if (own.retry_ns != 0 && sg_clock_ns(CLOCK_MONOTONIC) < own.retry_ns)
        return;
    long result = join_ledger();
    if (result == -EPROTO && !sg_foreign_is_met()) {
        note_alone(result);
        sg_foreign_meet();
        result = join_ledger(); /* the other one */
    }
    if (result == 0) {
        if (!sg_foreign_is_met())
            sg_fetch_or(&sg_own->slot.flags, (uint32_t)SG_SLOT_SHARING);
        own.checked_ns = sg_clock_ns(CLOCK_MONOTONIC);
        sg_store(&own.standing, (uint32_t)SEATED);
    } else if (result == -EMFILE || result == -ENFILE || result == -ESTALE || result == -EAGAIN) {
        own.retry_ns = sg_clock_ns(CLOCK_MONOTONIC) + 1000000000u;
    } else {
        if (!sg_foreign_is_met())
            note_alone(result);
        sg_store(&own.standing, (uint32_t)ALONE);
    }
}

void sg_registry_leave(void)
{
    struct sg_registry_entry *entry = sg_entry_shared_own();
    if (entry == NULL)
        return;
    note_ended(own.file.ledger, entry);
    sg_store(&entry->claim, (sg_load(&entry->claim) & ~UINT64_C(3)) | SG_CLAIM_EMPTY);
    sg_peers_advance();
}

void sg_registry_note_replaced(void)
{
    sg_store(&sg_entry_own()->slot.state, (uint32_t)SG_STATE_REPLACED);
}

/* The byte was locked all the time, so nobody else has sat down. What is held is added to what was ever asked for, as
 * in sit_down: looks that others made meanwhile did not see it. */
void sg_registry_come_back(void)
{
    struct sg_registry_entry *entry = sg_entry_shared_own();
    if (entry == NULL)
        return;
    uint64_t claim = sg_load(&entry->claim);
    sg_store(&entry->slot.state, (uint32_t)SG_STATE_RUNNING);
    if (SG_CLAIM_STATE(claim) != SG_CLAIM_EMPTY)
        return;
    uint64_t flying = sg_load(&sg_own->slot.in_flight_bytes);
    sg_registry_count(flying + sg_load(&sg_own->slot.promised_bytes));
    (void)sg_cas_u64(&entry->claim, &claim, claim | SG_CLAIM_LIVE);
}

/* The file or its whole directory was removed: newcomers meet in another one. The mapping may be in use: it stays. */
static bool leave_if_gone(long fd)
{
    bool is_gone = fd >= 0 ? !sg_registry_file_is_same(&own.file, (int)fd) && sg_registry_file_is_directory_ours()
                           : fd == -ENOENT && sg_registry_file_is_in_reach(&own.file);
    own.checked_ns = sg_clock_ns(CLOCK_MONOTONIC);
    if (!is_gone)
        return false;
    sg_registry_leave();
    own.file.ledger = NULL;
    stand_up();
    return true;
}

bool sg_registry_is_check_due(void)
{
    return sg_load(&own.standing) == SEATED && sg_clock_ns(CLOCK_MONOTONIC) - own.checked_ns >= CHECK_NS;
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
    if (sg_load(&own.standing) != SEATED)
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

void sg_registry_refork(void)
{
    struct sg_registry_entry *parent = sg_entry_shared_own();
    own.parent_entry = parent != NULL ? (uint64_t)(parent - own.file.ledger->entry) + 1 : 0;
    own.parent_claim = parent != NULL ? own.claim : 0; /* the registry entry may be somebody else's by now */
    sg_told_set_parent(parent != NULL ? &parent->slot.flags : NULL);
    stand_up();
    sg_entry_refork_sums();
    sg_foreign_refork();
    sg_same_bytes_refork();
}

/* `own` is a copy of the parent's: the list is what the parent has from its own ancestors. Where it is full, the two
 * farthest become one, which counts when the nearer of them is gone. */
void sg_registry_inherit(uint64_t bytes, uint32_t parent_pid)
{
    if (own.parent_claim != 0) {
        own.origin[SG_ORIGIN_CAPACITY - 2].bytes += own.origin[SG_ORIGIN_CAPACITY - 1].bytes;
        memmove(&own.origin[1], &own.origin[0], (SG_ORIGIN_CAPACITY - 1) * sizeof own.origin[0]);
        own.origin[0] = (struct sg_origin){own.parent_claim, bytes, (uint32_t)own.parent_entry, parent_pid};
    }
    memcpy(sg_own->origin, own.origin, sizeof own.origin);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

void sg_registry_announce(uint64_t pool, uint64_t bytes)
{
    struct sg_registry *ledger = sg_entry_registry();
    struct sg_registry_entry *entry = sg_entry_own();
    sg_store(&entry->queued_bytes, bytes);
    sg_store(&entry->queued_source, pool);
    sg_store(&entry->ticket, SG_TICKET_CHOOSING);
    sg_store(&entry->ticket, sg_fetch_add(&ledger->asked_bytes, bytes) + SG_TICKET_FIRST);
}

void sg_registry_withdraw(void)
{
    sg_store(&sg_entry_own()->ticket, SG_TICKET_NONE);
}

void sg_registry_count(uint64_t bytes)
{
    sg_fetch_add(&sg_entry_registry()->asked_bytes, bytes);
}

bool sg_registry_take(uint64_t bytes, const uint64_t *limit)
{
    struct sg_registry *ledger = sg_entry_registry();
    uint64_t most = sg_load(limit);
    if (ledger != sg_entry_registry()) /* this process is joining: the place is one in the other ledger's order */
        return false;
    int64_t left = (int64_t)(most - sg_load(&ledger->asked_bytes)); /* the count may wrap, in some years */
    if (most == 0 || left <= 0 || bytes > (uint64_t)left / 16)
        return false;
    return (int64_t)(most - (sg_fetch_add(&ledger->asked_bytes, bytes) + bytes)) >= 0;
}
