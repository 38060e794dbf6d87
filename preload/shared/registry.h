/*
 * registry.h - this process among all guarded processes of the machine: how it takes its registry entry in the registry
 * and asks for memory. own_entry.h has the sums that the registry entry shows; peers.h, what the others have promised,
 * have in flight and are asking for.
 *
 * How processes decide as one without a lock that a killed or stopped one could hold ("reserve, look, settle"):
 *
 *   reserve   announce: queued_bytes, ticket = CHOOSING, place = asked_bytes += size, ticket = place. Then sum
 *             up the other registry entries: what is promised and in flight, and what those ask for who stand before
 *             us.
 *   look      at the kernel's counters, after the registry entries: what moves meanwhile moves from the registry
 *             entries to the kernel, and so is seen twice at worst, never not at all.
 *   settle    admitted: in flight from before the ticket goes until the real call has returned, and until it is
 *             promised if it is not there yet. Refused, or waiting for others: the ticket goes.
 *
 * Who fits only without those before him waits for them and asks again; of those who ask, the first always gets an
 * answer at once. Small requests do not queue: they are promised first, then added to asked_bytes, and pass if
 * everything asked for since this process's last snapshot stays within what that look showed. tests/model/admission.pml
 * checks all this.
 *
 * A process without a registry entry (no shared memory, no place left) has a ledger of its own, with one registry
 * entry: it decides alone.
 */
#ifndef SG_PRELOAD_SHARED_REGISTRY_H
#define SG_PRELOAD_SHARED_REGISTRY_H

#include "sparkguard_abi.h"

#include <stdbool.h>

/* ---- the registry entry; under the decision lock, except where noted ---- */

/* Whether there is one to be taken: this process has a segment, and has not tried yet. Then sg_headroom_forget() and
 * join: places in the order of one ledger mean nothing in another. */
bool sg_registry_may_join(void);
void sg_registry_join(void);

/* Gives it up: the process ends. Any thread. */
void sg_registry_leave(void);

/* The process becomes another program: its registry entry stays until the kernel lets go of it, for that may fail. Any
 * thread. */
void sg_registry_note_replaced(void);

/* Takes either back: it did not end. Any thread. */
void sg_registry_come_back(void);

/* In a forked child: the registry entry is the parent's. */
void sg_registry_refork(void);

/* In a forked child, after sg_registry_refork: `bytes` were its parent's own, besides what that had from its parents. */
void sg_registry_inherit(uint64_t bytes, uint32_t parent_pid);

/* The identities of our cgroups that bound memory. */
void sg_registry_set_levels(const uint64_t *identity, uint32_t count);

/* Whether it is time to see if the ledger's file is still in its place, and that: where it is not, this process
 * joins the one that is there. Processes that come meet in that one. After sg_headroom_forget(). True if the file is in
 * its place. */
bool sg_registry_is_check_due(void);
bool sg_registry_check_place(void);

/* Turns the registry entries of dead owners into nothing; true if there were any. After sg_headroom_forget(): this
 * process may find that its ledger's file is gone, and join another. */
bool sg_registry_reap(void);

/* The same for the entries of this process's job, however many there are. Any thread, any time. */
void sg_registry_mark_dead_of_job(void);

/* ---- requests ---- */

void sg_registry_announce(uint64_t pool, uint64_t bytes);
void sg_registry_withdraw(void);

/* Adds `bytes` to what was ever asked for. Any thread. */
void sg_registry_count(uint64_t bytes);

/* The same, and tells whether that stays below *limit with 15/16 of the rest left over:
 * *limit is a place in the order. Any thread. */
bool sg_registry_take(uint64_t bytes, const uint64_t *limit);

#endif
