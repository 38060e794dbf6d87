/*
 * victim.c - see victim.h. Who holds most goes, if it holds what is missing; else the largest process of a job that
 * does. Memory that a parent shares with a child it forked is neither's. Whoever has no watchdog that could act, or
 * whose watchdog has not looked for a second (it is stopped), is passed over.
 */
#include "watch/victim.h"

#include "base/atomics.h"
#include "watch/fall.h"
#include "base/options.h"
#include "admit/snapshot.h"
#include "base/procfs.h"
#include "admit/headroom.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/segment.h"
#include "base/syscall.h"
#include "base/pages.h"

#include <string.h>

/* Reading smaps_rollup takes no longer than the pause between two looks, and a tenth of the time. */
#define EXACT_MOST_BYTES (UINT64_C(8) << 30)
#define EXACT_PAUSE_NS UINT64_C(250000000)

static struct {
    bool is_forked, is_measured;
    uint64_t inherited_bytes; /* anonymous memory there was at the fork */
    uint64_t faults;          /* minor faults by then, or by when it was last measured exactly */
    int64_t copied_bytes;     /* what of it was copied by then */
    uint64_t exact_not_before_ns;
} born;

static struct sg_fall fall[SG_CONSTRAINT_CAPACITY];

void sg_victim_refork(void)
{
    memset(fall, 0, sizeof fall);
    born.is_forked = true;
    born.is_measured = false;
    born.copied_bytes = 0;
    born.exact_not_before_ns = 0;
}

static uint64_t grown_beyond(uint64_t anonymous_bytes)
{
    return anonymous_bytes > born.inherited_bytes ? anonymous_bytes - born.inherited_bytes : 0;
}

/* What a forked child holds alone. Copies that it makes do not show in what it has resident: pages it shares with its
 * parent are there already. Each costs a fault; but so do other things, and the parent's copies cost the child none:
 * measure_exactly. */
static uint64_t estimate(uint64_t anonymous_bytes, uint64_t faults)
{
    int64_t copied = born.copied_bytes + (int64_t)((faults - born.faults) * sg_page_bytes());
    if (copied > (int64_t)born.inherited_bytes)
        copied = (int64_t)born.inherited_bytes;
    int64_t held = (int64_t)grown_beyond(anonymous_bytes) + copied;
    return held < 0 ? 0 : (uint64_t)held < anonymous_bytes ? (uint64_t)held : anonymous_bytes;
}

static uint64_t grown_bytes(void)
{
    uint64_t now = sg_procfs_anonymous_bytes(0);
    if (!born.is_forked)
        return now;
    uint64_t faults = sg_procfs_minor_faults(0);
    if (!born.is_measured) {
        born.is_measured = true;
        born.inherited_bytes = now;
        born.faults = faults;
    }
    uint64_t held = estimate(now, faults), shared = now - held;
    sg_store(&sg_entry_own()->shared_bytes, shared < born.inherited_bytes ? shared : born.inherited_bytes);
    return held;
}

/* Corrects the estimate by what the kernel says; true if it did. Above the floor nobody needs to know. */
static bool measure_exactly(void)
{
    uint64_t begin = sg_clock_ns(CLOCK_MONOTONIC), least, most;
    if (!born.is_forked || !born.is_measured || begin < born.exact_not_before_ns)
        return false;
    uint64_t now = sg_procfs_anonymous_bytes(0), faults = sg_procfs_minor_faults(0);
    bool is_known = now <= EXACT_MOST_BYTES && sg_procfs_private_bytes(&least, &most);
    uint64_t end = sg_clock_ns(CLOCK_MONOTONIC), took = end - begin;
    born.exact_not_before_ns = end + (10 * took > EXACT_PAUSE_NS ? 10 * took : EXACT_PAUSE_NS);
    if (!is_known)
        return false;
    uint64_t held = estimate(now, faults);
    held = held < least ? least : held > most ? most : held;
    born.faults = faults;
    born.copied_bytes = (int64_t)held - (int64_t)grown_beyond(now);
    return true;
}

void sg_victim_publish(void)
{
    struct sg_registry_entry *entry = sg_entry_own();
    uint64_t pinned = sg_load(&sg_own->domain[SG_DOMAIN_PINNED].granted_bytes);
    sg_store(&entry->holds_bounded_bytes, grown_bytes() + pinned);
    sg_store(&entry->holds_unbounded_bytes,
             sg_headroom_unified() == 1 ? sg_load(&sg_own->domain[SG_DOMAIN_DEVICE].granted_bytes) : 0);
    bool can_end =
        sg_options.watchdog == SG_WATCHDOG_TERM && !sg_options.mode_observe; /* who only warns shields nobody */
    sg_store(&entry->watched_ns, can_end ? sg_clock_ns(CLOCK_MONOTONIC) : 0);
}

/* What the owner of a registry entry would give back to a constraint: the machine (level 0), or a cgroup. */
static uint64_t holds(struct sg_registry_entry *entry, uint64_t level)
{
    if (level == 0)
        return sg_load(&entry->holds_bounded_bytes) + sg_load(&entry->holds_unbounded_bytes);
    return sg_entry_is_member(entry, level) ? sg_load(&entry->holds_bounded_bytes) : 0;
}

static bool can_act(struct sg_registry_entry *entry, uint64_t now)
{
    return entry == sg_entry_own() ||
           (SG_CLAIM_STATE(sg_load(&entry->claim)) == SG_CLAIM_LIVE && sg_peers_is_watched(entry, now));
}

