/*
 * registry.h - this process's membership in the registry: taking and leaving a registry entry, and queueing requests.
 * own_entry.h changes the sums that the entry shows. peers.h sums up the entries of the other processes.
 *
 * Processes decide in turn without a shared lock, because a killed or stopped process could hold such a lock for ever.
 * The protocol is "announce, refresh, decide":
 *
 *   announce  Store queued_bytes; store ticket = CHOOSING; place = fetch_add(asked_bytes, size); store ticket = place.
 *             Then sum up the other entries: promises, bytes in flight, and requests queued before this one.
 *   refresh   Read the kernel's counters after the entries. Bytes move from the entries to the kernel, so bytes that
 *             move meanwhile are seen twice at worst and never missed.
 *   settle    Admitted: the bytes are in flight before the ticket is cleared. They stay in flight until the real call
 *             has returned and, where their pages are not resident yet, until they are promised.
 *             Refused or waiting: the ticket is cleared.
 *
 * A request that fits only without the requests queued before it waits for them and announces itself again. The first
 * request in the order always gets an answer at once.
 *
 * Small requests are not queued. They are promised first and added to asked_bytes second. They pass if the growth of
 * asked_bytes since this process's last snapshot stays within the headroom of that snapshot.
 * tests/model/admission.pml checks the protocol.
 *
 * A process without a registry entry (no shared memory, or the registry is full) uses a private registry with one
 * entry and decides alone.
 */
#ifndef SG_PRELOAD_SHARED_REGISTRY_H
#define SG_PRELOAD_SHARED_REGISTRY_H

#include "shared/own_entry.h"
#include "sparkguard_abi.h"

#include <stdbool.h>

/* ---- the registry entry; under the decision lock, except where noted ---- */

/* What is due before a decision. JOIN: this process has a shared segment and neither holds an entry nor has given up.
 * CHECK: 500 ms have passed since the last check of the registry file's place. Call sg_headroom_forget() before
 * joining: a place in one registry's order means nothing in another. */
enum sg_registry_step { SG_REGISTRY_NOTHING, SG_REGISTRY_JOIN, SG_REGISTRY_CHECK };
enum sg_registry_step sg_registry_due(void);

/* Takes a registry entry, creating the registry if necessary. Errors: tries again after 1 s if descriptors are
 * exhausted, if the file was replaced, or if sums kept changing; otherwise the process decides alone for good and adds
 * an event to its segment. */
void sg_registry_join(void);

/* Releases the registry entry at the end of the process. Any thread. */
void sg_registry_leave(void);

/* Marks the entry of a process that is about to exec. The entry is kept until the kernel releases its lock, because
 * the exec may fail. Any thread. */
void sg_registry_note_replaced(void);

/* Undoes sg_registry_leave or sg_registry_note_replaced when the process goes on. Any thread. */
void sg_registry_come_back(void);

/* In a forked child: drops the parent's registry entry. */
void sg_registry_atfork_child(void);

/* In a forked child, after sg_registry_atfork_child: records that `bytes` of its memory were the parent's own, besides
 * the bytes that the parent has from its own ancestors. */
void sg_registry_inherit(uint64_t bytes, uint32_t parent_pid);

/* Sets the identities of this process's `count` cgroups that bound memory. */
void sg_registry_set_levels(const uint64_t *identity, uint32_t count);

/* Checks that the mapped registry is still the file in SPARKGUARD_DIR. If that was removed or replaced, this process
 * leaves its entry and will join the new file, where new processes meet. Call sg_headroom_forget() first.
 * True: the file is in its place. */
bool sg_registry_check_place(void);

/* Marks the entries of dead owners as dead. True if there were any. Call sg_headroom_forget() first: as
 * sg_registry_check_place, this process may leave a registry whose file was removed. */
bool sg_registry_reap(void);

/* Marks the dead entries, or those of this process's job only. Does not leave a registry whose file was removed. Any
 * thread, any time. */
void sg_registry_mark_dead_in_passing(bool is_of_job_only);

/* Marks the dead entries of a registry: those of the job with the hash *job, or of all jobs if `job` is NULL. `fd`: the
 * registry's file, whose locks tell. Returns how many it marked. */
uint32_t sg_registry_mark_dead_in(struct sg_registry *registry, int fd, const uint64_t *job);

/* ---- entries of jobs (claims.h, settings.h) ---- */

/* Takes a registry entry for a job, in the cgroups of this process. Returns the descriptor whose lock keeps the entry,
 * or -errno; *entry is the entry. Under the decision lock. */
struct sg_job_words {
    uint64_t job, run, pid_namespace;
    uint64_t wanted_bytes, place, share; /* of a claim */
    int64_t priority;
    uint64_t limit_bytes, reserve_bytes; /* of what is set */
    uint64_t user;                       /* of both: its number plus one */
};
long sg_registry_add_job(const struct sg_job_words *words, struct sg_registry_entry **entry);

/* For a tool, which takes no entry of its own: maps the registry's file in sg_options.dir. 0 or -errno; -ENOENT: there
 * is none; -EPROTO: no registry, or one that this version cannot share. */
long sg_registry_enter(void);

/* Opens the file of the registry that is mapped. Returns a descriptor or -errno; -ESTALE: it was removed or replaced.
 * */
long sg_registry_open(void);

/* Finds the mapping of the shared registry; *end is 0 if there is none. Any thread. */
void sg_registry_place(uintptr_t *begin, uintptr_t *end);

/* ---- requests ---- */

/* Queues a request for `bytes` of `source` (SG_SOURCE_..., or a device's identity) at the end of the machine's order.
 * Under the decision lock. */
void sg_registry_announce(uint64_t source, uint64_t bytes);

/* Removes this process's queued request. Under the decision lock. */
static inline void sg_registry_withdraw(void)
{
    sg_store(&sg_entry_own()->ticket, SG_TICKET_NONE);
}

/* Adds `bytes` to asked_bytes, the sum of all requests ever made. Any thread. */
void sg_registry_count(uint64_t bytes);

/* Notes that pages of `bytes` are about to go back to the machine and may be touched again without a request. Whoever
 * has summed up the entries before, and reads the kernel's figures after, adds what was noted in between. Call it after
 * the bytes are in flight or promised. Any thread. */
static inline void sg_registry_note_returned(uint64_t bytes)
{
    sg_fetch_add(&sg_entry_registry()->returned_bytes, bytes);
}

/* Whether `bytes` are at most 1/16 of the distance from asked_bytes to `limit`, a place in the order; 0: no place. Any
 * thread. */
static inline bool sg_registry_is_within(uint64_t bytes, uint64_t limit)
{
    /* A signed difference: asked_bytes may wrap after some years. */
    int64_t distance = (int64_t)(limit - sg_load(&sg_entry_registry()->asked_bytes));
    return limit != 0 && distance > 0 && bytes <= (uint64_t)distance / 16;
}

/* Adds `bytes` to asked_bytes if they are at most 1/16 of the distance from asked_bytes to *limit, a place in the
 * order. True: asked_bytes is still at most *limit. False: the request must be queued; its bytes may have been added
 * all the same, if other processes were faster. Any thread. */
bool sg_registry_take(uint64_t bytes, const uint64_t *limit);

#endif
