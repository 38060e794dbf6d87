/*
 * peers.c - see peers.h.
 */
#include "shared/peers.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "shared/foreign.h"
#include "base/procfs.h"
#include "shared/same_bytes.h"
#include "shared/segment.h"
#include "base/syscall.h"
#include "shared/own_entry.h"

#include <linux/futex.h>
#include <string.h>

/* Larger than any machine: sums of what hostile or torn registry entries say stay far from wrapping. */
#define MOST_BYTES (UINT64_C(1) << 52)

/* A watchdog that has looked within this time is alive and not stopped. */
#define WATCHED_NS UINT64_C(1000000000)
#define AHEAD_NS UINT64_C(10000000000) /* of `now`: more is no time of this clock, and would be good for ever */

/* Promises below this are believed as they stand. */
#define WORTH_A_LOOK (UINT64_C(1) << 20)

/* Stacks and the like grow without a promise: so much for each thread. */
#define UNPROMISED_BYTES (UINT64_C(1) << 20)

/* How long a request in flight is waited for: then its owner is stopped, or its driver hangs. */
#define STALLED_NS UINT64_C(3000000000)

static void add(uint64_t *sum, uint64_t bytes)
{
    *sum += bytes < MOST_BYTES ? bytes : MOST_BYTES;
    if (*sum > MOST_BYTES)
        *sum = MOST_BYTES;
}

/* One other registry entry, read in the order in which bytes move: asked for, in flight, promised. */
struct other {
    uint64_t ticket, queued_before_bytes, queued_after_bytes, queued_source;
    uint64_t flight_bytes, bounded_bytes, unbounded_bytes, discrete_bytes;
    bool is_stalled;
    struct sg_named promised, granted; /* what is in doubt counts as in flight: it is worth waiting for */
    uint64_t changing_version;         /* of its ranges, where something is in doubt; else 0 */
};

/* The promises of dead parents that were counted, on the machine and in each of our cgroups. A promise that finds no
 * place counts every time. */
enum { PARENTS_MAX = 256 };
struct heritage {
    uint64_t identity; /* of the parent */
    uint64_t bytes;
};
static struct heritage_set {
    struct heritage of[PARENTS_MAX];
    uint32_t count;
} counted[1 + SG_ENTRY_LEVELS];

/* Who is choosing has a ticket in two instructions. Who has stopped between them is taken to stand before us. */
static uint64_t read_ticket(const struct sg_registry_entry *entry)
{
    uint64_t ticket = sg_load(&entry->ticket);
    for (int i = 0; i < 1000 && ticket == SG_TICKET_CHOOSING; i++)
        ticket = sg_load(&entry->ticket);
    return ticket;
}

static bool is_before(uint64_t ticket, uint64_t mine)
{
    return ticket == SG_TICKET_CHOOSING || mine == SG_TICKET_NONE || (int64_t)(ticket - mine) < 0;
}

/* How much more anonymous memory a quiet process has now than when it last looked at its promises: so much less of them
 * is outstanding. 0 where it cannot be seen: in another PID namespace, or memory that is not anonymous. */
static uint64_t growth_of(const struct sg_registry_entry *entry, uint64_t then)
{
    const struct sg_slot *slot = &entry->slot;
    uint64_t now = sg_procfs_anonymous_bytes(slot->pid), unpromised = UNPROMISED_BYTES * sg_procfs_threads(slot->pid);
    bool is_known = slot->start_ticks != 0 && sg_procfs_start_ticks(slot->pid) == slot->start_ticks;
    return is_known && then != 0 && now > then + unpromised ? now - then - unpromised : 0;
}

