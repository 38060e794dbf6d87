/*
 * peers.c - see peers.h.
 */
#include "shared/peers.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "base/procfs.h"
#include "shared/same_bytes.h"
#include "shared/segment.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "shared/own_entry.h"

#include <linux/futex.h>
#include <string.h>

/* A watchdog that ran within this time is alive and not stopped. */
#define WATCHED_NS UINT64_C(1000000000)

/* A watchdog's time may be this much later than `now`. A larger value is no time of this clock; without the bound, such
 * an entry would count as watched for ever. */
#define AHEAD_NS UINT64_C(10000000000)

/* The kernel is not asked about processes with smaller promises: these count as they stand. */
#define EXAMINED_BYTES_MIN (UINT64_C(1) << 20)

/* Requests unchanged for this long are not waited for: the owner is stopped, or its driver hangs. */
#define STALLED_NS UINT64_C(3000000000)

/* One other registry entry. Its sums are read in the order in which bytes move, so that none is missed: queued, in
 * flight, promised. */
struct peer {
    uint64_t ticket, queued_before_bytes, queued_after_bytes, queued_source;
    uint64_t flight_bytes, bounded_bytes, unbounded_bytes, discrete_bytes;
    bool is_stalled;
    struct sg_named promised, granted; /* the parts in doubt count as in flight, since waiting resolves them */
    uint64_t changing_version;         /* version of the ranges being written, if bytes are in doubt; else 0 */
};

/* Promises inherited from dead parents and already counted: on the machine, and in each of our cgroups. If a set is
 * full, further inherited promises count once for each child. */
enum { PARENTS_MAX = 256 };
struct inherited {
    uint64_t identity; /* claim << 12 | entry number of the dead parent; 0: no dead parent is known */
    uint64_t bytes;
};
static struct inherited_set {
    struct inherited of[PARENTS_MAX];
    uint32_t count;
} counted[1 + SG_ENTRY_LEVELS];

/* Reads the ticket. A process that is choosing stores its ticket two instructions later. If it was stopped between
 * them, is_before counts its request as queued before ours. */
static uint64_t read_ticket(const struct sg_registry_entry *entry)
{
    uint64_t ticket = sg_load(&entry->ticket);
    for (int i = 0; i < 1000 && ticket == SG_TICKET_CHOOSING; i++)
        ticket = sg_load(&entry->ticket);
    return ticket;
}

static bool is_before(uint64_t ticket, uint64_t own_ticket)
{
    return ticket == SG_TICKET_CHOOSING || own_ticket == SG_TICKET_NONE || (int64_t)(ticket - own_ticket) < 0;
}

/* Private memory of the entry's owner that has no pages, by the kernel, and what of the promise it does not bound;
 * UINT64_MAX: unknown. What was made unwritable is read after the rest (tracker.c). */
static uint64_t kernel_bound(const struct sg_registry_entry *entry)
{
    uint64_t missing, swapped;
    if (entry->slot.pid == 0 || entry->pid_namespace != sg_own->pid_namespace ||
        !sg_procfs_missing_bytes(entry->slot.pid, &missing, &swapped))
        return UINT64_MAX;
    sg_entry_add_cut(&missing, sg_load(&entry->unwritable_bytes));
    sg_entry_add_cut(&missing, sg_load(&entry->shared_promised_bytes));
    return missing;
}

/* Granted bytes that have no promise. */
static uint64_t unpromisable_of(const struct sg_registry_entry *entry)
{
    return sg_load(&entry->slot.device_bytes) + sg_load(&entry->pinned_bytes);
}

/* Lowers the promise to `most`. Shared memory that is counted by name stays. */
static void lower_promise(struct peer *peer, uint64_t most)
{
    uint64_t named = peer->promised.by_name_bytes + peer->promised.in_doubt_bytes;
    peer->promised.bytes = sg_smaller(peer->promised.bytes, sg_larger(most, named));
}

/* A process lowers its promises only when it looks at its memory: others count no more than it holds. The promises were
 * read before the granted bytes. */
static void bound_promise(struct peer *peer, const struct sg_registry_entry *entry, uint64_t unpromisable_bytes)
{
    uint64_t other = sg_entry_cut(unpromisable_bytes) + sg_entry_cut(sg_load(&entry->inherited_least_bytes));
    lower_promise(peer, sg_above(peer->granted.bytes, other));
}

