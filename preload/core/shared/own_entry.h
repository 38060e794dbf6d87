/*
 * own_entry.h - the sums in this process's registry entry. Any thread changes them together with the process's own
 * words, without a lock. registry.c takes and releases the entry.
 */
#ifndef SG_PRELOAD_SHARED_OWN_ENTRY_H
#define SG_PRELOAD_SHARED_OWN_ENTRY_H

#include "base/atomics.h"
#include "base/pages.h"
#include "shared/segment.h"
#include "sparkguard_abi.h"

#include <stdbool.h>

/* The registry that this process uses now, and its entry there. A process that decides alone has a private registry
 * with one entry; both pointers change when it joins. Never NULL. Any thread. */
static inline struct sg_registry *sg_entry_registry(void);
static inline struct sg_registry_entry *sg_entry_own(void);

/* The shared registry and the entry in it, or NULL in a process that decides alone. Any thread. */
static inline struct sg_registry *sg_entry_shared_registry(void);
static inline struct sg_registry_entry *sg_entry_shared_own(void);

/* What the header of a shared registry said when it was checked. Another process may write anything into the header
 * afterwards, so nothing reads these words there. */
struct sg_registry_layout {
    uint32_t entry_bytes;     /* distance from one entry to the next */
    uint32_t is_this_version; /* the entries have all fields of this version */
};

/* Notes the layout of a registry that has just been mapped. Under the decision lock. */
void sg_entry_note_layout(const struct sg_registry *registry, struct sg_registry_layout layout);

/* Entry `number` of a registry, below SG_ENTRY_CAPACITY. Entry 0 of a private registry is its only one. Any thread. */
struct sg_registry_entry *sg_entry_at(struct sg_registry *registry, uint32_t number);

/* The number of an entry of the shared registry, and whether that is of this version: then its file has further ranges
 * of shared memory. Any thread. */
uint32_t sg_entry_number(const struct sg_registry_entry *entry);
bool sg_entry_has_names(void);

/* An entry's names of shared memory: the fields from `file` on. They are in the entry itself if the registry is of this
 * version. Otherwise this process keeps its own for itself, and sees none of other processes. */
const struct sg_registry_entry *sg_entry_names(const struct sg_registry_entry *entry);
struct sg_registry_entry *sg_entry_own_names(void);

/* Set both pointers; NULL: the process decides alone. For registry.c, under the decision lock. */
void sg_entry_set_registry(struct sg_registry *registry);
void sg_entry_set_own(struct sg_registry_entry *entry);

/* The sums that a registry entry shows. Each follows one word of this process, named here. */
enum sg_sum {
    SG_SUM_GRANTED,    /* slot.granted_bytes */
    SG_SUM_PROMISED,   /* slot.promised_bytes */
    SG_SUM_SPARSE,     /* slot.sparse_bytes */
    SG_SUM_DEVICE,     /* domain[DEVICE].granted_bytes; in the registry entry slot.device_bytes */
    SG_SUM_FLIGHT,     /* slot.in_flight_bytes, the sum of the next three: */
    SG_SUM_BOUNDED,    /* in flight, bounded by cgroups */
    SG_SUM_UNBOUNDED,  /* in flight, of the machine but not bounded by cgroups */
    SG_SUM_DISCRETE,   /* in flight, of discrete devices */
    SG_SUM_PINNED,     /* domain[PINNED].granted_bytes */
    SG_SUM_MANAGED,    /* domain[MANAGED].granted_bytes */
    SG_SUM_EVER,       /* ever_promised_bytes */
    SG_SUM_SHARED,     /* shared_promised_bytes */
    SG_SUM_UNWRITABLE, /* unwritable_bytes */
    SG_SUM_INHERITED,  /* inherited_least_bytes */
    SG_SUM_COUNT
};

/* Change one sum: the process's word and the registry entry. The entry is raised before the word and lowered after it,
 * so the entry never shows too little. Other processes see the change before the call returns, and no other thread
 * undoes it. Any thread, any time.
 *
 * raise    Adds `bytes`. Returns the word's new value.
 * lower    Subtracts `bytes` and stops at zero. Returns the bytes that could not be subtracted.
 * exchange Compare-and-swap of the word; the entry follows. On failure false, and *expected is the present value. */
uint64_t sg_entry_raise(enum sg_sum sum, uint64_t bytes);
uint64_t sg_entry_lower(enum sg_sum sum, uint64_t bytes);
bool sg_entry_exchange(enum sg_sum sum, uint64_t *expected, uint64_t desired);

