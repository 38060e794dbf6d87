/*
 * ledger.h - the sums of this process: bytes per domain, their peaks, promises, and the threads' heap credit.
 *
 * granted = live + unused credit. The heap is charged in advance: a thread holds up to SG_CREDIT_MAX bytes of credit
 * and pays small blocks from it without touching shared memory. Live bytes (granted less all credit) are exact whenever
 * no thread allocates or frees. Peaks are taken of granted bytes: never too low, at most 1 MiB per thread too high.
 * Array credit is granted, too; it is taken back before a peak is raised.
 *
 * Thread-safety: any thread, also in signal handlers, except where noted. The only lock is sg_promises_lock.
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

/* Held while promised_bytes is lowered: by a withdrawal, by the end of a scan, or to the bytes held. May be taken while
 * any other lock is held; no lock is taken under it. */
extern struct sg_lock sg_promises_lock;

/* Adds granted bytes to a domain and to the process's sum, and raises the peaks. */
void sg_ledger_charge(enum sg_domain domain, uint64_t bytes);

/* Takes granted bytes off a domain and off the process's sum. */
void sg_ledger_release(enum sg_domain domain, uint64_t bytes);

/* Resets the peak of the phase to the bytes granted now; returns the old peak. */
uint64_t sg_ledger_turn_peak(void);

/* Resets recent_peak_bytes of each domain to the bytes granted now. */
void sg_ledger_turn_domain_peaks(void);

/* Promises `bytes` that have been charged and are not resident yet. Call it after sg_ledger_charge: the promise is
 * bounded by the bytes held. */
void sg_ledger_promise(uint64_t bytes);

/* Withdraws the promise of `bytes` that will not become resident any more and are still charged. Returns how many of
 * them were promised. */
uint64_t sg_ledger_withdraw(uint64_t bytes);

/* Counts `bytes` of MAP_NORESERVE memory that have become writable without a promise. They count as resident until the
 * next scan reads how many are. */
void sg_ledger_open_sparse(uint64_t bytes);

/* Marks promised bytes as being moved: they are in no index for a while. begin comes before the first moment at which a
 * scan could miss the bytes, end after they can be found again. A scan meanwhile may count them twice, but never misses
 * them. */
void sg_ledger_begin_move(uint64_t bytes);
void sg_ledger_end_move(uint64_t bytes);

/* A scan. begin_scan takes all array credit back; there is none until end_scan. end_scan takes the promised bytes and
 * the resident MAP_NORESERVE bytes that the scan found, and adds the bytes promised, opened or moved since begin_scan.
 * Under sg_decision_lock. */
void sg_ledger_begin_scan(void);
void sg_ledger_end_scan(uint64_t bytes, uint64_t sparse_bytes);

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
 * granted, and pay its next arrays from them, without a decision and without a word that other threads write. Only an
 * array that was allocated since the last scan becomes credit: its promise still stands, so it is the promise of the
 * array that takes its place. A scan takes all credit back before it computes the promises anew (tests/model/
 * arrays.pml). So does a charge that raises a peak, which therefore counts none of it. */
enum { SG_ARRAY_MIN = 256 * 1024, SG_ARRAY_MAX = 32 * 1024 * 1024 };

/* Pays for an array of `bytes` from the array credit of a record. `site`: its call site, or 0. False: the credit does
 * not reach, and nothing has changed. *is_site_counted: the call site counts the array already. Only by the record's
 * thread. */
bool sg_ledger_take_array(struct sg_record *record, uint64_t bytes, uint32_t site, bool *is_site_counted);

/* Makes an array of `bytes`, which is being freed, credit of a record. `site`: its call site, or 0; it counts the array
 * until the credit is taken back. `epoch`: sg_ledger_array_epoch() from before the array was removed from the block
 * table. A scan during which the array was removed missed the array, and its promise was dropped. False: there was such
 * a scan, or it would be too much credit, or the thread frees few arrays; nothing has changed. Only by the record's
 * thread. */
bool sg_ledger_give_array(struct sg_record *record, uint64_t bytes, uint32_t site, uint32_t epoch);
uint32_t sg_ledger_array_epoch(void);

/* Releases the array credit of all threads, or of one record. Any thread. */
void sg_ledger_take_back_arrays(void);
void sg_ledger_take_back_record(struct sg_record *record);

/* Until the next scan no array becomes credit: the present one could not mark all of them as scanned. */
void sg_ledger_bar_arrays(void);

/* Sets what ample headroom allows from now on.
 * array_credit_bytes   of a thread, at most SG_ARRAY_CREDIT_MAX; 0 takes all credit back.
 * promise_slack_bytes  by how much the promised bytes may exceed the bytes held before a release lowers them, at most
 *                      SG_PROMISE_SLACK_MAX. Lowering takes a lock and two system calls, so it is done for many
 *                      releases at once. */
#define SG_ARRAY_CREDIT_MAX (UINT64_C(64) << 20)
#define SG_PROMISE_SLACK_MAX (UINT64_C(256) << 20)
void sg_ledger_set_slack(uint64_t array_credit_bytes, uint64_t promise_slack_bytes);

/* Live bytes now, of the process and of its heap. Exact if no thread allocates or frees. One load per thread record. */
uint64_t sg_ledger_live_bytes(void);
uint64_t sg_ledger_live_heap_bytes(void);

/* Unused credit of all threads. */
uint64_t sg_ledger_credit_bytes(void);

/* Live bytes and array credit, less the private bytes inherited at fork: the bytes that count against SPARKGUARD_LIMIT.
 * A thread may turn array credit into live bytes without a decision, so a decision about the limit counts it. Before a
 * refusal the credit is taken back. */
uint64_t sg_ledger_own_bytes(void);

/* Counts an internal fault after which a call was let through uncounted. */
void sg_ledger_count_fault(void);

/* fork. before_fork, in the parent: copies the sums. set_mapped_before_fork, in the child before atfork_child: corrects
 * the mapped bytes of that copy to those that the child has. atfork_child, in the child, whose segment is empty: fills
 * the sums from that copy. */
void sg_ledger_before_fork(void);
void sg_ledger_set_mapped_before_fork(uint64_t bytes);
void sg_ledger_atfork_child(void);

#endif
