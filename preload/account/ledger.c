/*
 * ledger.c - see ledger.h.
 *
 * The peak. Each charge raises peak_seen_bytes first, then whoever gets the small lock writes down what the peak is
 * made of, into the copy that is not current, and switches. Who does not get it leaves: its figure is in
 * peak_seen_bytes, and the holder looks again after letting go (seq_cst on both sides: either the holder sees the new
 * figure or the other one gets the lock). A holder that dies leaves the current copy whole.
 */
#include "account/ledger.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "shared/job.h"
#include "shared/own_entry.h"
#include "shared/registry.h"
#include "shared/segment.h"
#include "account/callsites.h"
#include "base/syscall.h"
#include "account/transit.h"
#include "account/driver_pool.h"

#include <string.h>

struct sg_lock sg_promises_lock;

static uint32_t peak_writer;

static struct sg_transit promises; /* what was promised, and what moves of it */
static uint64_t promises_look;     /* of the scan */
static struct sg_transit sparse;   /* what was opened of MAP_NORESERVE memory */
static uint64_t sparse_look;

static struct {
    uint64_t domain[SG_DOMAIN_CAPACITY]; /* live */
    uint64_t device[SG_DEVICE_CAPACITY];
    struct sg_machine machine;
    uint64_t promised_bytes; /* and what itself had from its parent */
    uint64_t inherited_bytes;
    uint32_t pid;
} before_fork;

/* The sum in domain_bytes is made to equal `total`, which was true at one instant, in the largest part. */
static void write_peak(uint64_t total)
{
    uint32_t next = 1 - sg_load_relaxed(&sg_own->peak_index) % 2;
    struct sg_peak *peak = &sg_own->peak[next];
    uint64_t sum = 0, largest = 0;
    for (unsigned i = 0; i < SG_DOMAIN_COUNT; i++) {
        uint64_t bytes = sg_load_relaxed(&sg_own->domain[i].granted_bytes);
        sg_store_relaxed(&peak->domain_bytes[i], bytes);
        sum += bytes;
        if (bytes > sg_load_relaxed(&peak->domain_bytes[largest]))
            largest = i;
    }
    uint64_t of_largest = sg_load_relaxed(&peak->domain_bytes[largest]);
    if (sum < total)
        sg_store_relaxed(&peak->domain_bytes[largest], of_largest + (total - sum));
    else if (of_largest >= sum - total)
        sg_store_relaxed(&peak->domain_bytes[largest], of_largest - (sum - total));
    else
        total = sum; /* cannot be while one charge is smaller than what is held; keep the sum true in any case */
    sg_store_relaxed(&peak->total_bytes, total);
    sg_store_relaxed(&peak->time_ns, (int64_t)sg_clock_ns(CLOCK_REALTIME));
    sg_store(&sg_own->peak_index, next);
    sg_callsites_note_peak();
}

static void note_peak(uint64_t total)
{
    if (SG_LIKELY(total <= sg_load_relaxed(&sg_own->peak_seen_bytes)))
        return;
    sg_raise_to(&sg_own->peak_seen_bytes, total);
    for (;;) {
        uint64_t seen = sg_load(&sg_own->peak_seen_bytes);
        if (seen <= sg_load(&sg_own->peak[sg_load(&sg_own->peak_index) % 2].total_bytes))
            return;
        uint32_t nobody = 0;
        if (!sg_cas_u32(&peak_writer, &nobody, 1))
            return;
        write_peak(seen);
        sg_store(&peak_writer, 0u);
    }
}

/*
 * The peaks that begin anew. They are never above those for ever, so they alone are asked first. A turn sets one to
 * zero, then raises both to what it finds granted: a charge either is found, or, being later, finds the zero or what
 * came of it (seq_cst on both sides), and is never lost.
 */
uint64_t sg_ledger_turn_peak(void)
{
    uint64_t before = sg_exchange(&sg_own->phase_peak_bytes, UINT64_C(0)), total = sg_load(&sg_own->slot.granted_bytes);
    sg_raise_to(&sg_own->phase_peak_bytes, total);
    note_peak(total);
    return before;
}