/* Change `part` and the sum `whole` that contains it by the same bytes. raise_both returns the new value of `part` and
 * stores that of `whole` in *whole_now. lower_both lowers `whole` by the bytes that it took from `part`. Any thread,
 * any time. */
uint64_t sg_entry_raise_both(enum sg_sum part, enum sg_sum whole, uint64_t bytes, uint64_t *whole_now);
void sg_entry_lower_both(enum sg_sum part, enum sg_sum whole, uint64_t bytes);

/* The present value of the process's word. Any thread. */
uint64_t sg_entry_sum(enum sg_sum sum);

/* Repairs the sums of a newly taken entry: adds the changes that other threads made to the old entry while the new one
 * was being filled. False: some sum could not be compared because changes were under way; call again.
 * `is_change_finished`: what seems to be under way will never end (a handler left it), so all sums are compared. */
bool sg_entry_reconcile(bool is_change_finished);

/* Change the ranges of shared memory that the entry shows (tmpfs_ranges.h), each with the part of promised_bytes that
 * is not resident there. Call begin, change promised_bytes or granted_bytes, then call end with the `count` new ranges,
 * at most SG_FILE_CAPACITY, and the number of those that were written behind all entries. Between the two, other
 * processes treat the ranges as unknown. Under sg_tracker_maps_lock. */
void sg_entry_begin_files(void);
void sg_entry_end_files(const struct sg_memory_file *file, uint32_t count, uint32_t more);

/* Sets the sum of all ranges of shared memory that the entry shows. */
void sg_entry_set_file_bytes(uint64_t bytes);

/* Counts a change of the set of ranges in file_changes. */
void sg_entry_note_file_change(void);

/* In a forked child: sets the bytes of its parent's promises that are not resident here either. They count once for all
 * children of that parent, and only after the parent has ended. Under the decision lock. */
static inline void sg_entry_set_inherited(uint64_t bytes);

/* Managed memory of this process that is not in the CPU's page tables: raised when it is granted, set by a scan,
 * lowered (not below zero) when it is freed. Any thread. */
static inline void sg_entry_set_managed_missing(uint64_t bytes);
void sg_entry_lower_managed_missing(uint64_t bytes);
static inline void sg_entry_raise_managed_missing(uint64_t bytes);

/* Whether this thread is in the middle of a change of a sum: it runs a signal handler that interrupted the change. */
bool sg_entry_is_changing(void);

/* In a forked child: clears what is in flight and the private registry. Call after sg_entry_set_registry(NULL) and
 * sg_entry_set_own(NULL). */
void sg_entry_atfork_child_sums(void);

/* The number of entries in use, at most SG_ENTRY_CAPACITY. Any thread. */
static inline uint32_t sg_entry_count(const struct sg_registry *registry)
{
    uint32_t used = sg_load(&registry->entry_used);
    return used < SG_ENTRY_CAPACITY ? used : SG_ENTRY_CAPACITY;
}

/* Whether the entry is taken, and its owner is not known to have ended. Any thread. */
static inline bool sg_entry_is_live(const struct sg_registry_entry *entry)
{
    return SG_CLAIM_STATE(sg_load(&entry->claim)) == SG_CLAIM_LIVE;
}

/* More bytes than any machine has. Words of other entries, and sums of them, are cut to this, so that a hostile or torn
 * entry cannot make a sum wrap. */
#define SG_BYTES_MAX (UINT64_C(1) << 52)

static inline uint64_t sg_entry_cut(uint64_t bytes)
{
    return bytes < SG_BYTES_MAX ? bytes : SG_BYTES_MAX;
}

static inline void sg_entry_add_cut(uint64_t *sum, uint64_t bytes)
{
    *sum = sg_entry_cut(*sum + sg_entry_cut(bytes));
}

/* Whether the entry is of a job itself and of no process. Any thread. */
static inline bool sg_entry_is_of_job(const struct sg_registry_entry *entry)
{
    return (sg_load_relaxed(&entry->slot.flags) & SG_SLOT_JOB) != 0;
}

/* Whether the entry is a process of its job: no entry of the job itself, and no helper of the launcher. Any thread. */
static inline bool sg_entry_is_process(const struct sg_registry_entry *entry)
{
    return (sg_load_relaxed(&entry->slot.flags) & (SG_SLOT_JOB | SG_SLOT_HELPER)) == 0;
}

