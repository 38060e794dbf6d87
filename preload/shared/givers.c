/*
 * givers.c - see givers.h.
 */
#include "shared/givers.h"

#include "base/atomics.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/syscall.h"
#include "shared/own_entry.h"
#include "shared/peers.h"
#include "shared/segment.h"
#include "sparkguard_abi.h"

#include <linux/futex.h>
#include <time.h>

/* After this time the next process is asked as well: a callback may hang. */
#define TURN_NS UINT64_C(500000000)

/* So long after the last answer memory may still become free: the callback may only have told another process. */
#define SETTLE_NS UINT64_C(200000000)

static bool can_give(const struct sg_registry_entry *entry)
{
    return entry->slot.job_hash != sg_own->slot.job_hash &&
           (sg_load_relaxed(&entry->slot.flags) & SG_SLOT_GIVES) != 0 && sg_entry_is_live(entry) &&
           sg_load(&entry->slot.state) != SG_STATE_REPLACED;
}

static uint64_t share_of(const struct sg_registry_entry *claim)
{
    uint64_t share = sg_load(&claim->claim_share);
    return share < SG_SHARE_MIN ? SG_SHARE_MIN : share > SG_SHARE_MAX ? SG_SHARE_MAX : share;
}

/* Returns the bytes that all processes of a job hold beyond its claims, divided by its share. What a job gives back of its
 * claims is its own again, and of no use to others. */
static uint64_t lent_to(struct sg_registry *registry, uint32_t used, uint64_t job)
{
    uint64_t held = 0, claimed = 0, share = SG_SHARE_MIN;
    for (uint32_t i = 0; i < used; i++) {
        const struct sg_registry_entry *entry = sg_entry_at(registry, i);
        if (entry->slot.job_hash != job || !sg_entry_is_live(entry))
            continue;
        if (sg_entry_is_claim(entry)) {
            sg_entry_add_cut(&claimed, sg_load(&entry->claimed_bytes));
            share = share_of(entry) > share ? share_of(entry) : share;
            continue;
        }
        uint64_t granted = sg_load(&entry->slot.granted_bytes), inherited = sg_load(&entry->slot.inherited_bytes);
        sg_entry_add_cut(&held, granted > inherited ? granted - inherited : 0);
    }
    return held > claimed ? (held - claimed) / share : 0;
}

/* Ranks the processes with a callback by the bytes that are lent to their jobs, most first, and by their entries where
 * these are equal. Returns the number of the entry at rank `before` (from 0) plus one; 0: there are not so many. */
static uint32_t find(uint32_t before)
{
    struct sg_registry *registry = sg_entry_registry();
    uint32_t used = sg_entry_count(registry), found = 0, limit_entry = 0;
    uint64_t limit = UINT64_MAX;
    for (uint32_t round = 0; round <= before; round++) {
        uint64_t most = 0;
        found = 0;
        for (uint32_t i = 0; i < used; i++) {
            const struct sg_registry_entry *entry = sg_entry_at(registry, i);
            uint64_t lent = can_give(entry) ? lent_to(registry, used, entry->slot.job_hash) : 0;
            bool is_later = lent < limit || (lent == limit && i + 1 > limit_entry);
            if (lent != 0 && is_later && (found == 0 || lent > most)) {
                most = lent;
                found = i + 1;
            }
        }
        if (found == 0)
            return 0;
        limit = most;
        limit_entry = found;
    }
    return found;
}

static bool has_answered(const struct sg_givers_asked *asked)
{
    const struct sg_registry_entry *entry = sg_entry_at(sg_entry_registry(), asked->entry - 1);
    return !can_give(entry) || (int32_t)(sg_load(&entry->pressure_answered) - asked->sequence) >= 0;
}

bool sg_givers_ask(struct sg_givers_asked *asked, uint64_t bytes)
{
    uint64_t now = sg_clock_ns(CLOCK_MONOTONIC);
    if (asked->has_answered)
        return now - asked->since_ns < SETTLE_NS;
    bool is_waiting = asked->entry != 0 && !has_answered(asked);
    if (is_waiting && now - asked->since_ns < TURN_NS)
        return true;
    uint32_t next = find(asked->count);
    if (next == 0 && !is_waiting && asked->entry != 0) {
        asked->has_answered = true;
        asked->since_ns = now;
    }
    if (next == 0)
        return asked->entry != 0;
    struct sg_registry_entry *entry = sg_entry_at(sg_entry_registry(), next - 1);
    sg_raise_to(&entry->pressure_bytes, bytes);
    asked->sequence = sg_fetch_add(&entry->pressure_asked, 1u) + 1;
    (void)sg_sys_futex(&entry->pressure_asked, FUTEX_WAKE, UINT32_MAX >> 1, NULL);
    asked->since_ns = now;
    asked->entry = (uint16_t)next;
    asked->count++;
    return true;
}

static struct {
    void (*callback)(uint64_t, void *); /* (atomic) NULL: none */
    void *data;                         /* (atomic) stored before the callback */
    uint32_t has_thread;                /* (atomic) */
} own SG_AT_FORK;

void sg_givers_set(void (*callback)(uint64_t, void *), void *data)
{
    sg_store(&own.callback, NULL); /* the old function is not called with the new data */
    sg_store(&own.data, data);
    sg_store(&own.callback, callback);
    sg_givers_show();
}

void sg_givers_call(uint64_t bytes)
{
    void (*callback)(uint64_t, void *) = sg_load(&own.callback);
    if (callback != NULL)
        callback(bytes, sg_load(&own.data));
}

bool sg_givers_begin_thread(void)
{
    uint32_t absent = 0;
    return sg_cas_u32(&own.has_thread, &absent, 1);
}

void sg_givers_note_no_thread(void)
{
    sg_store(&own.has_thread, 0);
}

void sg_givers_atfork_child(void)
{
    sg_store(&own.callback, NULL);
    sg_store(&own.has_thread, 0);
    sg_fetch_and(&sg_own->slot.flags, ~(uint32_t)SG_SLOT_GIVES);
}

void sg_givers_show(void)
{
    if (sg_load(&own.callback) != NULL) {
        sg_fetch_or(&sg_own->slot.flags, (uint32_t)SG_SLOT_GIVES);
        sg_fetch_or(&sg_entry_own()->slot.flags, (uint32_t)SG_SLOT_GIVES);
    } else {
        sg_fetch_and(&sg_own->slot.flags, ~(uint32_t)SG_SLOT_GIVES);
        sg_fetch_and(&sg_entry_own()->slot.flags, ~(uint32_t)SG_SLOT_GIVES);
    }
}

uint32_t sg_givers_wait(uint32_t seen, uint64_t timeout_ns, uint64_t *bytes)
{
    struct sg_registry_entry *entry = sg_entry_own();
    const struct timespec timeout = {0, (long)timeout_ns};
    if (sg_load(&entry->pressure_asked) == seen)
        (void)sg_sys_futex(&entry->pressure_asked, FUTEX_WAIT, seen, &timeout);
    uint32_t now = sg_load(&entry->pressure_asked);
    *bytes = now != seen ? sg_load(&entry->pressure_bytes) : 0;
    if (now != seen)
        sg_store(&entry->pressure_bytes, 0);
    return now;
}

void sg_givers_answer(uint32_t sequence)
{
    sg_store(&sg_entry_own()->pressure_answered, sequence);
    sg_peers_advance();
}