static struct peer read_entry(uint32_t number, struct sg_registry_entry *entry, uint64_t own_ticket)
{
    struct peer peer = {0};
    peer.ticket = read_ticket(entry);
    if (peer.ticket != SG_TICKET_NONE) {
        *(is_before(peer.ticket, own_ticket) ? &peer.queued_before_bytes : &peer.queued_after_bytes) =
            sg_load(&entry->queued_bytes);
        peer.queued_source = sg_load(&entry->queued_source);
    }
    peer.flight_bytes = sg_load(&entry->slot.in_flight_bytes);
    peer.bounded_bytes = sg_load(&entry->bounded_flight_bytes);
    peer.unbounded_bytes = sg_load(&entry->unbounded_flight_bytes);
    peer.discrete_bytes = sg_load(&entry->device_flight_bytes);
    uint64_t other = unpromisable_of(entry);
    peer.changing_version = sg_same_bytes_read(number, entry, &peer.promised, &peer.granted);
    uint64_t now = unpromisable_of(entry); /* the smaller one counts: bytes may have come or gone between the reads */
    bound_promise(&peer, entry, other < now ? other : now);
    return peer;
}

/* Adds inherited promises to the set. Returns the bytes that the set did not contain yet. */
static uint64_t add_uncounted(struct inherited_set *set, struct inherited inherited)
{
    for (uint32_t i = 0; i < set->count; i++) {
        uint64_t before = set->of[i].bytes;
        if (set->of[i].identity != inherited.identity)
            continue;
        if (before < inherited.bytes)
            set->of[i].bytes = inherited.bytes;
        return before < inherited.bytes ? inherited.bytes - before : 0;
    }
    if (set->count < PARENTS_MAX)
        set->of[set->count++] = inherited;
    return inherited.bytes;
}

/* The inherited promises of the entry's owner. The identity is 0 unless the parent has ended; equal identities mean the
 * same parent. */
static struct inherited inherited_of(const struct sg_registry_entry *entry)
{
    struct inherited inherited = {0, sg_load(&entry->slot.inherited_promise_bytes)};
    uint64_t number = entry->parent_entry, claim = entry->parent_claim;
    bool has_parent = number != 0 && number <= SG_ENTRY_CAPACITY && SG_CLAIM_STATE(claim) == SG_CLAIM_LIVE &&
                      sg_load(&sg_entry_at(sg_entry_registry(), (uint32_t)number - 1)->claim) == claim;
    if (inherited.bytes != 0 && !has_parent)
        inherited.identity = claim << 12 | number;
    return inherited;
}

/* Inherited promises to be counted now. A living parent counts them itself. Those of an unknown parent are not counted,
 * because nothing shows which other processes share them. */
static uint64_t inherited_uncounted(struct inherited_set *set, const struct sg_registry_entry *entry)
{
    struct inherited inherited = inherited_of(entry);
    return inherited.identity != 0 ? add_uncounted(set, inherited) : 0;
}

static void add_flight(struct sg_peer_sums *sum, const struct peer *peer, uint64_t bytes)
{
    sg_entry_add_cut(&sum->flight_bytes, bytes);
    if (peer->is_stalled)
        sg_entry_add_cut(&sum->stalled_bytes, bytes);
}

/* A stalled request queued before ours counts as in flight, so that we do not wait for it. */
static void add_queued(struct sg_peer_sums *sum, const struct peer *peer)
{
    if (peer->is_stalled) {
        add_flight(sum, peer, peer->queued_before_bytes);
        sg_entry_add_cut(&sum->queued_after_bytes, peer->queued_after_bytes);
        return;
    }
    sg_entry_add_cut(&sum->queued_before_bytes, peer->queued_before_bytes);
    sg_entry_add_cut(&sum->queued_after_bytes, peer->queued_after_bytes);
}

/* The part that is not counted as ranges of shared memory, for certain or in doubt. */
static uint64_t private_part_of(const struct sg_named *named)
{
    return named->bytes - named->by_name_bytes - named->in_doubt_bytes;
}

static void add_promises(struct sg_peer_sums *sum, const struct peer *peer)
{
    sg_entry_add_cut(&sum->held_bytes, private_part_of(&peer->promised));
    add_flight(sum, peer, peer->promised.in_doubt_bytes);
}

