/*
 * own_entry.c - see own_entry.h. Changes use no lock: a stop-the-world collector, a debugger or a signal may stop a
 * thread in the middle of a change, and the other threads must go on.
 */
#include "shared/own_entry.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "shared/segment.h"

#include <string.h>

union sg_entry_alone sg_entry_alone __attribute__((aligned(64)));
struct sg_entry_place sg_entry_place SG_AT_FORK;

static struct {
    uint64_t part[3];   /* (atomic) bytes in flight: SG_SUM_BOUNDED, SG_SUM_UNBOUNDED, SG_SUM_DISCRETE */
    uint64_t landed[2]; /* (atomic) bytes ever completed: SG_SUM_BOUNDED, SG_SUM_UNBOUNDED */
    uint64_t device;    /* (atomic) the discrete device of part[2]; SG_UNKNOWN: several */
    uint64_t transit;   /* (atomic) changes of sums under way; see TRANSIT */
} flight;

/* (atomic) the words of SG_SUM_EVER and what follows it */
static uint64_t promise_words[4];

void sg_entry_set_registry(struct sg_registry *registry)
{
    sg_store(&sg_entry_place.registry, registry);
}

void sg_entry_set_own(struct sg_registry_entry *entry)
{
    sg_store(&sg_entry_place.entry, entry);
}

/* The layouts of the registries mapped last. A mapping stays when its file is replaced: a thread may be using it. */
static struct {
    const struct sg_registry *registry; /* (atomic) */
    struct sg_registry_layout layout;
} layouts[4];

void sg_entry_note_layout(const struct sg_registry *registry, struct sg_registry_layout layout)
{
    static uint32_t noted;
    uint32_t i = noted++ % SG_ARRAY_LENGTH(layouts);
    for (unsigned k = 0; k < SG_ARRAY_LENGTH(layouts); k++) /* the observer reads many registries into one place */
        if (k == i || sg_load(&layouts[k].registry) == registry)
            sg_store(&layouts[k].registry, NULL);
    layouts[i].layout = layout;
    sg_store(&layouts[i].registry, registry);
}

/* For any other registry, returns the layout that all versions share. */
static struct sg_registry_layout layout_of(const struct sg_registry *registry)
{
    for (unsigned i = 0; i < SG_ARRAY_LENGTH(layouts); i++)
        if (sg_load(&layouts[i].registry) == registry)
            return layouts[i].layout;
    return (struct sg_registry_layout){SG_ENTRY_FROZEN_BYTES, 0};
}

struct sg_registry_entry *sg_entry_at(struct sg_registry *registry, uint32_t number)
{
    return (void *)((char *)registry->entry + (size_t)number * layout_of(registry).entry_bytes);
}

uint32_t sg_entry_number(const struct sg_registry_entry *entry)
{
    const struct sg_registry *registry = sg_entry_registry();
    return (uint32_t)((size_t)((const char *)entry - (const char *)registry->entry) / layout_of(registry).entry_bytes);
}

bool sg_entry_has_names(void)
{
    const struct sg_registry *registry = sg_entry_shared_registry();
    return registry != NULL && layout_of(registry).is_this_version != 0;
}

const struct sg_registry_entry *sg_entry_names(const struct sg_registry_entry *entry)
{
    static const struct sg_registry_entry none;
    if (SG_LIKELY(sg_entry_has_names()))
        return entry;
    return entry == sg_entry_own() ? &sg_entry_alone.registry.entry[0] : &none;
}

struct sg_registry_entry *sg_entry_own_names(void)
{
    return sg_entry_has_names() ? sg_entry_own() : &sg_entry_alone.registry.entry[0];
}

bool sg_entry_is_member(const struct sg_registry_entry *entry, uint64_t level)
{
    bool is_member = false;
    for (unsigned i = 0; i < SG_ENTRY_LEVELS; i++)
        is_member |= sg_load_relaxed(&entry->level[i]) == level;
    return is_member;
}

