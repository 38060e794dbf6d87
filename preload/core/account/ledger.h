/*
 * ledger.h - the sums of this process: bytes per domain, their peaks, promises, and the threads' heap credit.
 *
 * granted = live + unused credit. The heap is charged in advance: a thread holds up to SG_CREDIT_MAX bytes of credit
 * and pays small blocks from it without touching shared memory. Live bytes (granted less all credit) are exact whenever
 * no thread allocates or frees. Peaks are taken of granted bytes: never too low, at most 1 MiB per thread too high.
 * Array credit is granted, too; it is taken back before a peak is raised.
 *
 * Promises. promised_bytes is an upper bound of what was granted and has no pages yet. A grant raises it, and so does
 * memory that is given back but stays mapped. An observation lowers it: to what the kernel says of the process
 * (procfs.h) and what was promised since the observation began. So does unmapping shared memory that has no pages.
 * sg_ledger_promised_bytes() is never more than what is held (tests/model/promise.pml).
 *
 * Thread-safety: any thread, also in signal handlers, except where noted. No locks.
 */
#ifndef SG_PRELOAD_ACCOUNT_LEDGER_H
#define SG_PRELOAD_ACCOUNT_LEDGER_H

#include "base/lock.h"
#include "sparkguard_abi.h"

#include <stdbool.h>

enum {
    SG_CREDIT_MAX = 1 << 20,    /* bytes; a thread releases credit above this */
    SG_CREDIT_REFILL = 1 << 18, /* bytes; the credit of a thread after a refill or a release */
};

/* Adds granted bytes to a domain and to the process's sum, and raises the peaks. */
void sg_ledger_charge(enum sg_domain domain, uint64_t bytes);

/* Takes granted bytes off a domain and off the process's sum. In a forked child they may be the parent's memory: what
 * is promised to the child is bounded by what it surely holds besides. release_own: they are surely not.
 * release_inherited notes, before that, the part of them that surely or perhaps is. */
void sg_ledger_release(enum sg_domain domain, uint64_t bytes);
void sg_ledger_release_own(enum sg_domain domain, uint64_t bytes);
void sg_ledger_release_inherited(uint64_t bytes);

/* In a forked child, at its first decision: notes what it has from its parent, `mapped_bytes` in private mappings. */
void sg_ledger_inherit(uint64_t mapped_bytes);

/* Resets the peak of the phase to the bytes granted now; returns the old peak. */
uint64_t sg_ledger_turn_peak(void);

/* Resets recent_peak_bytes of each domain to the bytes granted now. */
void sg_ledger_turn_domain_peaks(void);

/* Promises `bytes` that have been charged and are not resident yet. Call it after sg_ledger_charge: the promise is
 * bounded by the bytes held. `is_private`: the kernel counts them as private memory of this process; false for shared
 * and managed memory. */
void sg_ledger_promise(uint64_t bytes, bool is_private);

/* Takes back the promise of `bytes` of shared memory that this process has unmapped; not between a fork and the next
 * scan, because the child may map it, and shows no promise before its own first scan. Under sg_tracker_maps_lock, as
 * the end of a scan. */
void sg_ledger_withdraw_shared(uint64_t bytes);

/* Notes `bytes` that an observation which is going on now may miss, because they move in the index of mappings. Call it
 * under the lock of that index, or after the real call and before the index changes. Promises nothing. */
void sg_ledger_note_moved(uint64_t bytes);

/* What is promised: at most the bytes held of the domains that may have promises. */
uint64_t sg_ledger_promised_bytes(void);

/* Counts `bytes` of MAP_NORESERVE memory that have become writable without a promise. They count as resident until the
 * next scan reads how many are. */
void sg_ledger_open_sparse(uint64_t bytes);

/* Counts `bytes` of private memory that are about to be made unwritable, or have become writable again. The kernel
 * counts their pages and not their size. */
void sg_ledger_close_private(uint64_t bytes);
void sg_ledger_reopen_private(uint64_t bytes);

/* An observation of this process. Begin before the kernel is asked. `missing_bytes`: of private memory, by the kernel.
 * Lowers promised_bytes, or leaves it. Under sg_decision_lock. */
uint64_t sg_ledger_begin_observation(void);
void sg_ledger_observe(uint64_t begin, uint64_t missing_bytes);

/* A scan: an observation that also looks at shared, managed and MAP_NORESERVE memory. begin before all else; end takes
 * what was found. Under sg_decision_lock. */