static void turn_domain_peak(struct sg_domain_counters *counters)
{
    sg_store(&counters->recent_peak_bytes, 0);
    uint64_t granted = sg_load(&counters->granted_bytes);
    sg_raise_to(&counters->recent_peak_bytes, granted);
    sg_raise_to(&counters->peak_bytes, granted);
}

void sg_ledger_turn_domain_peaks(void)
{
    for (unsigned i = 0; i < SG_DOMAIN_COUNT; i++)
        turn_domain_peak(&sg_own->domain[i]);
}

/* A domain whose sum the others see, too: SG_SUM_COUNT if it is not. */
static enum sg_sum sum_of(enum sg_domain domain)
{
    return domain == SG_DOMAIN_DEVICE    ? SG_SUM_DEVICE
           : domain == SG_DOMAIN_PINNED  ? SG_SUM_PINNED
           : domain == SG_DOMAIN_MANAGED ? SG_SUM_MANAGED
                                         : SG_SUM_COUNT;
}

void sg_ledger_charge(enum sg_domain domain, uint64_t bytes)
{
    struct sg_domain_counters *counters = &sg_own->domain[domain];
    enum sg_sum sum = sum_of(domain);
    uint64_t granted, total;
    if (sum != SG_SUM_COUNT) {
        if (domain != SG_DOMAIN_MANAGED)
            sg_driver_pool_note_taken(bytes);
        granted = sg_entry_raise_both(sum, SG_SUM_GRANTED, bytes, &total);
    } else {
        granted = sg_fetch_add(&counters->granted_bytes, bytes) + bytes;
        total = sg_entry_raise(SG_SUM_GRANTED, bytes);
    }
    if (granted > sg_load(&counters->recent_peak_bytes)) {
        sg_raise_to(&counters->recent_peak_bytes, granted);
        sg_raise_to(&counters->peak_bytes, granted);
    }
    if (SG_UNLIKELY(total > sg_load(&sg_own->phase_peak_bytes))) {
        sg_raise_to(&sg_own->phase_peak_bytes, total);
        note_peak(total);
    }
    sg_job_note_peak(total);
}

/* Whether more is promised than is held, and by how much. The promise is read first: what is promised later was charged
 * later. */
static bool is_beyond(uint64_t *promised, uint64_t *lazy)
{
    *promised = sg_load(&sg_own->slot.promised_bytes);
    *lazy = sg_load(&sg_own->domain[SG_DOMAIN_HEAP].granted_bytes) +
            sg_load(&sg_own->domain[SG_DOMAIN_MAPPED].granted_bytes) +
            sg_load(&sg_own->domain[SG_DOMAIN_MANAGED].granted_bytes);
    return *promised > *lazy;
}

/* What is promised is part of what is held: the upper bound of the last scan comes down with the bytes it bounded. Not
 * beside the end of a scan or a withdrawal: that may lower the figure, and a new promise raise it, to what was read
 * before either. */
static void bound_promises(void)
{
    struct sg_lock_state lock;
    uint64_t promised, lazy;
    if (SG_LIKELY(!is_beyond(&promised, &lazy)))
        return;
    sg_lock_acquire(&sg_promises_lock, &lock);
    while (is_beyond(&promised, &lazy) && !sg_entry_exchange(SG_SUM_PROMISED, &promised, lazy))
        ;
    sg_lock_release(&sg_promises_lock, &lock);
}

/* A forked child that gives back private memory it was forked with has that much less from its parent. */
static void bound_inheritance(void)
{
    uint64_t inherited = sg_load(&sg_own->slot.inherited_bytes);
    if (SG_LIKELY(inherited == 0))
        return;
    uint64_t shared = sg_load(&sg_own->shared_bytes), granted = sg_load(&sg_own->slot.granted_bytes);
    uint64_t most = granted > shared ? granted - shared : 0;
    while (most < inherited && !sg_cas_u64(&sg_own->slot.inherited_bytes, &inherited, most))
        ;
    if (most < inherited)
        sg_store(&sg_entry_own()->slot.inherited_bytes, most);
}