static SG_INLINE uint64_t *word_of(enum sg_sum sum)
{
    switch (sum) {
    case SG_SUM_GRANTED:
        return &sg_own->slot.granted_bytes;
    case SG_SUM_PROMISED:
        return &sg_own->slot.promised_bytes;
    case SG_SUM_SPARSE:
        return &sg_own->slot.sparse_bytes;
    case SG_SUM_DEVICE:
        return &sg_own->domain[SG_DOMAIN_DEVICE].granted_bytes;
    case SG_SUM_FLIGHT:
        return &sg_own->slot.in_flight_bytes;
    case SG_SUM_PINNED:
        return &sg_own->domain[SG_DOMAIN_PINNED].granted_bytes;
    case SG_SUM_MANAGED:
        return &sg_own->domain[SG_DOMAIN_MANAGED].granted_bytes;
    case SG_SUM_EVER:
    case SG_SUM_SHARED:
    case SG_SUM_UNWRITABLE:
    case SG_SUM_INHERITED:
        return &promise_words[sum - SG_SUM_EVER];
    case SG_SUM_BOUNDED:
    case SG_SUM_UNBOUNDED:
    case SG_SUM_DISCRETE:
    case SG_SUM_COUNT:
        break;
    }
    return &flight.part[sum - SG_SUM_BOUNDED];
}

static uint64_t *entry_word(struct sg_registry_entry *entry, enum sg_sum sum)
{
    static const size_t offset[SG_SUM_COUNT] = {
        [SG_SUM_GRANTED] = offsetof(struct sg_registry_entry, slot.granted_bytes),
        [SG_SUM_PROMISED] = offsetof(struct sg_registry_entry, slot.promised_bytes),
        [SG_SUM_SPARSE] = offsetof(struct sg_registry_entry, slot.sparse_bytes),
        [SG_SUM_DEVICE] = offsetof(struct sg_registry_entry, slot.device_bytes),
        [SG_SUM_FLIGHT] = offsetof(struct sg_registry_entry, slot.in_flight_bytes),
        [SG_SUM_BOUNDED] = offsetof(struct sg_registry_entry, bounded_flight_bytes),
        [SG_SUM_UNBOUNDED] = offsetof(struct sg_registry_entry, unbounded_flight_bytes),
        [SG_SUM_DISCRETE] = offsetof(struct sg_registry_entry, device_flight_bytes),
        [SG_SUM_PINNED] = offsetof(struct sg_registry_entry, pinned_bytes),
        [SG_SUM_MANAGED] = offsetof(struct sg_registry_entry, managed_bytes),
        [SG_SUM_EVER] = offsetof(struct sg_registry_entry, ever_promised_bytes),
        [SG_SUM_SHARED] = offsetof(struct sg_registry_entry, shared_promised_bytes),
        [SG_SUM_UNWRITABLE] = offsetof(struct sg_registry_entry, unwritable_bytes),
        [SG_SUM_INHERITED] = offsetof(struct sg_registry_entry, inherited_least_bytes),
    };
    return (uint64_t *)(void *)((char *)entry + offset[sum]);
}

/* flight.transit: the number of changes under way (low half), and of all changes ever begun (high half). */
#define TRANSIT (UINT64_C(1) << 32 | 1)
#define UNDER_WAY(transit) ((uint32_t)(transit))

/* (atomic) Changes that this thread is in the middle of: more than one in a signal handler. Only this thread uses it.
 * For its handlers the compiler must not drop the stores around a change: GCC 12 does so to plain ones under TSan. */
static SG_THREAD_LOCAL uint32_t changing;

static void begin_change(void)
{
    sg_store_relaxed(&changing, sg_load_relaxed(&changing) + 1);
    sg_fetch_add(&flight.transit, TRANSIT);
}

static void end_change(void)
{
    sg_fetch_sub(&flight.transit, UINT64_C(1));
    sg_store_relaxed(&changing, sg_load_relaxed(&changing) - 1);
}

bool sg_entry_is_changing(void)
{
    return sg_load_relaxed(&changing) != 0;
}

void sg_entry_lower_managed_missing(uint64_t bytes)
{
    begin_change();
    (void)sg_sub_clamped(&sg_entry_own()->slot.live_bytes, bytes);
    end_change();
}