static struct other read_seat(uint32_t number, struct sg_registry_entry *entry, uint64_t mine)
{
    struct other other = {0};
    other.ticket = read_ticket(entry);
    if (other.ticket != SG_TICKET_NONE) {
        *(is_before(other.ticket, mine) ? &other.queued_before_bytes : &other.queued_after_bytes) =
            sg_load(&entry->queued_bytes);
        other.queued_source = sg_load(&entry->queued_source);
    }
    other.flight_bytes = sg_load(&entry->slot.in_flight_bytes);
    other.bounded_bytes = sg_load(&entry->bounded_flight_bytes);
    other.unbounded_bytes = sg_load(&entry->unbounded_flight_bytes);
    other.discrete_bytes = sg_load(&entry->device_flight_bytes);
    other.changing_version = sg_same_bytes_read(number, entry, &other.promised, &other.granted);
    return other;
}

/* Counts it, and returns what of it had not been counted before. */
static uint64_t see_anew(struct heritage_set *set, struct heritage heritage)
{
    for (uint32_t i = 0; i < set->count; i++) {
        uint64_t before = set->of[i].bytes;
        if (set->of[i].identity != heritage.identity)
            continue;
        if (before < heritage.bytes)
            set->of[i].bytes = heritage.bytes;
        return before < heritage.bytes ? heritage.bytes - before : 0;
    }
    if (set->count < PARENTS_MAX)
        set->of[set->count++] = heritage;
    return heritage.bytes;
}

/* What the owner's parent was promised before the fork, if it is gone: equal names mean the same parent. */
static struct heritage heritage_of(const struct sg_registry_entry *entry)
{
    struct heritage heritage = {0, sg_load(&entry->slot.inherited_promise_bytes)};
    uint64_t number = entry->parent_entry, claim = entry->parent_claim;
    bool has_parent = number != 0 && number <= SG_ENTRY_CAPACITY && SG_CLAIM_STATE(claim) == SG_CLAIM_LIVE &&
                      sg_load(&sg_entry_registry()->entry[number - 1].claim) == claim;
    if (heritage.bytes != 0 && !has_parent)
        heritage.identity = claim << 12 | number;
    return heritage;
}

/* A parent that is unknown, or alive: nothing tells who else has what it promised, or it counts that itself. */
static uint64_t heritage_anew(struct heritage_set *set, const struct sg_registry_entry *entry)
{
    struct heritage heritage = heritage_of(entry);
    return heritage.identity != 0 ? see_anew(set, heritage) : 0;
}

/* Our own inherited promises is with what the others have: it is no promise of ours. */
static void see_own_heritage(struct sg_peers *peers)
{
    const struct sg_registry_entry *own = sg_entry_own();
    for (uint32_t i = 0; i <= SG_ENTRY_LEVELS; i++) {
        counted[i].count = 0;
        add(i == 0 ? &peers->machine.held_bytes : &peers->level[i - 1].held_bytes, heritage_anew(&counted[i], own));
    }
}

static void add_flight(struct sg_peer_sums *sum, const struct other *other, uint64_t bytes)
{
    add(&sum->flight_bytes, bytes);
    if (other->is_stalled)
        add(&sum->stalled_bytes, bytes);
}

/* Who stands still in front of us counts as granted, and nobody waits for him. */
static void add_asking(struct sg_peer_sums *sum, const struct other *other)
{
    if (other->is_stalled) {
        add_flight(sum, other, other->queued_before_bytes);
        add(&sum->queued_after_bytes, other->queued_after_bytes);
        return;
    }
    add(&sum->queued_before_bytes, other->queued_before_bytes);
    add(&sum->queued_after_bytes, other->queued_after_bytes);
}

/* The part that nothing else has a name for. */
static uint64_t own_part_of(const struct sg_named *named)
{
    return named->bytes - named->by_name_bytes - named->in_doubt_bytes;
}

static void add_promises(struct sg_peer_sums *sum, const struct other *other)
{
    add(&sum->held_bytes, own_part_of(&other->promised));
    add_flight(sum, other, other->promised.in_doubt_bytes);
}

