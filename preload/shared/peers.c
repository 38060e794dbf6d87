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

/* Larger than any machine: sums of what hostile or torn seats say stay far from wrapping. */
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

/* One other seat, read in the order in which bytes move: asked for, in flight, promised. */
struct other {
    uint64_t ticket, asking_bytes, behind_bytes, asking_pool;
    uint64_t flight_bytes, bounded_bytes, unbounded_bytes, discrete_bytes;
    bool is_stalled;
    struct sg_named promised, granted; /* what is in doubt counts as in flight: it is worth waiting for */
    uint64_t changing_version;         /* of its ranges, where something is in doubt; else 0 */
};

/* The promises of dead parents that were counted, on the machine and in each of our cgroups. A promise that finds no
 * place counts every time. */
enum { PARENTS_MOST = 256 };
struct heritage {
    uint64_t identity; /* of the parent */
    uint64_t bytes;
};
static struct heritage_set {
    struct heritage of[PARENTS_MOST];
    uint32_t count;
} counted[1 + SG_SEAT_LEVELS];

/* Who is choosing has a ticket in two instructions. Who has stopped between them is taken to stand before us. */
static uint64_t read_ticket(const struct sg_seat *seat)
{
    uint64_t ticket = sg_load(&seat->ticket);
    for (int i = 0; i < 1000 && ticket == SG_TICKET_CHOOSING; i++)
        ticket = sg_load(&seat->ticket);
    return ticket;
}

static bool is_before(uint64_t ticket, uint64_t mine)
{
    return ticket == SG_TICKET_CHOOSING || mine == SG_TICKET_NONE || (int64_t)(ticket - mine) < 0;
}

/* How much more anonymous memory a quiet process has now than when it last looked at its promises: so much less of them is
 * outstanding. 0 where it cannot be seen: in another PID namespace, or memory that is not anonymous. */
static uint64_t growth_of(const struct sg_seat *seat, uint64_t then)
{
    const struct sg_slot *slot = &seat->slot;
    uint64_t now = sg_process_anonymous_bytes(slot->pid), unpromised = UNPROMISED_BYTES * sg_process_threads(slot->pid);
    bool is_known = slot->start_ticks != 0 && sg_process_start_ticks(slot->pid) == slot->start_ticks;
    return is_known && then != 0 && now > then + unpromised ? now - then - unpromised : 0;
}

static struct other read_seat(uint32_t number, struct sg_seat *seat, uint64_t mine)
{
    struct other other = {0};
    other.ticket = read_ticket(seat);
    if (other.ticket != SG_TICKET_NONE) {
        *(is_before(other.ticket, mine) ? &other.asking_bytes : &other.behind_bytes) = sg_load(&seat->asking_bytes);
        other.asking_pool = sg_load(&seat->asking_pool);
    }
    other.flight_bytes = sg_load(&seat->slot.in_flight_bytes);
    other.bounded_bytes = sg_load(&seat->bounded_flight_bytes);
    other.unbounded_bytes = sg_load(&seat->unbounded_flight_bytes);
    other.discrete_bytes = sg_load(&seat->device_flight_bytes);
    other.changing_version = sg_same_bytes_read(number, seat, &other.promised, &other.granted);
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
    if (set->count < PARENTS_MOST)
        set->of[set->count++] = heritage;
    return heritage.bytes;
}

/* What the owner's parent was promised before the fork, if it is gone: equal names mean the same parent. */
static struct heritage heritage_of(const struct sg_seat *seat)
{
    struct heritage heritage = {0, sg_load(&seat->slot.heritage_bytes)};
    uint64_t number = seat->parent_seat, claim = seat->parent_claim;
    bool has_parent = number != 0 && number <= SG_SEAT_ROOM && SG_CLAIM_STATE(claim) == SG_CLAIM_LIVE &&
                      sg_load(&sg_seats_ledger()->seat[number - 1].claim) == claim;
    if (heritage.bytes != 0 && !has_parent)
        heritage.identity = claim << 12 | number;
    return heritage;
}

/* A parent that is unknown, or alive: nothing tells who else has what it promised, or it counts that itself. */
static uint64_t heritage_anew(struct heritage_set *set, const struct sg_seat *seat)
{
    struct heritage heritage = heritage_of(seat);
    return heritage.identity != 0 ? see_anew(set, heritage) : 0;
}