static SG_INLINE uint64_t raise_one(struct sg_registry_entry *entry, enum sg_sum sum, uint64_t bytes)
{
    sg_fetch_add(entry_word(entry, sum), bytes);
    return sg_fetch_add(word_of(sum), bytes) + bytes;
}

static SG_INLINE uint64_t lower_one(struct sg_registry_entry *entry, enum sg_sum sum, uint64_t bytes)
{
    uint64_t missing = sg_sub_clamped(word_of(sum), bytes);
    sg_fetch_sub(entry_word(entry, sum), bytes - missing);
    return missing;
}

uint64_t sg_entry_raise(enum sg_sum sum, uint64_t bytes)
{
    begin_change();
    uint64_t now = raise_one(sg_entry_own(), sum, bytes);
    end_change();
    return now;
}

uint64_t sg_entry_lower(enum sg_sum sum, uint64_t bytes)
{
    begin_change();
    uint64_t missing = lower_one(sg_entry_own(), sum, bytes);
    end_change();
    return missing;
}

uint64_t sg_entry_raise_both(enum sg_sum part, enum sg_sum whole, uint64_t bytes, uint64_t *whole_now)
{
    begin_change();
    struct sg_registry_entry *entry = sg_entry_own();
    uint64_t now = raise_one(entry, part, bytes);
    *whole_now = raise_one(entry, whole, bytes);
    end_change();
    return now;
}

void sg_entry_lower_both(enum sg_sum part, enum sg_sum whole, uint64_t bytes)
{
    begin_change();
    struct sg_registry_entry *entry = sg_entry_own();
    (void)lower_one(entry, whole, bytes - lower_one(entry, part, bytes));
    end_change();
}

bool sg_entry_exchange(enum sg_sum sum, uint64_t *expected, uint64_t desired)
{
    begin_change();
    uint64_t *shown = entry_word(sg_entry_own(), sum), before = *expected;
    if (desired > before)
        sg_fetch_add(shown, desired - before);
    bool is_done = sg_cas_u64(word_of(sum), expected, desired);
    if (desired > before && !is_done)
        sg_fetch_sub(shown, desired - before);
    else if (desired < before && is_done)
        sg_fetch_sub(shown, before - desired);
    end_change();
    return is_done;
}

uint64_t sg_entry_sum(enum sg_sum sum)
{
    return sg_load(word_of(sum));
}

/* A thread that read the old entry's address while the new entry was being filled has changed the word and not the new
 * entry. If no change is under way and none began meanwhile, the difference is exactly the lost changes. */
bool sg_entry_reconcile(bool is_change_finished)
{
    struct sg_registry_entry *entry = sg_entry_own();
    bool is_compared = true;
    for (int sum = 0; sum < SG_SUM_COUNT; sum++) {
        uint64_t before = sg_load(&flight.transit);
        uint64_t lost = sg_load(word_of((enum sg_sum)sum)) - sg_load(entry_word(entry, (enum sg_sum)sum));
        if (!is_change_finished && (UNDER_WAY(before) != 0 || sg_load(&flight.transit) != before))
            is_compared = false;
        else if (lost != 0)
            sg_fetch_add(entry_word(entry, (enum sg_sum)sum), lost);
    }
    return is_compared;
}

/* ---- memory files ------------------------------------------------------------------------------------------------ */

void sg_entry_begin_files(void)
{
    uint64_t *version = &sg_entry_own()->files_version;
    sg_store(version, (sg_load(version) + 1) | 1);
}

/* Makes the version even. If this process took a new entry after the change began, that entry's version was not odd; it
 * is raised all the same, so that other processes notice the change. */
static void end_files(void)
{
    uint64_t *version = &sg_entry_own()->files_version;
    sg_store(version, (sg_load(version) | 1) + 1);
}