static void add_to_machine(struct sg_peers *peers, struct sg_registry_entry *entry, const struct other *other)
{
    bool is_bounded = other->queued_source == SG_POOL_BOUNDED;
    if (is_bounded || other->queued_source == SG_POOL_UNBOUNDED)
        add_asking(&peers->machine, other);
    add_flight(&peers->machine, other, other->bounded_bytes);
    add_flight(&peers->machine, other, other->unbounded_bytes);
    add_promises(&peers->machine, other);
    add(&peers->machine.held_bytes, heritage_anew(&counted[0], entry));
    const struct sg_registry_entry *mine = sg_entry_own();
    for (unsigned i = 0; i < SG_ENTRY_LEVELS && mine->level[i] != 0; i++) {
        if (!sg_entry_is_member(entry, mine->level[i]))
            continue;
        if (is_bounded)
            add_asking(&peers->level[i], other);
        add_flight(&peers->level[i], other, other->bounded_bytes);
        add_promises(&peers->level[i], other);
        add(&peers->level[i].held_bytes, heritage_anew(&counted[1 + i], entry));
    }
}

static void add_to_job(struct sg_peers *peers, const struct sg_slot *slot, const struct other *other)
{
    uint64_t own = own_part_of(&other->granted), inherited = sg_load(&slot->inherited_bytes), limit = slot->limit_bytes;
    add(&peers->job.held_bytes, own > inherited ? own - inherited : 0);
    add(&peers->job_sparse_bytes, sg_load(&slot->sparse_bytes));
    add_flight(&peers->job, other, other->granted.in_doubt_bytes);
    add_flight(&peers->job, other, other->flight_bytes);
    add_asking(&peers->job, other);
    if (limit != 0 && (peers->job_limit_bytes == 0 || limit < peers->job_limit_bytes))
        peers->job_limit_bytes = limit;
}

static void add_to_device(struct sg_peers *peers, struct sg_registry_entry *entry, const struct other *other,
                          uint64_t device)
{
    uint64_t flying = sg_load(&entry->flight_device);
    if (other->queued_source == device)
        add_asking(&peers->device, other);
    if (flying == device || flying == SG_UNKNOWN)
        add_flight(&peers->device, other, other->discrete_bytes);
}

/* What this process saw last of requests under way. */
static struct sight {
    uint64_t claim, ticket, flight_bytes, landed_count, changing_version;
    uint64_t since_ns;
} sight[2 * SG_ENTRY_CAPACITY]; /* those of another version's ledger behind ours */

static bool is_stalled(uint32_t number, const struct sg_registry_entry *entry, const struct other *other, uint64_t now)
{
    struct sight *last = &sight[number];
    struct sight here = {sg_load(&entry->claim),  other->ticket,
                         other->flight_bytes,     sg_load(&entry->slot.landed_count),
                         other->changing_version, last->since_ns};
    if (memcmp(last, &here, sizeof here) != 0) {
        *last = here;
        last->since_ns = now;
    }
    bool is_under_way = other->flight_bytes != 0 || other->ticket != SG_TICKET_NONE || other->changing_version != 0;
    return is_under_way && now - last->since_ns >= STALLED_NS;
}

/* Anonymous memory has grown: no file's promise is less for that. */
static void take_off_growth(struct other *other, uint64_t growth)
{
    uint64_t anonymous = own_part_of(&other->promised);
    other->promised.bytes -= growth < anonymous ? growth : anonymous;
}

/* What is asked of the others, and when. */
struct question {
    struct sg_peers *peers;
    uint64_t device, ticket, job, now;
};

static void count(const struct question *question, struct sg_registry_entry *entry, const struct other *other)
{
    struct sg_peers *peers = question->peers;
    add_to_machine(peers, entry, other);
    if (question->device != 0)
        add_to_device(peers, entry, other, question->device);
    if (entry->slot.job_hash == question->job)
        add_to_job(peers, &entry->slot, other);
    add(&peers->device_bytes, sg_load(&entry->slot.device_bytes));
    add(&peers->cuda_bytes, sg_load(&entry->pinned_bytes));
    add(&peers->cuda_bytes, sg_load(&entry->managed_bytes));
    peers->is_reclaiming |= sg_load(&entry->reclaim_until_ns) > question->now;
}