/* Our own heritage is with what the others have: it is no promise of ours. */
static void see_own_heritage(struct sg_tally *tally)
{
    const struct sg_seat *own = sg_seats_own();
    for (uint32_t i = 0; i <= SG_SEAT_LEVELS; i++) {
        counted[i].count = 0;
        add(i == 0 ? &tally->machine.held_bytes : &tally->level[i - 1].held_bytes, heritage_anew(&counted[i], own));
    }
}

static void add_flight(struct sg_taken *sum, const struct other *other, uint64_t bytes)
{
    add(&sum->flight_bytes, bytes);
    if (other->is_stalled)
        add(&sum->stalled_bytes, bytes);
}

/* Who stands still in front of us counts as granted, and nobody waits for him. */
static void add_asking(struct sg_taken *sum, const struct other *other)
{
    if (other->is_stalled) {
        add_flight(sum, other, other->asking_bytes);
        add(&sum->behind_bytes, other->behind_bytes);
        return;
    }
    add(&sum->asking_bytes, other->asking_bytes);
    add(&sum->behind_bytes, other->behind_bytes);
}

/* The part that nothing else has a name for. */
static uint64_t own_part_of(const struct sg_named *named)
{
    return named->bytes - named->by_name_bytes - named->in_doubt_bytes;
}

static void add_promises(struct sg_taken *sum, const struct other *other)
{
    add(&sum->held_bytes, own_part_of(&other->promised));
    add_flight(sum, other, other->promised.in_doubt_bytes);
}

static void add_to_machine(struct sg_tally *tally, struct sg_seat *seat, const struct other *other)
{
    bool is_bounded = other->asking_pool == SG_POOL_BOUNDED;
    if (is_bounded || other->asking_pool == SG_POOL_UNBOUNDED)
        add_asking(&tally->machine, other);
    add_flight(&tally->machine, other, other->bounded_bytes);
    add_flight(&tally->machine, other, other->unbounded_bytes);
    add_promises(&tally->machine, other);
    add(&tally->machine.held_bytes, heritage_anew(&counted[0], seat));
    const struct sg_seat *mine = sg_seats_own();
    for (unsigned i = 0; i < SG_SEAT_LEVELS && mine->level[i] != 0; i++) {
        if (!sg_seats_is_member(seat, mine->level[i]))
            continue;
        if (is_bounded)
            add_asking(&tally->level[i], other);
        add_flight(&tally->level[i], other, other->bounded_bytes);
        add_promises(&tally->level[i], other);
        add(&tally->level[i].held_bytes, heritage_anew(&counted[1 + i], seat));
    }
}

static void add_to_job(struct sg_tally *tally, const struct sg_slot *slot, const struct other *other)
{
    uint64_t own = own_part_of(&other->granted), inherited = sg_load(&slot->inherited_bytes), limit = slot->limit_bytes;
    add(&tally->job.held_bytes, own > inherited ? own - inherited : 0);
    add(&tally->job_sparse_bytes, sg_load(&slot->sparse_bytes));
    add_flight(&tally->job, other, other->granted.in_doubt_bytes);
    add_flight(&tally->job, other, other->flight_bytes);
    add_asking(&tally->job, other);
    if (limit != 0 && (tally->job_limit_bytes == 0 || limit < tally->job_limit_bytes))
        tally->job_limit_bytes = limit;
}

static void add_to_device(struct sg_tally *tally, struct sg_seat *seat, const struct other *other, uint64_t device)
{
    uint64_t flying = sg_load(&seat->flight_device);
    if (other->asking_pool == device)
        add_asking(&tally->device, other);
    if (flying == device || flying == SG_UNKNOWN)
        add_flight(&tally->device, other, other->discrete_bytes);
}

/* What this process saw last of requests under way. */
static struct sight {
    uint64_t claim, ticket, flight_bytes, landed_count, changing_version;
    uint64_t since_ns;
} sight[2 * SG_SEAT_ROOM]; /* those of another version's ledger behind ours */