static void add_cuda(struct sg_cuda_sum *sum, const struct sg_registry_entry *entry, bool is_machine)
{
    uint64_t managed = sg_load(&entry->managed_bytes), missing = sg_load(&entry->slot.live_bytes);
    missing = missing < managed ? missing : managed;
    sg_entry_add_cut(&sum->managed_bytes, managed);
    sg_entry_add_cut(&sum->missing_bytes, missing);
    sg_entry_add_cut(&sum->shown_bytes, managed - missing);
    if (is_machine)
        sg_entry_add_cut(&sum->pinned_bytes, sg_load(&entry->pinned_bytes));
    if (is_machine && (sg_load(&entry->slot.flags) & SG_SLOT_UNIFIED) != 0) {
        sg_entry_add_cut(&sum->device_bytes, sg_load(&entry->slot.device_bytes));
        sum->contexts++;
    }
    sg_entry_add_cut(&sum->flight_bytes, sg_load(&entry->bounded_flight_bytes));
    if (is_machine)
        sg_entry_add_cut(&sum->flight_bytes, sg_load(&entry->unbounded_flight_bytes));
}

/* Adds the CUDA memory of an entry to the sums of the machine, and of each of our cgroups that its owner is in. */
static void add_cuda_of(struct sg_cuda_sum cuda[1 + SG_ENTRY_LEVELS], const struct sg_registry_entry *entry)
{
    const struct sg_registry_entry *own = sg_entry_own();
    add_cuda(&cuda[0], entry, true);
    for (unsigned i = 0; i < SG_ENTRY_LEVELS && own->level[i] != 0; i++)
        if (entry == own || sg_entry_is_member(entry, own->level[i]))
            add_cuda(&cuda[1 + i], entry, false);
}

/* Counts our own inherited promises among those of the peers, because our own promised_bytes do not contain them. */
static void add_own(struct sg_peers *peers)
{
    const struct sg_registry_entry *own = sg_entry_own();
    for (uint32_t i = 0; i <= SG_ENTRY_LEVELS; i++) {
        counted[i].count = 0;
        sg_entry_add_cut(i == 0 ? &peers->machine.held_bytes : &peers->level[i - 1].held_bytes,
                         inherited_uncounted(&counted[i], own));
    }
    add_cuda_of(peers->cuda, own);
}

static void add_to_machine(struct sg_peers *peers, struct sg_registry_entry *entry, const struct peer *peer)
{
    bool is_bounded = peer->queued_source == SG_SOURCE_BOUNDED;
    if (is_bounded || peer->queued_source == SG_SOURCE_UNBOUNDED)
        add_queued(&peers->machine, peer);
    add_flight(&peers->machine, peer, peer->bounded_bytes);
    if (peer->queued_source == SG_SOURCE_UNBOUNDED)
        add_queued(&peers->device_of_machine, peer);
    add_flight(&peers->device_of_machine, peer, peer->unbounded_bytes);
    add_flight(&peers->machine, peer, peer->unbounded_bytes);
    add_promises(&peers->machine, peer);
    sg_entry_add_cut(&peers->machine.held_bytes, inherited_uncounted(&counted[0], entry));
    add_cuda(&peers->cuda[0], entry, true);
    const struct sg_registry_entry *own = sg_entry_own();
    for (unsigned i = 0; i < SG_ENTRY_LEVELS && own->level[i] != 0; i++) {
        if (!sg_entry_is_member(entry, own->level[i]))
            continue;
        if (is_bounded)
            add_queued(&peers->level[i], peer);
        add_flight(&peers->level[i], peer, peer->bounded_bytes);
        add_promises(&peers->level[i], peer);
        sg_entry_add_cut(&peers->level[i].held_bytes, inherited_uncounted(&counted[1 + i], entry));
        add_cuda(&peers->cuda[1 + i], entry, false);
    }
}

static void add_to_job(struct sg_peers *peers, const struct sg_registry_entry *entry, const struct peer *peer)
{
    const struct sg_slot *slot = &entry->slot;
    uint64_t own = private_part_of(&peer->granted), inherited = sg_load(&slot->inherited_bytes),
             limit = slot->limit_bytes;
    peers->job_processes++;
    sg_entry_add_cut(&peers->job.held_bytes, own > inherited ? own - inherited : 0);
    sg_entry_add_cut(&peers->job_sparse_bytes, sg_load(&slot->sparse_bytes));
    add_flight(&peers->job, peer, peer->granted.in_doubt_bytes);
    add_flight(&peers->job, peer, peer->flight_bytes);
    add_queued(&peers->job, peer);
    if (limit != 0 && (peers->job_limit_bytes == 0 || limit < peers->job_limit_bytes))
        peers->job_limit_bytes = limit;
}