void sg_ledger_release(enum sg_domain domain, uint64_t bytes)
{
    enum sg_sum sum = sum_of(domain);
    if (domain == SG_DOMAIN_MANAGED)
        sg_entry_lower_managed_missing(bytes);
    else if (sum != SG_SUM_COUNT)
        sg_driver_pool_note_given(bytes);
    if (sum != SG_SUM_COUNT)
        sg_entry_lower_both(sum, SG_SUM_GRANTED, bytes);
    else
        (void)sg_entry_lower(SG_SUM_GRANTED, bytes - sg_sub_clamped(&sg_own->domain[domain].granted_bytes, bytes));
    if (domain == SG_DOMAIN_HEAP || domain == SG_DOMAIN_MAPPED)
        sg_entry_note_unpromised(bytes); /* its promise has gone with it, its pages may be here still */
    bound_inheritance();
    bound_promises();
}

void sg_ledger_promise(uint64_t bytes)
{
    sg_transit_note(&promises, bytes); /* first: a scan that ends now may count it twice, never not at all */
    (void)sg_entry_raise(SG_SUM_PROMISED, bytes);
}

void sg_ledger_open_sparse(uint64_t bytes)
{
    sg_transit_note(&sparse, bytes);
    (void)sg_entry_raise(SG_SUM_SPARSE, bytes);
    sg_entry_note_unpromised(bytes);
}

uint64_t sg_ledger_withdraw(uint64_t bytes)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_promises_lock, &lock);
    uint64_t withdrawn = bytes - sg_entry_lower(SG_SUM_PROMISED, bytes);
    sg_lock_release(&sg_promises_lock, &lock);
    return withdrawn;
}

void sg_ledger_begin_move(uint64_t bytes)
{
    if (bytes != 0)
        sg_transit_begin(&promises, bytes);
}

void sg_ledger_end_move(uint64_t bytes)
{
    if (bytes != 0)
        sg_transit_end(&promises, bytes);
}

void sg_ledger_begin_scan(void)
{
    promises_look = sg_transit_begin_look(&promises);
    sparse_look = sg_transit_begin_look(&sparse);
}

static void end_scan_of_sparse(uint64_t bytes)
{
    uint64_t before = sg_load(&sg_own->slot.sparse_bytes), now;
    do
        now = bytes + sg_transit_since(&sparse, sparse_look);
    while (now != before && !sg_entry_exchange(SG_SUM_SPARSE, &before, now));
}

void sg_ledger_end_scan(uint64_t bytes, uint64_t sparse_bytes)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_promises_lock, &lock);
    uint64_t before = sg_load(&sg_own->slot.promised_bytes), since;
    do
        since = sg_transit_since(&promises, promises_look);
    while (!sg_entry_exchange(SG_SUM_PROMISED, &before, bytes + since));
    sg_lock_release(&sg_promises_lock, &lock);
    end_scan_of_sparse(sparse_bytes);
    bound_promises();
}

void sg_ledger_count_allocation(enum sg_domain domain)
{
    sg_add_relaxed(&sg_own->domain[domain].allocations, 1);
}

void sg_ledger_count_free(enum sg_domain domain)
{
    sg_add_relaxed(&sg_own->domain[domain].frees, 1);
}

void sg_ledger_charge_device(uint32_t device, int64_t bytes)
{
    if (device >= SG_DEVICE_CAPACITY)
        return;
    if (bytes > 0)
        sg_fetch_add(&sg_own->device[device].live_bytes, (uint64_t)bytes);
    else
        (void)sg_sub_clamped(&sg_own->device[device].live_bytes, (uint64_t)-bytes);
}

void sg_ledger_grant_credit(struct sg_record *record, uint64_t bytes)
{
    sg_ledger_charge(SG_DOMAIN_HEAP, bytes); /* first, so that live is never shown too low */
    (void)sg_owner_add(&record->credit_bytes, (int64_t)bytes);
}

void sg_ledger_return_credit(struct sg_record *record, uint64_t keep)
{
    int64_t excess = sg_load_relaxed(&record->credit_bytes) - (int64_t)keep;
    if (excess == 0)
        return;
    (void)sg_owner_add(&record->credit_bytes, -excess);
    if (excess > 0)
        sg_ledger_release(SG_DOMAIN_HEAP, (uint64_t)excess);
    else
        sg_ledger_charge(SG_DOMAIN_HEAP, (uint64_t)-excess);
}

