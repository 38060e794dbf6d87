/*
 * claims.c - see claims.h.
 */
#include "shared/claims.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "base/procfs.h"
#include "base/syscall.h"
#include "shared/own_entry.h"
#include "shared/registry.h"

/* Whether a process with less is ending does not matter. */
#define EXAMINED_BYTES_MIN (UINT64_C(1) << 20)

/* Each process is granted this much heap before its first decision, and has promised none of it. */
#define UNPROMISED_BYTES (UINT64_C(1) << 20)

/* Bytes that a process or a job holds. A byte that moves from flight to granted is in both words for a moment, so bytes
 * in flight are not held for certain. */
struct held {
    uint64_t least, most;
};

/* By the number of a claim's entry: the bytes that its job held before the kernel's figures were read. */
static struct held_before {
    uint64_t claim; /* of the entry at that time */
    struct held held;
} held_before[SG_ENTRY_CAPACITY];

static bool has_begun, counts_own;

/* The claim that this process has queued; NULL: none. */
static struct sg_registry_entry *queued SG_AT_FORK;

/* Returns the bytes that a process holds of the machine's memory, without the ranges of shared memory and the memory of
 * its parent, which other processes of the job may hold as well. *named: the ranges alone. */
static struct held held_by_process(const struct sg_registry_entry *entry, uint64_t *named)
{
    const struct sg_slot *slot = &entry->slot;
    bool is_unified = (sg_load(&slot->flags) & SG_SLOT_UNIFIED) != 0;
    uint64_t bounded = sg_load(&entry->bounded_flight_bytes), unbounded = sg_load(&entry->unbounded_flight_bytes);
    uint64_t flight = sg_entry_cut(bounded) + sg_entry_cut(unbounded);
    uint64_t granted = sg_entry_cut(sg_load(&slot->granted_bytes));
    uint64_t device = is_unified ? 0 : sg_entry_cut(sg_load(&slot->device_bytes));
    *named = sg_entry_cut(sg_load(&sg_entry_names(entry)->file_bytes));
    uint64_t less = sg_entry_cut(sg_load(&slot->inherited_bytes)) + *named + device + UNPROMISED_BYTES;
    uint64_t bytes = (granted > less ? granted - less : 0) + sg_entry_cut(sg_load(&slot->sparse_bytes));
    return (struct held){bytes, bytes + flight};
}

/* Whether the process is known to be ending: its memory may be freed already. A process of another PID namespace cannot
 * be found, and counts as running until its entry is marked dead. */
static bool is_ending(const struct sg_registry_entry *entry, uint64_t bytes)
{
    return bytes >= EXAMINED_BYTES_MIN && sg_procfs_is_ending(entry->slot.pid, entry->slot.start_ticks);
}

/* Returns the bytes that the processes of a job hold. Ranges of shared memory may be the same in all processes, so
 * only the largest sum of one process counts. */
static struct held held_by(uint64_t job, bool is_examined)
{
    struct sg_registry *registry = sg_entry_registry();
    struct held sum = {0, 0};
    uint64_t most_named = 0;
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        uint64_t named;
        if (entry->slot.job_hash != job || !sg_entry_is_live(entry) || !sg_entry_is_process(entry) ||
            sg_load(&entry->slot.state) == SG_STATE_REPLACED)
            continue;
        struct held held = held_by_process(entry, &named);
        sg_entry_add_cut(&sum.most, held.most);
        if (is_examined && is_ending(entry, held.least + named))
            continue;
        sg_entry_add_cut(&sum.least, held.least);
        most_named = named > most_named ? named : most_named;
    }
    return (struct held){sum.least + most_named, sum.most + most_named};
}

/* The size of a claim that counts, else 0. */
static uint64_t size_of(const struct sg_registry_entry *entry)
{
    if (SG_LIKELY(!sg_entry_is_claim(entry)) || !sg_entry_is_live(entry))
        return 0;
    if (!counts_own && entry->slot.job_hash == sg_own->slot.job_hash)
        return 0;
    return sg_entry_cut(sg_load(&entry->claimed_bytes));
}

void sg_claims_count_own(bool does_count)
{
    counts_own = does_count;
}

