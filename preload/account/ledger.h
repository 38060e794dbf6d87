/*
 * ledger.h - bytes per domain, their peaks, and the threads' heap credit.
 *
 * granted = live + credit not yet used. The heap is charged in advance: a thread holds up to SG_CREDIT_MAX bytes of
 * credit and pays from it without touching shared memory. So live bytes are right to the byte whenever nothing moves
 * (granted less all credit), and peaks, taken of granted, are never too low and at most 1 MiB per thread too high.
 * Any thread, also in signal handlers. No locks but sg_promises_lock: where a promise is withdrawn, found by a scan to
 * be less, or more than what is held.
 */
#ifndef SG_PRELOAD_ACCOUNT_LEDGER_H
#define SG_PRELOAD_ACCOUNT_LEDGER_H

#include "base/lock.h"
#include "sparkguard_abi.h"

#include <stdbool.h>

enum {
    SG_CREDIT_MAX = 1 << 20,    /* a thread gives back what it has above this */
    SG_CREDIT_REFILL = 1 << 18, /* and has this much after a refill or a return */
};

/* Who brings the promises down to a figure of which they are a part: nests in every other. */
extern struct sg_lock sg_promises_lock;

void sg_ledger_charge(enum sg_domain domain, uint64_t bytes);
void sg_ledger_release(enum sg_domain domain, uint64_t bytes);

/* Begins the peak of the phase anew, with what is granted; what it was. And those of the domains. */
uint64_t sg_ledger_turn_peak(void);
void sg_ledger_turn_domain_peaks(void);

/* `bytes` that have been charged are not there yet. After the charge: a promise is never more than what is held. */
void sg_ledger_promise(uint64_t bytes);

/* `bytes` of it will not come any more, and are still charged. How many of them were promised. */
uint64_t sg_ledger_withdraw(uint64_t bytes);

/* `bytes` of MAP_NORESERVE memory may be written to from now on, which nobody promised: a scan tells how many are
 * there. */
void sg_ledger_open_sparse(uint64_t bytes);

/* `bytes` that are promised are at no address for a while, for they are being moved. From before a scan could miss them
 * until after it can find them again; a scan beside it may count them twice, never not at all. */
void sg_ledger_begin_move(uint64_t bytes);
void sg_ledger_end_move(uint64_t bytes);

/* A scan finds `bytes` promised, and sparse_bytes of MAP_NORESERVE memory there; what was promised or opened since
 * it began, or is being moved, comes on top. Under the decision lock. */
void sg_ledger_begin_scan(void);
void sg_ledger_end_scan(uint64_t bytes, uint64_t sparse_bytes);

/* One allocation or free of a domain other than the heap. */
void sg_ledger_count_allocation(enum sg_domain domain);
void sg_ledger_count_free(enum sg_domain domain);

/* Device memory of one device, besides the domain's charge. */
void sg_ledger_charge_device(uint32_t device, int64_t bytes);

/* Heap credit of a record: grants `bytes` more, or takes back what is above `keep`. */
void sg_ledger_grant_credit(struct sg_record *record, uint64_t bytes);
void sg_ledger_return_credit(struct sg_record *record, uint64_t keep);

/* Live bytes now: exact if nothing moves. One load per thread record. */
uint64_t sg_ledger_live_bytes(void);
uint64_t sg_ledger_live_heap_bytes(void);
uint64_t sg_ledger_credit_bytes(void); /* granted to threads and not used */

/* The same less what was inherited at fork: what counts against LIMIT. */
uint64_t sg_ledger_own_bytes(void);

/* An error of ours that was let through. */
void sg_ledger_count_fault(void);

/* fork. before: in the parent, remembers the sums. refork: in the child, whose window is zero again, begins with them;
 * before that, what of the mappings it has. */
void sg_ledger_before_fork(void);
void sg_ledger_set_mapped_before_fork(uint64_t bytes);
void sg_ledger_refork(void);

#endif
