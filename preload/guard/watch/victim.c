/*
 * victim.c - see victim.h.
 *
 * The victim is the process that holds most, if it holds the missing bytes alone. Otherwise it is the largest process
 * of the largest job that holds them. Memory that a parent shares with its forked child counts for neither. Processes
 * without a watchdog that may end them, and those whose watchdog has been silent for a second (stopped), are skipped.
 */
#include "watch/victim.h"

#include "base/atomics.h"
#include "watch/fall.h"
#include "base/options.h"
#include "admit/cgroup.h"
#include "admit/snapshot.h"
#include "base/procfs.h"
#include "watch/own_process.h"
#include "admit/headroom.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/segment.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "base/pages.h"

#include <string.h>

/* smaps_rollup is read only if it takes no longer than the pause between two checks of the watchdog, and for a tenth of
 * the time at most. */
#define EXACT_MOST_BYTES (UINT64_C(8) << 30)
#define EXACT_PAUSE_NS UINT64_C(250000000)

static struct {
    bool is_forked, is_measured;
    uint64_t inherited_bytes; /* anonymous memory at the first measurement after the fork */
    uint64_t faults;          /* minor faults up to the same time, or up to the last exact measurement */
    int64_t copied_bytes;     /* the part of inherited_bytes that was copied up to that time */
    uint64_t exact_not_before_ns;
} fork_state SG_AT_FORK;

static struct sg_fall fall[SG_CONSTRAINT_CAPACITY];

void sg_victim_atfork_child(void)
{
    memset(fall, 0, sizeof fall);
    fork_state.is_forked = true;
    fork_state.is_measured = false;
    fork_state.copied_bytes = 0;
    fork_state.exact_not_before_ns = 0;
}

static uint64_t grown_beyond(uint64_t anonymous_bytes)
{
    return anonymous_bytes > fork_state.inherited_bytes ? anonymous_bytes - fork_state.inherited_bytes : 0;
}

/* Estimates the anonymous memory that a forked child holds alone. Copies of shared pages do not add to its resident
 * bytes, because the shared pages are resident already. Each copy costs a minor fault, so faults are counted. That is
 * inexact: other events cause faults as well, and copies made by the parent cause none in the child. measure_exactly
 * corrects it. */
static uint64_t estimate(uint64_t anonymous_bytes, uint64_t faults)
{
    int64_t copied = fork_state.copied_bytes + (int64_t)((faults - fork_state.faults) * sg_page_bytes());
    if (copied > (int64_t)fork_state.inherited_bytes)
        copied = (int64_t)fork_state.inherited_bytes;
    int64_t held = (int64_t)grown_beyond(anonymous_bytes) + copied;
    return held < 0 ? 0 : (uint64_t)held < anonymous_bytes ? (uint64_t)held : anonymous_bytes;
}

static uint64_t grown_bytes(void)
{
    uint64_t now = sg_procfs_anonymous_bytes(0);
    if (!fork_state.is_forked)
        return now;
    uint64_t faults = sg_own_process_minor_faults();
    if (!fork_state.is_measured) {
        fork_state.is_measured = true;
        fork_state.inherited_bytes = now;
        fork_state.faults = faults;
    }
    uint64_t held = estimate(now, faults), shared = now - held;
    sg_store(&sg_entry_own()->shared_bytes, shared < fork_state.inherited_bytes ? shared : fork_state.inherited_bytes);
    return held;
}

/* Corrects the estimate by the kernel's figures; true if it did. Needed only below the floor. */
static bool measure_exactly(void)
{
    uint64_t begin = sg_clock_ns(CLOCK_MONOTONIC), least, most;
    if (!fork_state.is_forked || !fork_state.is_measured || begin < fork_state.exact_not_before_ns)
        return false;
    uint64_t now = sg_procfs_anonymous_bytes(0), faults = sg_own_process_minor_faults();
    bool is_known = now <= EXACT_MOST_BYTES && sg_own_process_private_bytes(&least, &most);
    uint64_t end = sg_clock_ns(CLOCK_MONOTONIC), elapsed = end - begin;
    fork_state.exact_not_before_ns = end + (10 * elapsed > EXACT_PAUSE_NS ? 10 * elapsed : EXACT_PAUSE_NS);
    if (!is_known)
        return false;
    uint64_t held = estimate(now, faults);
    held = held < least ? least : held > most ? most : held;
    fork_state.faults = faults;
    fork_state.copied_bytes = (int64_t)held - (int64_t)grown_beyond(now);
    return true;
}