void sg_claims_begin(void)
{
    struct sg_registry *registry = sg_entry_registry();
    has_begun = sg_load(&registry->claim_places) != 0;
    for (uint32_t i = 0, used = has_begun ? sg_entry_count(registry) : 0; i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        uint64_t claim = sg_load(&entry->claim);
        bool counts = size_of(entry) != 0;
        held_before[i] =
            (struct held_before){claim, counts ? held_by(entry->slot.job_hash, false) : (struct held){0, 0}};
    }
}

/* Returns the part of a job's `held` bytes that the claims in earlier entries do not cover: a job may have several. */
static uint64_t less_earlier(struct sg_registry *registry, uint32_t number, uint64_t held)
{
    uint64_t job = sg_entry_at(registry, number)->slot.job_hash;
    for (uint32_t i = 0; i < number && held != 0; i++) {
        const struct sg_registry_entry *earlier = sg_entry_at(registry, i);
        uint64_t size = earlier->slot.job_hash == job ? size_of(earlier) : 0;
        held -= size < held ? size : held;
    }
    return held;
}

static bool is_claim_of(const struct sg_registry_entry *entry, uint64_t job)
{
    return entry->slot.job_hash == job && sg_entry_is_claim(entry) && sg_entry_is_live(entry);
}

/* Returns the size of all claims of a job. */
static uint64_t claims_of(struct sg_registry *registry, uint32_t used, uint64_t job)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (is_claim_of(entry, job))
            sum += sg_entry_cut(sg_load(&entry->claimed_bytes));
    }
    return sum;
}

/* Returns the rest of the claims of this process's job. */
static uint64_t own_rest(struct sg_registry *registry, uint32_t used)
{
    const uint64_t job = sg_own->slot.job_hash;
    uint64_t sum = claims_of(registry, used, job), held = sum != 0 ? held_by(job, false).most : 0;
    return sum > held ? sum - held : 0;
}

/* The rest of a claim: the part that is certain, and the part that is in doubt. */
struct rest {
    uint64_t bytes, in_doubt_bytes;
};

/* Bytes in doubt count as in flight: both are taken for now, and a request that does not fit because of them waits. */
static void add_rest(struct sg_peer_sums *sums, const struct rest *rest)
{
    sg_entry_add_cut(&sums->claimed_bytes, rest->bytes);
    sg_entry_add_cut(&sums->flight_bytes, rest->in_doubt_bytes);
}

void sg_claims_end(struct sg_peers *peers)
{
    struct sg_registry *registry = sg_entry_registry();
    const struct sg_registry_entry *own = sg_entry_own();
    const uint32_t used = has_begun ? sg_entry_count(registry) : 0;
    peers->own_claim_bytes = own_rest(registry, used);
    for (uint32_t i = 0; i < used; i++) {
        struct sg_registry_entry *entry = sg_entry_at(registry, i);
        uint64_t size = size_of(entry);
        if (SG_LIKELY(size == 0))
            continue;
        const struct held after = held_by(entry->slot.job_hash, true);
        bool is_same = held_before[i].claim == sg_load(&entry->claim);
        const struct held before = is_same ? held_before[i].held : (struct held){0, after.most};
        uint64_t least = less_earlier(registry, i, before.least < after.least ? before.least : after.least),
                 most = less_earlier(registry, i, before.most < after.most ? after.most : before.most);
        const struct rest rest = {size > most ? size - most : 0,
                                  (most < size ? most : size) - (least < size ? least : size)};
        add_rest(&peers->machine, &rest);
        for (unsigned k = 0; k < SG_ENTRY_LEVELS && own->level[k] != 0; k++)
            if (sg_entry_is_member(entry, own->level[k]))
                add_rest(&peers->level[k], &rest);
    }
}

static uint64_t share_of(const struct sg_registry_entry *claim)
{
    uint64_t share = sg_load(&claim->claim_share);
    return share < SG_SHARE_MIN ? SG_SHARE_MIN : share > SG_SHARE_MAX ? SG_SHARE_MAX : share;
}

uint64_t sg_claims_lent_to(uint64_t job)
{
    struct sg_registry *registry = sg_entry_registry();
    const uint32_t used = sg_entry_count(registry);
    uint64_t claimed = claims_of(registry, used, job), held = held_by(job, false).least, share = SG_SHARE_MIN;
    for (uint32_t i = 0; i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (is_claim_of(entry, job) && share_of(entry) > share)
            share = share_of(entry);
    }
    return held > claimed ? (held - claimed) / share : 0;
}