/* By the number of the registry entry: what would come back if its owner ended; 0 if it could not end itself. Under the
 * lock. */
static uint64_t comes_back[SG_ENTRY_CAPACITY], stays_with_children[SG_ENTRY_CAPACITY];

/* How many there are. Without a place among the others there is ours alone. */
static uint32_t seats_in_use(const struct sg_registry *ledger)
{
    uint32_t used = sg_load(&ledger->entry_used);
    return used == 0 ? 1 : used < SG_ENTRY_CAPACITY ? used : SG_ENTRY_CAPACITY;
}

/* What a forked child shares with its parent would not come back with the parent's end. */
static void find_shared(struct sg_registry *ledger, uint32_t used)
{
    for (uint32_t i = 0; i < used; i++)
        stays_with_children[i] = 0;
    for (uint32_t i = 0; i < used; i++) {
        struct sg_registry_entry *child = &ledger->entry[i];
        uint64_t parent = child->parent_entry, shared = sg_load(&child->shared_bytes);
        if (parent == 0 || parent > used || SG_CLAIM_STATE(sg_load(&child->claim)) != SG_CLAIM_LIVE ||
            child->parent_claim != sg_load(&ledger->entry[parent - 1].claim))
            continue;
        if (shared > stays_with_children[parent - 1])
            stays_with_children[parent - 1] = shared;
    }
}

static void find_what_comes_back(struct sg_registry *ledger, uint32_t used, uint64_t level, uint64_t now)
{
    find_shared(ledger, used);
    for (uint32_t i = 0; i < used; i++) {
        uint64_t bytes = can_act(&ledger->entry[i], now) ? holds(&ledger->entry[i], level) : 0;
        comes_back[i] = bytes > stays_with_children[i] ? bytes - stays_with_children[i] : 0;
    }
}

struct ranking {
    struct sg_registry_entry *largest; /* of all, or of the job asked for */
    uint64_t largest_bytes, sum_bytes;
};

/* The job's processes only, unless `job` is NULL. Who sits first goes before an equal. */
static struct ranking rank(struct sg_registry *ledger, uint32_t used, const uint64_t *job)
{
    struct ranking ranking = {0};
    for (uint32_t i = 0; i < used; i++) {
        if (job != NULL && ledger->entry[i].slot.job_hash != *job)
            continue;
        ranking.sum_bytes += comes_back[i];
        if (comes_back[i] > ranking.largest_bytes) {
            ranking.largest_bytes = comes_back[i];
            ranking.largest = &ledger->entry[i];
        }
    }
    return ranking;
}

/* Whether it is this process that ends so that `missing` bytes come back. */
static bool is_chosen(uint64_t level, uint64_t missing, uint64_t now)
{
    struct sg_registry *ledger = sg_entry_registry();
    uint32_t used = seats_in_use(ledger);
    find_what_comes_back(ledger, used, level, now);
    struct ranking all = rank(ledger, used, NULL), best = {0};
    if (all.largest_bytes >= missing)
        return all.largest == sg_entry_own();
    for (uint32_t i = 0; i < used; i++) {
        uint64_t job = ledger->entry[i].slot.job_hash;
        if (comes_back[i] == 0)
            continue;
        struct ranking of_job = rank(ledger, used, &job);
        if (of_job.sum_bytes >= missing && of_job.sum_bytes > best.sum_bytes)
            best = of_job;
    }
    return best.largest != NULL && best.largest == sg_entry_own();
}

/* Where this process is the one to go; else where the floor is nearest, or farthest above. */
static void find_danger(struct sg_danger *danger)
{
    uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
    int64_t least = INT64_MAX;
    struct sg_headroom_state state;
    *danger = (struct sg_danger){.left_bytes = UINT64_MAX, .zero_in_ns = UINT64_MAX};
    sg_headroom_refresh(0, false);
    for (uint32_t i = 0; sg_headroom_get_hard(i, &state); i++) {
        if (!state.is_hard)
            continue;
        sg_fall_note(&fall[i], state.identity, state.headroom_bytes, now);
        int64_t above = (int64_t)state.headroom_bytes - (int64_t)state.floor_bytes;
        bool is_ours = above < 0 && is_chosen(state.identity, state.reserve_bytes - state.headroom_bytes, now);
        if (is_ours < danger->is_ours || (is_ours == danger->is_ours && above >= least))
            continue;
        least = above;
        *danger = (struct sg_danger){.is_below_floor = above < 0,
                                     .is_ours = is_ours,
                                     .identity = state.identity,
                                     .left_bytes = state.headroom_bytes,
                                     .floor_bytes = state.floor_bytes,
                                     .reserve_bytes = state.reserve_bytes,
                                     .holds_bytes = holds(sg_entry_own(), state.identity),
                                     .zero_in_ns = sg_fall_zero_in_ns(&fall[i], state.headroom_bytes)};
    }
    if (sg_headroom_tally()->is_reclaiming && danger->left_bytes >= danger->floor_bytes / 2)
        danger->is_ours = false; /* somebody populates memory to drop it again */
}

void sg_victim_look(struct sg_danger *danger)
{
    find_danger(danger);
    if (!danger->is_below_floor || !measure_exactly())
        return;
    sg_victim_publish();
    find_danger(danger);
}