void sg_victim_publish(void)
{
    struct sg_registry_entry *entry = sg_entry_own();
    uint64_t pinned = sg_load(&sg_own->domain[SG_DOMAIN_PINNED].granted_bytes);
    sg_store(&entry->holds_bounded_bytes, grown_bytes() + pinned);
    sg_store(&entry->holds_unbounded_bytes,
             sg_headroom_unified() == 1 ? sg_load(&sg_own->domain[SG_DOMAIN_DEVICE].granted_bytes) : 0);
    /* A process that only warns frees nothing: 0 lets the other processes skip it. */
    bool can_end = sg_options.watchdog == SG_WATCHDOG_TERM && !sg_options.mode_observe;
    sg_store(&entry->watched_ns, can_end ? sg_clock_ns(CLOCK_MONOTONIC) : 0);
}

/* Bytes that the owner of a registry entry holds of a constraint: the machine (level 0), or a cgroup. */
static uint64_t holds(struct sg_registry_entry *entry, uint64_t level)
{
    if (level == 0)
        return sg_load(&entry->holds_bounded_bytes) + sg_load(&entry->holds_unbounded_bytes);
    return sg_entry_is_member(entry, level) ? sg_load(&entry->holds_bounded_bytes) : 0;
}

static bool can_act(struct sg_registry_entry *entry, uint64_t now)
{
    return entry == sg_entry_own() || (sg_entry_is_live(entry) && sg_peers_is_watched(entry, now));
}

/* By index of the registry entry: bytes that its owner's end would free, 0 if the owner cannot end itself; the same for
 * its place in the order (put_children_before); and bytes that forked children would keep. Static, under the decision
 * lock. */
static uint64_t freed_on_exit[SG_ENTRY_CAPACITY], order[SG_ENTRY_CAPACITY], kept_by_children[SG_ENTRY_CAPACITY];

/* Number of registry entries in use. A process without an entry in the common registry has one of its own. */
static uint32_t entries_in_use(const struct sg_registry *registry)
{
    uint32_t used = sg_entry_count(registry);
    return used == 0 ? 1 : used;
}

/* The parent's entry in use, by its number from 1 on; 0: none, or the child has ended. */
static uint32_t parent_of(struct sg_registry *registry, uint32_t used, uint32_t number)
{
    struct sg_registry_entry *child = sg_entry_at(registry, number);
    uint64_t parent = child->parent_entry;
    bool is_known = parent != 0 && parent <= used && sg_entry_is_live(child) &&
                    child->parent_claim == sg_load(&sg_entry_at(registry, (uint32_t)parent - 1)->claim);
    return is_known ? (uint32_t)parent : 0;
}

/* For each parent, the largest number of bytes that a child shares with it: its end would not free them. */
static void find_shared(struct sg_registry *registry, uint32_t used)
{
    for (uint32_t i = 0; i < used; i++)
        kept_by_children[i] = 0;
    for (uint32_t i = 0; i < used; i++) {
        uint64_t shared = sg_load(&sg_entry_at(registry, i)->shared_bytes);
        uint32_t parent = parent_of(registry, used, i);
        if (parent != 0 && shared > kept_by_children[parent - 1])
            kept_by_children[parent - 1] = shared;
    }
}

/* What a child copies its parent holds alone, too, though the child grows. Copies are only estimated. So a child comes
 * before a parent that holds less than a sixteenth more, at the parent's place among the others. The rounds end when
 * all pairs are in order: a child may be a parent as well. */
static void put_children_before(struct sg_registry *registry, uint32_t used)
{
    enum { ROUNDS_MAX = 8 }; /* of generations; entries of others may name each other as parents */
    bool is_changed = true;
    for (int round = 0; round < ROUNDS_MAX && is_changed; round++) {
        is_changed = false;
        for (uint32_t i = 0; i < used; i++) {
            uint32_t parent = parent_of(registry, used, i);
            uint64_t child = freed_on_exit[i];
            if (parent == 0 || child == 0 || order[i] > order[parent - 1] ||
                freed_on_exit[parent - 1] >= child + child / 16)
                continue;
            order[i] = order[parent - 1] + 1;
            is_changed = true;
        }
    }
}