static void add_to_device(struct sg_peers *peers, struct sg_registry_entry *entry, const struct peer *peer,
                          uint64_t device)
{
    uint64_t flight_device = sg_load(&entry->flight_device);
    if (peer->queued_source == device)
        add_queued(&peers->device, peer);
    if (flight_device == device || flight_device == SG_UNKNOWN)
        add_flight(&peers->device, peer, peer->discrete_bytes);
}

/* The last state seen of each entry, to find stalled requests. */
static struct seen_entry {
    uint64_t claim, ticket, flight_bytes, landed_count, changing_version;
    uint64_t since_ns;
} last_seen[SG_ENTRY_CAPACITY];

static bool is_stalled(uint32_t number, const struct sg_registry_entry *entry, const struct peer *peer, uint64_t now)
{
    struct seen_entry *last = &last_seen[number];
    struct seen_entry now_seen = {sg_load(&entry->claim), peer->ticket,
                                  peer->flight_bytes,     sg_load(&entry->slot.landed_count),
                                  peer->changing_version, last->since_ns};
    if (memcmp(last, &now_seen, sizeof now_seen) != 0) {
        *last = now_seen;
        last->since_ns = now;
    }
    bool is_under_way = peer->flight_bytes != 0 || peer->ticket != SG_TICKET_NONE || peer->changing_version != 0;
    return is_under_way && now - last->since_ns >= STALLED_NS;
}

static void count(struct sg_peers *peers, struct sg_registry_entry *entry, const struct peer *peer, uint64_t device)
{
    add_to_machine(peers, entry, peer);
    if (device != 0)
        add_to_device(peers, entry, peer, device);
    if (entry->slot.job_hash == sg_own->slot.job_hash && sg_entry_is_process(entry))
        add_to_job(peers, entry, peer);
    sg_entry_add_cut(&peers->device_bytes, sg_load(&entry->slot.device_bytes));
    sg_entry_add_cut(&peers->cuda_bytes, sg_load(&entry->pinned_bytes));
    sg_entry_add_cut(&peers->cuda_bytes, sg_load(&entry->managed_bytes));
}

/* Adds the bytes that processes hold together and we do not: shared memory, and memory of parents. */
static void add_same_bytes(struct sg_peers *peers, const struct sg_same_bytes *same)
{
    sg_entry_add_cut(&peers->machine.held_bytes, same->promised[SG_SAME_ON_MACHINE]);
    for (unsigned i = 0; i < SG_ENTRY_LEVELS; i++)
        sg_entry_add_cut(&peers->level[i].held_bytes, same->promised[SG_SAME_IN_LEVEL + i]);
    sg_entry_add_cut(&peers->job.held_bytes, same->held_by_job);
    if (peers->job_processes != 0 || sg_load(&sg_own->slot.inherited_bytes) != 0)
        sg_entry_add_cut(&peers->job.held_bytes, sg_same_bytes_inherited_by_job());
}

/* Reads an entry. `asks_kernel`: as of sg_peers_sum(). ever_promised_bytes is read before the kernel is asked, and
 * again after all else: a promise that is made meanwhile counts, whichever order they come in
 * (tests/model/promise.pml). */
static struct peer read_closely(uint32_t number, struct sg_registry_entry *entry, uint64_t own_ticket, bool asks_kernel)
{
    uint64_t before = sg_load(&entry->ever_promised_bytes), bound = UINT64_MAX;
    if (asks_kernel && sg_load(&entry->slot.promised_bytes) >= EXAMINED_BYTES_MIN)
        bound = kernel_bound(entry);
    struct peer peer = read_entry(number, entry, own_ticket);
    if (bound != UINT64_MAX) {
        sg_entry_add_cut(&bound, sg_load(&entry->ever_promised_bytes) - before);
        lower_promise(&peer, bound);
    }
    return peer;
}