/* Our places in the order mean nothing there: who asks stands before us if the ledger of the first name is theirs, else
 * behind. */
static void count_foreign(void *context, uint32_t number, struct sg_registry_entry *entry)
{
    const struct question *question = context;
    struct other other = read_seat(SG_ENTRY_CAPACITY, entry, SG_TICKET_NONE);
    question->peers->foreign_bytes += sg_foreign_bytes_of(entry);
    if (!sg_foreign_is_met()) {
        other.queued_after_bytes = other.queued_before_bytes;
        other.queued_before_bytes = 0;
    }
    other.is_stalled = is_stalled(SG_ENTRY_CAPACITY + number % SG_ENTRY_CAPACITY, entry, &other, question->now);
    uint64_t before = question->peers->job.held_bytes;
    count(question, entry, &other);
    question->peers->job_foreign_bytes += question->peers->job.held_bytes - before;
}

/* The bytes that all have together by the names of shared memory and of parents, and we have not. */
static void add_same_bytes(struct sg_peers *peers)
{
    add(&peers->machine.held_bytes, sg_same_bytes_promised(SG_SAME_ON_MACHINE));
    for (unsigned i = 0; i < SG_ENTRY_LEVELS; i++)
        add(&peers->level[i].held_bytes, sg_same_bytes_promised(SG_SAME_IN_LEVEL + i));
    add(&peers->job.held_bytes, sg_same_bytes_held_by_job());
    add(&peers->job.held_bytes, sg_same_bytes_inherited_by_job());
}

void sg_peers_sum(struct sg_peers *peers, uint64_t device, bool is_closely)
{
    struct sg_registry *ledger = sg_entry_registry();
    struct sg_registry_entry *own = sg_entry_own();
    struct question question = {.peers = peers,
                                .device = device,
                                .ticket = sg_load(&own->ticket),
                                .job = sg_own->slot.job_hash,
                                .now = sg_clock_ns(CLOCK_MONOTONIC)};
    uint32_t used = sg_load(&ledger->entry_used);
    memset(peers, 0, sizeof *peers);
    see_own_heritage(peers);
    sg_same_bytes_gather();
    for (uint32_t i = 0; i < used && i < SG_ENTRY_CAPACITY; i++) {
        struct sg_registry_entry *entry = &ledger->entry[i];
        if (entry == own || SG_CLAIM_STATE(sg_load(&entry->claim)) != SG_CLAIM_LIVE)
            continue;
        uint64_t published = sg_load(&entry->published_ns), scanned = sg_load(&entry->scanned_anonymous_bytes);
        uint64_t growth =
            is_closely && sg_load(&entry->slot.promised_bytes) >= WORTH_A_LOOK ? growth_of(entry, scanned) : 0;
        struct other other = read_seat(i, entry, question.ticket);
        if (growth != 0 && published != sg_load(&entry->published_ns))
            growth = 0; /* it has looked at them itself meanwhile */
        take_off_growth(&other, growth);
        other.is_stalled = is_stalled(i, entry, &other, question.now);
        count(&question, entry, &other);
    }
    sg_foreign_visit(count_foreign, &question);
    add_same_bytes(peers);
    add(&peers->cuda_bytes, peers->device_bytes);
}

static void add_cuda(struct sg_cuda_sum *sum, const struct sg_registry_entry *entry, bool is_machine)
{
    uint64_t managed = sg_load(&entry->managed_bytes), missing = sg_load(&entry->slot.live_bytes);
    missing = missing < managed ? missing : managed;
    add(&sum->managed_bytes, managed);
    add(&sum->missing_bytes, missing);
    add(&sum->shown_bytes, managed - missing);
    add(&sum->shown_bytes, sg_load(&entry->pinned_bytes));
    if (is_machine && (sg_load(&entry->slot.flags) & SG_SLOT_UNIFIED) != 0)
        add(&sum->shown_bytes, sg_load(&entry->slot.device_bytes));
    add(&sum->flight_bytes, sg_load(&entry->bounded_flight_bytes));
    if (is_machine)
        add(&sum->flight_bytes, sg_load(&entry->unbounded_flight_bytes));
}