struct sg_ledger_scan {
    uint64_t missing_bytes; /* of private memory */
    uint64_t shared_bytes;  /* missing bytes of shared and managed memory */
    uint64_t sparse_bytes;  /* resident bytes of MAP_NORESERVE memory */
    bool may_rise;          /* the promise of private memory is set even if it rises (commits.h) */
};
void sg_ledger_begin_scan(void);
void sg_ledger_end_scan(const struct sg_ledger_scan *found);

/* Counts one allocation or free of a domain other than the heap. */
void sg_ledger_count_allocation(enum sg_domain domain);
void sg_ledger_count_free(enum sg_domain domain);

/* Adds `bytes` (negative: subtracts them) to the live bytes of one device, besides the charge to the domain. */
void sg_ledger_charge_device(uint32_t device, int64_t bytes);

/* Charges `bytes` to the heap and adds them to the credit of a record. Only by the record's thread. */
void sg_ledger_grant_credit(struct sg_record *record, uint64_t bytes);

/* Sets the credit of a record to `keep` bytes: releases the bytes above it, or charges the missing ones. Only by the
 * record's thread, or for an ended thread. */
void sg_ledger_return_credit(struct sg_record *record, uint64_t keep);

/* Array credit. A thread that frees an array (a heap block of SG_ARRAY_MIN to SG_ARRAY_MAX bytes) may keep its bytes
 * granted, and pay its next arrays from them, without a decision and without a word that other threads write. The next
 * array has pages of its own, so its promise is made ahead: record->ahead_bytes is promised and not used, and never
 * less than the credit. It is filled up in steps of SG_ARRAY_AHEAD at least, so most frees promise nothing. A charge
 * that raises a peak takes all credit back, and counts none of it. */
enum { SG_ARRAY_MIN = 256 * 1024, SG_ARRAY_MAX = 32 * 1024 * 1024, SG_ARRAY_AHEAD = 4 * 1024 * 1024 };

/* Pays for an array of `bytes` from the array credit of a record. `site`: its call site, or 0. False: the credit does
 * not reach, and nothing has changed. *is_site_counted: the call site counts the array already. Only by the record's
 * thread. */
bool sg_ledger_take_array(struct sg_record *record, uint64_t bytes, uint32_t site, bool *is_site_counted);

/* Makes an array of `bytes`, which is being freed, credit of a record. `site`: its call site, or 0; it counts the array
 * until the credit is taken back. False: it would be too much credit, or the thread frees few arrays; nothing has
 * changed. Only by the record's thread. */
bool sg_ledger_give_array(struct sg_record *record, uint64_t bytes, uint32_t site);

/* Releases the array credit of threads that have freed no array since the last call. Under sg_decision_lock. */
void sg_ledger_take_back_idle_arrays(void);

/* Releases the array credit of all threads, or of one record. Any thread. */
void sg_ledger_take_back_arrays(void);
void sg_ledger_take_back_record(struct sg_record *record);

/* Sets how much array credit a thread may have, at most SG_ARRAY_CREDIT_MAX; 0 takes all credit back. */
#define SG_ARRAY_CREDIT_MAX (UINT64_C(64) << 20)
void sg_ledger_set_array_credit(uint64_t bytes);

/* Live bytes now, of the process and of its heap. Exact if no thread allocates or frees. One load per thread record. */
uint64_t sg_ledger_live_bytes(void);
uint64_t sg_ledger_live_heap_bytes(void);

/* Live bytes and array credit, less the private bytes inherited at fork: the bytes that count against SPARKGUARD_LIMIT.
 * A thread may turn array credit into live bytes without a decision, so a decision about the limit counts it. Before a
 * refusal the credit is taken back. */
uint64_t sg_ledger_own_bytes(void);

/* Counts an internal fault after which a call was let through uncounted. */
void sg_ledger_count_fault(void);

/* fork. before_fork, in the parent: copies the sums. set_mapped_before_fork, in the child before atfork_child: corrects
 * the mapped bytes of that copy to those that the child has. add_promised_before_fork, there too: the child lacks pages
 * that the parent has. atfork_child, in the child, whose segment is empty: fills
 * the sums from that copy. */
void sg_ledger_before_fork(void);
void sg_ledger_set_mapped_before_fork(uint64_t bytes);
void sg_ledger_add_promised_before_fork(uint64_t bytes);
void sg_ledger_atfork_child(void);

#endif