/* Whether the entry is a live process of its job whose program goes on. One that has called exec does not count: the
 * new program has an entry of its own. Any thread. */
static inline bool sg_entry_is_running(const struct sg_registry_entry *entry)
{
    return sg_entry_is_live(entry) && sg_entry_is_process(entry) && sg_load(&entry->slot.state) != SG_STATE_REPLACED;
}

/* The granted bytes that no other process of the job may hold as well: without the *named_bytes of ranges of shared
 * memory, and without what the process was forked with. `slot`: the entry's, or this process's own. Any thread. */
static inline uint64_t sg_entry_private_bytes(const struct sg_slot *slot, const struct sg_registry_entry *entry,
                                              uint64_t *named_bytes)
{
    uint64_t granted = sg_entry_cut(sg_load(&slot->granted_bytes));
    *named_bytes = sg_entry_cut(sg_load(&sg_entry_names(entry)->file_bytes));
    return sg_above(granted, *named_bytes + sg_entry_cut(sg_load(&slot->inherited_bytes)));
}

/* From now on this process counts as a helper of the launcher and not as one of its job. Any thread. */
void sg_entry_become_helper(void);

/* Whether the entry's owner is inside the cgroup with identity `level`. */
bool sg_entry_is_member(const struct sg_registry_entry *entry, uint64_t level);

/* Adds `bytes` to what is in flight from `source` (SG_SOURCE_..., or a device's identity). Negative: subtracts bytes
 * that were given up, or that count as promised by now. Any thread. */
void sg_entry_flight_add(uint64_t source, int64_t bytes);

/* Takes `bytes` out of flight because the real call has made them resident and the kernel's figures show them. Any
 * thread, without the decision lock. */
void sg_entry_flight_complete(uint64_t source, uint64_t bytes);

/* Bytes of this process that sg_entry_flight_complete ever took out of flight: of the machine, or only the part that
 * cgroups bound. Bytes completed since a snapshot began may be missing in that snapshot. To miss none, read this after
 * sg_entry_own_flight. Any thread. */
uint64_t sg_entry_own_landed(bool is_bounded_only);

/* Bytes that this process has in flight from the machine, or only the part that cgroups bound. Any thread. */
uint64_t sg_entry_own_flight(bool is_bounded_only);

/* Bytes that this process has in flight and that may be memory of this discrete device. Any thread. */
uint64_t sg_entry_own_device_flight(uint64_t device);

/* The identity of the discrete device of the last such request in flight; SG_UNKNOWN: several devices. Any thread. */
uint64_t sg_entry_flight_device(void);

/* ---- the bodies of what each decision calls; use no word of these directly ---- */

extern struct sg_entry_place {
    struct sg_registry *registry;    /* (atomic) NULL: alone */
    struct sg_registry_entry *entry; /* (atomic) NULL: alone */
} sg_entry_place;

/* The private registry of a process that decides alone. Its entry also has the names of a process that shares another
 * version's registry. */
extern union sg_entry_alone {
    struct sg_registry registry;
    char bytes[sizeof(struct sg_registry) + sizeof(struct sg_registry_entry)];
} sg_entry_alone;

static inline struct sg_registry *sg_entry_shared_registry(void)
{
    return sg_load(&sg_entry_place.registry);
}

static inline struct sg_registry_entry *sg_entry_shared_own(void)
{
    return sg_load(&sg_entry_place.entry);
}

static inline struct sg_registry *sg_entry_registry(void)
{
    struct sg_registry *registry = sg_entry_shared_registry();
    return registry != NULL ? registry : &sg_entry_alone.registry;
}

static inline struct sg_registry_entry *sg_entry_own(void)
{
    struct sg_registry_entry *entry = sg_entry_shared_own();
    return entry != NULL ? entry : &sg_entry_alone.registry.entry[0];
}

static inline void sg_entry_set_inherited(uint64_t bytes)
{
    sg_store(&sg_own->slot.inherited_promise_bytes, bytes);
    sg_store(&sg_entry_own()->slot.inherited_promise_bytes, bytes);
}

static inline void sg_entry_raise_managed_missing(uint64_t bytes)
{
    sg_fetch_add(&sg_entry_own()->slot.live_bytes, bytes);
}

static inline void sg_entry_set_managed_missing(uint64_t bytes)
{
    sg_store(&sg_entry_own()->slot.live_bytes, bytes);
}

#endif