static bool is_stalled(uint32_t number, const struct sg_seat *seat, const struct other *other, uint64_t now)
{
    struct sight *last = &sight[number];
    struct sight here = {sg_load(&seat->claim),   other->ticket, other->flight_bytes, sg_load(&seat->slot.landed_count),
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
    struct sg_tally *tally;
    uint64_t device, ticket, job, now;
};

static void count(const struct question *question, struct sg_seat *seat, const struct other *other)
{
    struct sg_tally *tally = question->tally;
    add_to_machine(tally, seat, other);
    if (question->device != 0)
        add_to_device(tally, seat, other, question->device);
    if (seat->slot.job_hash == question->job)
        add_to_job(tally, &seat->slot, other);
    add(&tally->device_bytes, sg_load(&seat->slot.device_bytes));
    add(&tally->cuda_bytes, sg_load(&seat->pinned_bytes));
    add(&tally->cuda_bytes, sg_load(&seat->managed_bytes));
    tally->is_reclaiming |= sg_load(&seat->reclaim_until_ns) > question->now;
}

/* Our places in the order mean nothing there: who asks stands before us if the ledger of the first name is theirs, else behind. */
static void count_foreign(void *context, uint32_t number, struct sg_seat *seat)
{
    const struct question *question = context;
    struct other other = read_seat(SG_SEAT_ROOM, seat, SG_TICKET_NONE);
    question->tally->foreign_bytes += sg_foreign_bytes_of(seat);
    if (!sg_foreign_is_met()) {
        other.behind_bytes = other.asking_bytes;
        other.asking_bytes = 0;
    }
    other.is_stalled = is_stalled(SG_SEAT_ROOM + number % SG_SEAT_ROOM, seat, &other, question->now);
    uint64_t before = question->tally->job.held_bytes;
    count(question, seat, &other);
    question->tally->job_foreign_bytes += question->tally->job.held_bytes - before;
}

/* The bytes that all have together by the names of shared memory and of parents, and we have not. */
static void add_same_bytes(struct sg_tally *tally)
{
    add(&tally->machine.held_bytes, sg_same_bytes_promised(SG_SAME_ON_MACHINE));
    for (unsigned i = 0; i < SG_SEAT_LEVELS; i++)
        add(&tally->level[i].held_bytes, sg_same_bytes_promised(SG_SAME_IN_LEVEL + i));
    add(&tally->job.held_bytes, sg_same_bytes_held_by_job());
    add(&tally->job.held_bytes, sg_same_bytes_inherited_by_job());
}

void sg_seats_sum(struct sg_tally *tally, uint64_t device, bool is_closely)
{
    struct sg_machine_ledger *ledger = sg_seats_ledger();
    struct sg_seat *own = sg_seats_own();
    struct question question = {.tally = tally,
                                .device = device,
                                .ticket = sg_load(&own->ticket),
                                .job = sg_own->slot.job_hash,
                                .now = sg_sys_clock_ns(CLOCK_MONOTONIC)};
    uint32_t used = sg_load(&ledger->seat_used);
    memset(tally, 0, sizeof *tally);
    see_own_heritage(tally);
    sg_same_bytes_gather();
    for (uint32_t i = 0; i < used && i < SG_SEAT_ROOM; i++) {
        struct sg_seat *seat = &ledger->seat[i];
        if (seat == own || SG_CLAIM_STATE(sg_load(&seat->claim)) != SG_CLAIM_LIVE)
            continue;
        uint64_t published = sg_load(&seat->published_ns), scanned = sg_load(&seat->scanned_anonymous_bytes);
        uint64_t growth =
            is_closely && sg_load(&seat->slot.promised_bytes) >= WORTH_A_LOOK ? growth_of(seat, scanned) : 0;
        struct other other = read_seat(i, seat, question.ticket);
        if (growth != 0 && published != sg_load(&seat->published_ns))
            growth = 0; /* it has looked at them itself meanwhile */
        take_off_growth(&other, growth);
        other.is_stalled = is_stalled(i, seat, &other, question.now);
        count(&question, seat, &other);
    }
    sg_foreign_visit(count_foreign, &question);
    add_same_bytes(tally);
    add(&tally->cuda_bytes, tally->device_bytes);
}

static void add_cuda(struct sg_cuda_sum *sum, const struct sg_seat *seat, bool is_machine)
{
    uint64_t managed = sg_load(&seat->managed_bytes), missing = sg_load(&seat->slot.live_bytes);
    missing = missing < managed ? missing : managed;
    add(&sum->managed_bytes, managed);
    add(&sum->missing_bytes, missing);
    add(&sum->shown_bytes, managed - missing);
    add(&sum->shown_bytes, sg_load(&seat->pinned_bytes));
    if (is_machine && (sg_load(&seat->slot.flags) & SG_SLOT_UNIFIED) != 0)
        add(&sum->shown_bytes, sg_load(&seat->slot.device_bytes));
    add(&sum->flight_bytes, sg_load(&seat->bounded_flight_bytes));
    if (is_machine)
        add(&sum->flight_bytes, sg_load(&seat->unbounded_flight_bytes));
}

void sg_seats_sum_cuda(uint64_t level, struct sg_cuda_sum *sum)
{
    struct sg_machine_ledger *ledger = sg_seats_ledger();
    struct sg_seat *own = sg_seats_own();
    uint32_t used = sg_load(&ledger->seat_used);
    *sum = (struct sg_cuda_sum){0};
    add_cuda(sum, own, level == 0);
    for (uint32_t i = 0; i < used && i < SG_SEAT_ROOM; i++) {
        struct sg_seat *seat = &ledger->seat[i];
        if (seat != own && SG_CLAIM_STATE(sg_load(&seat->claim)) == SG_CLAIM_LIVE &&
            (level == 0 || sg_seats_is_member(seat, level)))
            add_cuda(sum, seat, level == 0);
    }
}

bool sg_seats_is_watched(const struct sg_seat *seat, uint64_t now)
{
    int64_t ago = (int64_t)(now - sg_load(&seat->watched_ns));
    return ago < (int64_t)WATCHED_NS && ago > -(int64_t)AHEAD_NS;
}

/* ---- waiting ------------------------------------------------------------------------------------------------------ */

uint32_t sg_seats_epoch(void)
{
    return sg_load(&sg_seats_ledger()->epoch);
}

void sg_seats_advance(void)
{
    struct sg_machine_ledger *ledger = sg_seats_ledger();
    sg_fetch_add(&ledger->epoch, 1u);
    uint64_t until = sg_load(&ledger->waiting_until_ns); /* pairs with the store in sg_seats_wait */
    if (SG_LIKELY(until == 0))
        return;
    if (until < sg_sys_clock_ns(CLOCK_MONOTONIC))
        (void)sg_cas_u64(&ledger->waiting_until_ns, &until, 0);
    else
        (void)sg_sys_futex(&ledger->epoch, FUTEX_WAKE, UINT32_MAX >> 1, NULL);
}

void sg_seats_wait(uint32_t seen, uint64_t timeout_ns)
{
    struct sg_machine_ledger *ledger = sg_seats_ledger();
    const struct timespec timeout = {0, (long)timeout_ns};
    sg_raise_to(&ledger->waiting_until_ns, sg_sys_clock_ns(CLOCK_MONOTONIC) + timeout_ns);
    (void)sg_sys_futex(&ledger->epoch, FUTEX_WAIT, seen, &timeout);
}

void sg_seats_call(void)
{
    struct sg_machine_ledger *ledger = sg_seats_ledger();
    sg_fetch_add(&ledger->call, 1u);
    (void)sg_sys_futex(&ledger->call, FUTEX_WAKE, UINT32_MAX >> 1, NULL);
}

bool sg_seats_have_looked(uint64_t since_ns)
{
    struct sg_machine_ledger *ledger = sg_seats_ledger();
    uint32_t used = sg_load(&ledger->seat_used);
    for (uint32_t i = 0; i < used && i < SG_SEAT_ROOM; i++) {
        const struct sg_seat *seat = &ledger->seat[i];
        if (seat != sg_seats_own() && SG_CLAIM_STATE(sg_load(&seat->claim)) == SG_CLAIM_LIVE &&
            sg_load(&seat->slot.promised_bytes) >= WORTH_A_LOOK && sg_seats_is_watched(seat, since_ns) &&
            (int64_t)(sg_load(&seat->published_ns) - since_ns) < 0)
            return false;
    }
    return true;
}

void sg_seats_call_and_wait(uint64_t patience_ns)
{
    uint64_t begin = sg_sys_clock_ns(CLOCK_MONOTONIC), now = begin;
    uint32_t seen = sg_seats_epoch();
    if (sg_seats_have_looked(begin))
        return;
    sg_seats_call();
    while (!sg_seats_have_looked(begin) && now - begin < patience_ns) {
        sg_seats_wait(seen, patience_ns - (now - begin));
        seen = sg_seats_epoch();
        now = sg_sys_clock_ns(CLOCK_MONOTONIC);
    }
}