uint64_t sg_peers_promised_by(uint32_t number)
{
    struct sg_registry_entry *entry = sg_entry_at(sg_entry_registry(), number);
    return read_closely(number, entry, sg_load(&sg_entry_own()->ticket), sg_procfs_is_of_this_namespace())
        .promised.bytes;
}

void sg_peers_sum(struct sg_peers *peers, uint64_t device, bool asks_kernel, sg_peers_visit *also)
{
    asks_kernel = asks_kernel && sg_procfs_is_of_this_namespace();
    struct sg_registry *registry = sg_entry_registry();
    struct sg_registry_entry *own = sg_entry_own();
    const uint64_t ticket = sg_load(&own->ticket), now = sg_clock_ns(CLOCK_MONOTONIC);
    uint32_t used = sg_entry_count(registry);
    memset(peers, 0, sizeof *peers);
    add_own(peers);
    const struct sg_same_bytes *same = sg_same_bytes_gather();
    for (uint32_t i = 0; i < used; i++) {
        struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (!sg_entry_is_live(entry))
            continue;
        if (entry != own) {
            struct peer peer = read_closely(i, entry, ticket, asks_kernel);
            peer.is_stalled = is_stalled(i, entry, &peer, now);
            count(peers, entry, &peer, device);
        }
        if (SG_UNLIKELY(also != NULL))
            also(i, entry);
    }
    add_same_bytes(peers, same);
    sg_entry_add_cut(&peers->cuda_bytes, peers->device_bytes);
}

bool sg_peers_are_ending(void)
{
    struct sg_registry *registry = sg_entry_registry();
    uint32_t used = sg_procfs_is_of_this_namespace() ? sg_entry_count(registry) : 0;
    for (uint32_t i = 0; i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        bool is_asked = entry != sg_entry_own() && sg_entry_is_live(entry) && entry->slot.pid != 0 &&
                        entry->pid_namespace == sg_own->pid_namespace &&
                        sg_load(&entry->slot.promised_bytes) >= EXAMINED_BYTES_MIN;
        if (is_asked &&
            (sg_procfs_is_killed(entry->slot.pid) || sg_procfs_is_ending(entry->slot.pid, entry->slot.start_ticks)))
            return true;
    }
    return false;
}

void sg_peers_sum_cuda(struct sg_cuda_sum cuda[1 + SG_ENTRY_LEVELS])
{
    struct sg_registry *registry = sg_entry_registry();
    const struct sg_registry_entry *own = sg_entry_own();
    memset(cuda, 0, (1 + SG_ENTRY_LEVELS) * sizeof *cuda);
    add_cuda_of(cuda, own);
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (entry != own && sg_entry_is_live(entry))
            add_cuda_of(cuda, entry);
    }
}

bool sg_peers_is_watched(const struct sg_registry_entry *entry, uint64_t now)
{
    int64_t ago = (int64_t)(now - sg_load(&entry->watched_ns));
    return ago < (int64_t)WATCHED_NS && ago > -(int64_t)AHEAD_NS;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

void sg_peers_advance(void)
{
    struct sg_registry *registry = sg_entry_registry();
    sg_fetch_add(&registry->epoch, 1u);
    uint64_t until = sg_load(&registry->waiting_until_ns); /* pairs with the store in sg_peers_wait */
    if (SG_LIKELY(until == 0))
        return;
    if (until < sg_clock_ns(CLOCK_MONOTONIC))
        (void)sg_cas_u64(&registry->waiting_until_ns, &until, 0);
    else
        (void)sg_sys_futex(&registry->epoch, FUTEX_WAKE, UINT32_MAX >> 1, NULL);
}

void sg_peers_wait(uint32_t seen, uint64_t timeout_ns)
{
    struct sg_registry *registry = sg_entry_registry();
    const struct timespec timeout = {(time_t)(timeout_ns / 1000000000), (long)(timeout_ns % 1000000000)};
    sg_raise_to(&registry->waiting_until_ns, sg_clock_ns(CLOCK_MONOTONIC) + timeout_ns);
    (void)sg_sys_futex(&registry->epoch, FUTEX_WAIT, seen, &timeout);
}

void sg_peers_call(void)
{
    struct sg_registry *registry = sg_entry_registry();
    sg_fetch_add(&registry->call, 1u);
    (void)sg_sys_futex(&registry->call, FUTEX_WAKE, UINT32_MAX >> 1, NULL);
}