static void find_freed_on_exit(struct sg_registry *registry, uint32_t used, uint64_t level, uint64_t now)
{
    find_shared(registry, used);
    for (uint32_t i = 0; i < used; i++) {
        struct sg_registry_entry *entry = sg_entry_at(registry, i);
        uint64_t bytes = can_act(entry, now) ? holds(entry, level) : 0;
        freed_on_exit[i] = order[i] = bytes > kept_by_children[i] ? bytes - kept_by_children[i] : 0;
    }
    put_children_before(registry, used);
}

struct ranking {
    struct sg_registry_entry *largest; /* the first in the order, of all or of the given job */
    uint64_t largest_order, largest_bytes, sum_bytes;
};

/* Ranks the processes of a job, or all if `job` is NULL. If entries are equal, every process chooses the first one. */
static struct ranking rank(struct sg_registry *registry, uint32_t used, const uint64_t *job)
{
    struct ranking ranking = {0};
    for (uint32_t i = 0; i < used; i++) {
        if (job != NULL && sg_entry_at(registry, i)->slot.job_hash != *job)
            continue;
        ranking.sum_bytes += freed_on_exit[i];
        if (order[i] > ranking.largest_order ||
            (order[i] == ranking.largest_order && freed_on_exit[i] > ranking.largest_bytes)) {
            ranking.largest_order = order[i];
            ranking.largest_bytes = freed_on_exit[i];
            ranking.largest = sg_entry_at(registry, i);
        }
    }
    return ranking;
}

/* Whether this process is the victim that frees `missing` bytes. */
static bool is_chosen(uint64_t level, uint64_t missing, uint64_t now)
{
    struct sg_registry *registry = sg_entry_registry();
    uint32_t used = entries_in_use(registry);
    find_freed_on_exit(registry, used, level, now);
    struct ranking all = rank(registry, used, NULL), best = {0};
    if (all.largest_bytes >= missing)
        return all.largest == sg_entry_own();
    for (uint32_t i = 0; i < used; i++) {
        uint64_t job = sg_entry_at(registry, i)->slot.job_hash;
        if (freed_on_exit[i] == 0)
            continue;
        struct ranking of_job = rank(registry, used, &job);
        if (of_job.sum_bytes >= missing && of_job.sum_bytes > best.sum_bytes)
            best = of_job;
    }
    return best.largest != NULL && best.largest == sg_entry_own();
}

/* Describes the constraint for which this process is the victim. If there is none, describes the constraint with the
 * least memory above its floor. Constraints are those of the last snapshot, by the kernel's figures alone, with the
 * watchdog's reserve and floor; of cgroups only hard limits count (memory.max, not memory.high). */
static void find_danger(struct sg_danger *danger)
{
    uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
    int64_t least = INT64_MAX;
    const struct sg_snapshot *snapshot = &sg_headroom_last.snapshot;
    *danger = (struct sg_danger){.left_bytes = UINT64_MAX, .zero_in_ns = UINT64_MAX};
    sg_headroom_watch();
    for (uint32_t i = 0; snapshot->is_valid && i < snapshot->count; i++) {
        struct sg_constraint state;
        if (!sg_cgroup_get_hard(&snapshot->at[i], i == 0, &state))
            continue;
        uint64_t identity = i == 0 ? 0 : sg_entry_own()->level[state.level]; /* 0: the machine */
        sg_fall_note(&fall[i], identity, state.headroom_bytes, now);
        int64_t above = (int64_t)state.headroom_bytes - (int64_t)state.floor_bytes;
        bool is_ours = above < 0 && is_chosen(identity, state.reserve_bytes - state.headroom_bytes, now);
        if (is_ours < danger->is_ours || (is_ours == danger->is_ours && above >= least))
            continue;
        least = above;
        *danger = (struct sg_danger){.is_below_floor = above < 0,
                                     .is_ours = is_ours,
                                     .identity = identity,
                                     .left_bytes = state.headroom_bytes,
                                     .floor_bytes = state.floor_bytes,
                                     .reserve_bytes = state.reserve_bytes,
                                     .holds_bytes = holds(sg_entry_own(), identity),
                                     .zero_in_ns = sg_fall_zero_in_ns(&fall[i], state.headroom_bytes)};
    }
}

void sg_victim_refresh(struct sg_danger *danger)
{
    find_danger(danger);
    if (!danger->is_below_floor || !measure_exactly())
        return;
    sg_victim_publish();
    find_danger(danger);
}