static int64_t credit_of_all(void)
{
    uint32_t used = sg_load_acquire(&sg_own->record_used);
    int64_t credit = 0;
    for (uint32_t i = 0; i < used && i < SG_RECORD_LIMIT; i++) /* others may have written to the file */
        credit += sg_load_relaxed(&sg_own->record[i].credit_bytes);
    return credit;
}

static uint64_t less_credit(uint64_t granted)
{
    int64_t live = (int64_t)granted - credit_of_all();
    return live > 0 ? (uint64_t)live : 0;
}

uint64_t sg_ledger_credit_bytes(void)
{
    int64_t credit = credit_of_all();
    return credit > 0 ? (uint64_t)credit : 0;
}

uint64_t sg_ledger_live_bytes(void)
{
    return less_credit(sg_load(&sg_own->slot.granted_bytes));
}

uint64_t sg_ledger_live_heap_bytes(void)
{
    return less_credit(sg_load(&sg_own->domain[SG_DOMAIN_HEAP].granted_bytes));
}

uint64_t sg_ledger_own_bytes(void)
{
    uint64_t live = sg_ledger_live_bytes();
    uint64_t inherited = sg_own->slot.inherited_bytes;
    return live > inherited ? live - inherited : 0;
}

void sg_ledger_count_fault(void)
{
    sg_add_relaxed(&sg_own->faults, 1);
}

void sg_ledger_before_fork(void)
{
    for (unsigned i = 0; i < SG_DOMAIN_COUNT; i++)
        before_fork.domain[i] = sg_load(&sg_own->domain[i].granted_bytes);
    before_fork.domain[SG_DOMAIN_HEAP] = sg_ledger_live_heap_bytes();
    for (unsigned i = 0; i < SG_DEVICE_CAPACITY; i++)
        before_fork.device[i] = sg_load(&sg_own->device[i].live_bytes);
    before_fork.machine = sg_own->machine;
    before_fork.inherited_bytes = sg_load(&sg_own->slot.inherited_bytes);
    before_fork.pid = sg_own->slot.pid;
    before_fork.promised_bytes = sg_load(&sg_own->slot.promised_bytes) + sg_load(&sg_own->slot.inherited_promise_bytes);
}

void sg_ledger_set_mapped_before_fork(uint64_t bytes)
{
    before_fork.domain[SG_DOMAIN_MAPPED] = bytes;
}

void sg_ledger_refork(void)
{
    sg_lock_reset(&sg_promises_lock);
    sg_transit_refork(&promises);
    sg_transit_refork(&sparse);
    sg_store(&peak_writer, 0u);
    sg_job_refork();
    uint64_t inherited = 0;
    for (unsigned i = 0; i < SG_DOMAIN_COUNT; i++) {
        inherited += before_fork.domain[i];
        sg_own->inherited_domain_bytes[i] = before_fork.domain[i];
        sg_ledger_charge((enum sg_domain)i, before_fork.domain[i]);
    }
    for (unsigned i = 0; i < SG_DEVICE_CAPACITY; i++)
        sg_own->device[i].live_bytes = before_fork.device[i];
    uint64_t shared = sg_load(&sg_own->shared_bytes), own = before_fork.inherited_bytes + shared;
    sg_own->slot.inherited_bytes = inherited > shared ? inherited - shared : 0;
    sg_own->inherited_shared_bytes = shared;
    sg_registry_inherit(inherited > own ? inherited - own : 0, before_fork.pid);
    uint64_t lazy = before_fork.domain[SG_DOMAIN_HEAP] + before_fork.domain[SG_DOMAIN_MAPPED] +
                    before_fork.domain[SG_DOMAIN_MANAGED]; /* no more can be missing here */
    sg_own->slot.inherited_promise_bytes = before_fork.promised_bytes < lazy ? before_fork.promised_bytes : lazy;
    sg_own->machine = before_fork.machine;
}
