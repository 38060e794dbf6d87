/*
 * givers.c - see givers.h.
 */
#include "shared/givers.h"

#include "base/atomics.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/procfs.h"
#include "base/syscall.h"
#include "shared/claims.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/segment.h"
#include "sparkguard_abi.h"

#include <linux/futex.h>

/* After this time the next process is asked as well: a callback may hang. */
#define TURN_NS UINT64_C(500000000)

/* So long after the last answer memory may still become free: the callback may only have told another process. */
#define SETTLE_NS UINT64_C(200000000)

/* Whether the process is of this user, as far as its number here tells: another one's heap is not to be asked. */
static bool is_of_this_user(const struct sg_registry_entry *entry)
{
    return sg_load(&entry->pid_namespace) == sg_own->pid_namespace &&
           sg_procfs_user(entry->slot.pid) == sg_syscall(SYS_geteuid, 0, 0, 0, 0, 0, 0);
}

/* Whether the process runs a command (--on-pressure) that it would not start for this user. */
static SG_APART bool is_closed_to_us(const struct sg_registry_entry *entry)
{
    return (sg_load_relaxed(&entry->slot.flags) & SG_SLOT_HELPER) != 0 &&
           sg_syscall(SYS_geteuid, 0, 0, 0, 0, 0, 0) != 0 && !is_of_this_user(entry);
}

static bool can_give(const struct sg_registry_entry *entry)
{
    return entry->slot.job_hash != sg_own->slot.job_hash &&
           (sg_load_relaxed(&entry->slot.flags) & SG_SLOT_GIVES) != 0 && sg_entry_is_live(entry) &&
           sg_load(&entry->slot.state) != SG_STATE_REPLACED && !is_closed_to_us(entry);
}

/* Whether the heap of the process may have much to give (trim.h), which no claim and no share concerns. */
static bool can_trim(const struct sg_registry_entry *entry)
{
    return (sg_load_relaxed(&entry->slot.flags) & SG_SLOT_TRIMS) != 0 && entry != sg_entry_own() &&
           sg_entry_is_live(entry) && sg_load(&entry->slot.state) != SG_STATE_REPLACED;
}

/* Whether the process left a question unanswered until nobody waited any more: it is stopped, or its callback hangs. */
static bool is_silent(const struct sg_registry_entry *entry)
{
    return (sg_load(&entry->slot.flags) & SG_SLOT_SILENT) != 0;
}

/* A helper runs its command only for what is in a record of its own user or of root: everybody who shares the registry
 * can write the rest of a question, and nobody but its owner a record. */
static void note_question(uint64_t bytes)
{
    sg_store(&sg_own->asked_bytes, bytes);
    sg_store(&sg_own->asked_time_ns, (int64_t)sg_clock_ns(CLOCK_REALTIME));
    sg_segment_write_through();
}

static uint32_t put_question(struct sg_registry_entry *entry, uint64_t bytes)
{
    note_question(bytes);
    sg_raise_to(&entry->pressure_bytes, bytes);
    uint32_t sequence = sg_fetch_add(&entry->pressure_asked, 1u) + 1;
    (void)sg_sys_futex(&entry->pressure_asked, FUTEX_WAKE, UINT32_MAX >> 1, NULL);
    return sequence;
}

/* Asks the silent processes, whose answers nobody waits for: they give memory back when they go on. */
static void ask_silent(uint64_t bytes)
{
    struct sg_registry *registry = sg_entry_registry();
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (can_give(entry) && is_silent(entry) && sg_claims_lent_to(entry->slot.job_hash) != 0)
            (void)put_question(entry, bytes);
    }
}

static bool was_asked(const struct sg_givers_asked *asked, uint32_t number)
{
    for (uint32_t i = 0; i < asked->count; i++)
        if (asked->entry[i] == number)
            return true;
    return false;
}

/* Returns the number of the process that is asked next: of those that were not asked yet, one whose heap may have much
 * to give; else one of the job to which the most is lent, and there the one that holds the most. SG_ENTRY_CAPACITY:
 * there is none. */
static uint32_t find_next(const struct sg_givers_asked *asked)
{
    struct sg_registry *registry = sg_entry_registry();
    uint32_t next = SG_ENTRY_CAPACITY;
    uint64_t most = 0, most_held = 0;
    if (asked->count == SG_GIVERS_ASKED_MAX)
        return SG_ENTRY_CAPACITY;
    for (uint32_t i = 0, used = sg_entry_count(registry); i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (can_trim(entry) && !is_silent(entry) && !was_asked(asked, i) && is_of_this_user(entry))
            return i;
        bool is_next = can_give(entry) && !is_silent(entry) && !was_asked(asked, i);
        uint64_t lent = is_next ? sg_claims_lent_to(entry->slot.job_hash) : 0;
        uint64_t held = sg_load(&entry->slot.granted_bytes);
        if (lent > most || (lent != 0 && lent == most && held > most_held)) {
            most = lent;
            most_held = held;
            next = i;
        }
    }
    return next;
}

/* Whether the process that was asked as number `which` has answered. */
static bool has_answered(const struct sg_givers_asked *asked, uint32_t which)
{
    const struct sg_registry_entry *entry = sg_entry_at(sg_entry_registry(), asked->entry[which]);
    return (!can_give(entry) && !can_trim(entry)) ||
           (int32_t)(sg_load(&entry->pressure_answered) - asked->sequence[which]) >= 0;
}

bool sg_givers_ask(struct sg_givers_asked *asked, uint64_t bytes)
{
    uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
    if (asked->has_answered)
        return now - asked->since_ns < SETTLE_NS;
    bool is_waiting = asked->count != 0 && !has_answered(asked, asked->count - 1u);
    if (!asked->has_asked_silent)
        ask_silent(bytes);
    asked->has_asked_silent = true;
    bool is_news = !is_waiting && asked->seen != asked->count;
    if (is_news)
        asked->seen = asked->count;
    if (is_news || (is_waiting && now - asked->since_ns < TURN_NS))
        return true;
    uint32_t next = find_next(asked);
    if (next == SG_ENTRY_CAPACITY) {
        asked->has_answered = asked->count != 0 && !is_waiting;
        asked->since_ns = asked->has_answered ? now : asked->since_ns;
        return asked->count != 0;
    }
    struct sg_registry_entry *entry = sg_entry_at(sg_entry_registry(), next);
    asked->sequence[asked->count] = put_question(entry, bytes);
    if (can_trim(entry))
        sg_peers_call(); /* its watchdog answers */
    asked->since_ns = now;
    asked->entry[asked->count++] = (uint16_t)next;
    return true;
}

/* An answer that comes between the question and the flag clears nothing. The next refusal asks again, and that answer
 * clears it. */
void sg_givers_give_up(const struct sg_givers_asked *asked)
{
    for (uint32_t i = 0; i < asked->count; i++)
        if (!has_answered(asked, i))
            sg_fetch_or(&sg_entry_at(sg_entry_registry(), asked->entry[i])->slot.flags, (uint32_t)SG_SLOT_SILENT);
}

void sg_givers_answer(uint32_t sequence)
{
    sg_store(&sg_entry_own()->pressure_answered, sequence);
    sg_fetch_and(&sg_entry_own()->slot.flags, ~(uint32_t)SG_SLOT_SILENT);
    sg_peers_advance();
}