/* ---- the claim that this process makes --------------------------------------------------------------------------- */

long sg_claims_queue(uint64_t bytes, int64_t priority, uint64_t share)
{
    struct sg_registry *registry = sg_entry_shared_registry();
    struct sg_registry_entry *entry = NULL;
    if (registry == NULL)
        return -ENOLCK;
    const uint64_t place = sg_fetch_add(&registry->claim_places, UINT64_C(1)) + 1;
    const struct sg_claim_entry words = {.wanted_bytes = bytes, .place = place, .share = share, .priority = priority};
    long fd = sg_registry_add_claim(&words, &entry);
    if (fd >= 0)
        queued = entry;
    return fd;
}

/* Whether the claim of entry `a` is decided on before that of `b`. */
static bool is_before(const struct sg_registry_entry *a, const struct sg_registry_entry *b)
{
    int64_t priority_a = (int64_t)sg_load(&a->claim_priority), priority_b = (int64_t)sg_load(&b->claim_priority);
    return priority_a != priority_b ? priority_a > priority_b : sg_load(&a->claim_place) < sg_load(&b->claim_place);
}

uint64_t sg_claims_count_before(void)
{
    struct sg_registry *registry = sg_entry_registry();
    uint64_t count = 0;
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        count += entry != queued && sg_entry_is_claim(entry) && sg_entry_is_live(entry) &&
                 sg_load(&entry->claim_wanted_bytes) != 0 && is_before(entry, queued);
    }
    return count;
}

void sg_claims_grant(void)
{
    const struct sg_registry_entry *own = sg_entry_own();
    for (unsigned i = 0; i < SG_ENTRY_LEVELS; i++) /* known since the first snapshot */
        sg_store(&queued->level[i], sg_load(&own->level[i]));
    sg_store(&queued->claimed_bytes, sg_load(&queued->claim_wanted_bytes)); /* before it leaves the queue */
    sg_store(&queued->claim_wanted_bytes, 0);
}

void sg_claims_give_up(void)
{
    sg_store(&queued->claim_wanted_bytes, 0);
}

/* ---- a granted claim of this process's job ----------------------------------------------------------------------- */

bool sg_claims_find(struct sg_granted_claim *found)
{
    struct sg_registry *registry = sg_entry_registry();
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        struct sg_registry_entry *entry = sg_entry_at(registry, i);
        *found = (struct sg_granted_claim){.entry = entry, .owner = sg_load(&entry->claim)};
        if (!is_claim_of(entry, sg_own->slot.job_hash))
            continue;
        found->bytes = sg_load(&entry->claimed_bytes);
        if (found->bytes != 0 && sg_load(&entry->claim) == found->owner)
            return true;
    }
    return false;
}

uint64_t sg_claims_more(uint64_t bytes)
{
    struct sg_registry *registry = sg_entry_registry();
    const uint64_t job = sg_own->slot.job_hash;
    uint64_t claimed = claims_of(registry, sg_entry_count(registry), job), held = held_by(job, true).least;
    uint64_t beyond = held > claimed ? held - claimed : 0;
    return bytes > beyond ? bytes - beyond : 0;
}

bool sg_claims_are_judged_here(const struct sg_registry_entry *claim)
{
    const struct sg_registry_entry *own = sg_entry_own();
    for (unsigned i = 0; i < SG_ENTRY_LEVELS; i++) {
        uint64_t level = sg_load(&claim->level[i]);
        if (level != 0 && !sg_entry_is_member(own, level))
            return false;
    }
    return true;
}

bool sg_claims_change(const struct sg_granted_claim *found, uint64_t bytes)
{
    struct sg_registry_entry *entry = found->entry;
    uint64_t from = found->bytes, to = bytes;
    if (sg_load(&entry->claim) != found->owner || !sg_cas_u64(&entry->claimed_bytes, &from, bytes))
        return false;
    if (sg_load(&entry->claim) == found->owner)
        return true;
    (void)sg_cas_u64(&entry->claimed_bytes, &to, found->bytes); /* the claim of another job, of the same size */
    return false;
}