/* Writes the ranges into the segment as well, for the tools. */
void sg_entry_end_files(const struct sg_memory_file *file, uint32_t count, uint32_t more)
{
    struct sg_registry_entry *entry = sg_entry_own_names();
    sg_store(&entry->more_files, (uint64_t)more);
    for (uint32_t i = 0; i < SG_FILE_CAPACITY; i++) {
        const struct sg_memory_file now = i < count ? file[i] : (struct sg_memory_file){0, 0, 0};
        if (now.begin == 0 && entry->file[i].begin == 0 && sg_own->file[i].begin == 0)
            break;
        sg_store(&entry->file[i].begin, now.begin);
        sg_store(&entry->file[i].end, now.end);
        sg_store(&entry->file[i].missing_bytes, now.missing_bytes);
        sg_own->file[i] = now;
    }
    end_files();
}

void sg_entry_set_file_bytes(uint64_t bytes)
{
    sg_store(&sg_entry_own_names()->file_bytes, bytes);
}

void sg_entry_note_file_change(void)
{
    sg_fetch_add(&sg_entry_own_names()->file_changes, UINT64_C(1));
}

void sg_entry_become_helper(void)
{
    sg_fetch_or(&sg_own->slot.flags, (uint32_t)SG_SLOT_HELPER); /* first: an entry that is taken now copies it */
    sg_fetch_or(&sg_entry_own()->slot.flags, (uint32_t)SG_SLOT_HELPER);
}

/* ---- requests in flight ------------------------------------------------------------------------------------------ */

void sg_entry_flight_add(uint64_t source, int64_t bytes)
{
    enum sg_sum part = source == SG_SOURCE_BOUNDED     ? SG_SUM_BOUNDED
                       : source == SG_SOURCE_UNBOUNDED ? SG_SUM_UNBOUNDED
                                                       : SG_SUM_DISCRETE;
    if (part == SG_SUM_DISCRETE) {
        uint64_t before = sg_load(&flight.device);
        bool is_other = sg_load(word_of(SG_SUM_DISCRETE)) != 0 && before != source;
        sg_store(&flight.device, is_other ? SG_UNKNOWN : source);
        sg_store(&sg_entry_own()->flight_device, is_other ? SG_UNKNOWN : source);
    }
    if (bytes >= 0) {
        uint64_t all;
        (void)sg_entry_raise_both(part, SG_SUM_FLIGHT, (uint64_t)bytes, &all);
    } else {
        sg_fetch_add(&sg_entry_own()->slot.landed_count, UINT64_C(1));
        sg_entry_lower_both(part, SG_SUM_FLIGHT, (uint64_t)-bytes);
    }
}

/* `landed` is raised before the bytes leave flight. A reader with an older snapshot, which does not show these bytes,
 * finds them in flight or in `landed`. */
void sg_entry_flight_complete(uint64_t source, uint64_t bytes)
{
    if (source == SG_SOURCE_BOUNDED || source == SG_SOURCE_UNBOUNDED)
        sg_fetch_add(&flight.landed[source == SG_SOURCE_UNBOUNDED], bytes);
    sg_entry_flight_add(source, -(int64_t)bytes);
}

uint64_t sg_entry_own_landed(bool is_bounded_only)
{
    return sg_load(&flight.landed[0]) + (is_bounded_only ? 0 : sg_load(&flight.landed[1]));
}

uint64_t sg_entry_own_flight(bool is_bounded_only)
{
    uint64_t bounded = sg_load(word_of(SG_SUM_BOUNDED));
    return bounded + (is_bounded_only ? 0 : sg_load(word_of(SG_SUM_UNBOUNDED)));
}

uint64_t sg_entry_own_device_flight(uint64_t device)
{
    uint64_t device_in_flight = sg_load(&flight.device);
    return device_in_flight == device || device_in_flight == SG_UNKNOWN ? sg_load(word_of(SG_SUM_DISCRETE)) : 0;
}

uint64_t sg_entry_flight_device(void)
{
    return sg_load(&flight.device);
}

void sg_entry_atfork_child_sums(void)
{
    memset(&flight, 0, sizeof flight);
    memset(promise_words, 0, sizeof promise_words);
    flight.transit = sg_load_relaxed(&changing); /* the interrupted call ends them */
    memset(&sg_entry_alone, 0, sizeof sg_entry_alone);
}