void sg_peers_sum_cuda(uint64_t level, struct sg_cuda_sum *sum)
{
    struct sg_registry *ledger = sg_entry_registry();
    struct sg_registry_entry *own = sg_entry_own();
    uint32_t used = sg_load(&ledger->entry_used);
    *sum = (struct sg_cuda_sum){0};
    add_cuda(sum, own, level == 0);
    for (uint32_t i = 0; i < used && i < SG_ENTRY_CAPACITY; i++) {
        struct sg_registry_entry *entry = &ledger->entry[i];
        if (entry != own && SG_CLAIM_STATE(sg_load(&entry->claim)) == SG_CLAIM_LIVE &&
            (level == 0 || sg_entry_is_member(entry, level)))
            add_cuda(sum, entry, level == 0);
    }
}

bool sg_peers_is_watched(const struct sg_registry_entry *entry, uint64_t now)
{
    int64_t ago = (int64_t)(now - sg_load(&entry->watched_ns));
    return ago < (int64_t)WATCHED_NS && ago > -(int64_t)AHEAD_NS;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

uint32_t sg_peers_epoch(void)
{
    return sg_load(&sg_entry_registry()->epoch);
}

void sg_peers_advance(void)
{
    struct sg_registry *ledger = sg_entry_registry();
    sg_fetch_add(&ledger->epoch, 1u);
    uint64_t until = sg_load(&ledger->waiting_until_ns); /* pairs with the store in sg_peers_wait */
    if (SG_LIKELY(until == 0))
        return;
    if (until < sg_clock_ns(CLOCK_MONOTONIC))
        (void)sg_cas_u64(&ledger->waiting_until_ns, &until, 0);
    else
        (void)sg_sys_futex(&ledger->epoch, FUTEX_WAKE, UINT32_MAX >> 1, NULL);
}

void sg_peers_wait(uint32_t seen, uint64_t timeout_ns)
{
    struct sg_registry *ledger = sg_entry_registry();
    const struct timespec timeout = {0, (long)timeout_ns};
    sg_raise_to(&ledger->waiting_until_ns, sg_clock_ns(CLOCK_MONOTONIC) + timeout_ns);
    (void)sg_sys_futex(&ledger->epoch, FUTEX_WAIT, seen, &timeout);
}

void sg_peers_call(void)
{
    struct sg_registry *ledger = sg_entry_registry();
    sg_fetch_add(&ledger->call, 1u);
    (void)sg_sys_futex(&ledger->call, FUTEX_WAKE, UINT32_MAX >> 1, NULL);
}

bool sg_peers_have_looked(uint64_t since_ns)
{
    struct sg_registry *ledger = sg_entry_registry();
    uint32_t used = sg_load(&ledger->entry_used);
    for (uint32_t i = 0; i < used && i < SG_ENTRY_CAPACITY; i++) {
        const struct sg_registry_entry *entry = &ledger->entry[i];
        if (entry != sg_entry_own() && SG_CLAIM_STATE(sg_load(&entry->claim)) == SG_CLAIM_LIVE &&
            sg_load(&entry->slot.promised_bytes) >= WORTH_A_LOOK && sg_peers_is_watched(entry, since_ns) &&
            (int64_t)(sg_load(&entry->published_ns) - since_ns) < 0)
            return false;
    }
    return true;
}

void sg_peers_call_and_wait(uint64_t patience_ns)
{
    uint64_t begin = sg_clock_ns(CLOCK_MONOTONIC), now = begin;
    uint32_t seen = sg_peers_epoch();
    if (sg_peers_have_looked(begin))
        return;
    sg_peers_call();
    while (!sg_peers_have_looked(begin) && now - begin < patience_ns) {
        sg_peers_wait(seen, patience_ns - (now - begin));
        seen = sg_peers_epoch();
        now = sg_clock_ns(CLOCK_MONOTONIC);
    }
}
