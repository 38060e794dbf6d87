/*
 * ledger.c - see ledger.h.
 *
 * The peak. Each charge above the peak raises peak_seen_bytes first, and then tries to take a small lock (peak_writer).
 * The thread that gets the lock writes the parts of the peak into the copy that is not current, and switches copies. A
 * thread that does not get the lock returns: its figure is in peak_seen_bytes, and the holder reads that again after
 * releasing the lock. All accesses are seq_cst: either the holder sees the new figure, or the other thread gets the
 * lock. A holder that is killed leaves the current copy whole.
 */
#include "account/ledger.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "shared/job.h"
#include "shared/own_entry.h"
#include "shared/registry.h"
#include "shared/segment.h"
#include "account/callsites.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "account/driver_pool.h"

#include <string.h>

static uint32_t peak_writer;

static uint64_t sparse_ever;      /* (atomic) MAP_NORESERVE bytes made writable, sum; never falls */
static uint64_t shared_ever;      /* (atomic) bytes of shared memory promised or moved, sum; never falls */
static uint64_t arrays_max_bytes; /* (atomic) most array credit of a thread */
static uint32_t has_forked;       /* (atomic) since the last scan began */

/* SG_SUM_EVER and the two sums when the present scan began, and ahead_most_bytes of all records. */
static struct {
    uint64_t ever, sparse, shared, ahead;
} scan;

static struct {
    uint64_t domain[SG_DOMAIN_CAPACITY]; /* live bytes */
    uint64_t device[SG_DEVICE_CAPACITY];
    struct sg_machine machine;
    uint64_t promised_bytes; /* with the promises that the forking process itself inherited */
    uint64_t inherited_bytes;
    uint32_t pid;
} before_fork;

/* Writes the peak. The domains are read one after another, so their sum may differ from `total`, which was true at one
 * instant: the largest domain is adjusted by the difference. */
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
        total = sum; /* happens only if one charge exceeds all bytes held; the sum must match in any case */
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
        uint32_t unlocked = 0;
        if (!sg_cas_u32(&peak_writer, &unlocked, 1))
            return;
        write_peak(seen);
        sg_store(&peak_writer, 0u);
    }
}

/*
 * The peaks that can be reset are never above the peaks of the whole run, so a charge compares with them alone first. A
 * reset sets such a peak to zero, then raises both peaks to the granted bytes. No charge is lost (seq_cst on both
 * sides): the reset reads the charge in the granted bytes, or the charge comes later, and compares with the zero or
 * with the raised peak.
 */
uint64_t sg_ledger_turn_peak(void)
{
    sg_ledger_take_back_arrays();
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
    sg_ledger_take_back_arrays();
    for (unsigned i = 0; i < SG_DOMAIN_COUNT; i++)
        turn_domain_peak(&sg_own->domain[i]);
}

/* The sum of a domain that the registry entry shows as well; SG_SUM_COUNT: the entry shows none for this domain. */
static enum sg_sum sum_of(enum sg_domain domain)
{
    return domain == SG_DOMAIN_DEVICE    ? SG_SUM_DEVICE
           : domain == SG_DOMAIN_PINNED  ? SG_SUM_PINNED
           : domain == SG_DOMAIN_MANAGED ? SG_SUM_MANAGED
                                         : SG_SUM_COUNT;
}

/* Takes array credit back before a charge that would raise a peak: the peak shall not count it. */
static void prepare_peaks(const struct sg_domain_counters *counters, uint64_t bytes)
{
    uint64_t total = sg_load_relaxed(&sg_own->slot.granted_bytes), granted = sg_load_relaxed(&counters->granted_bytes);
    if (SG_UNLIKELY(total + bytes > sg_load_relaxed(&sg_own->phase_peak_bytes) ||
                    granted + bytes > sg_load_relaxed(&counters->recent_peak_bytes)))
        sg_ledger_take_back_arrays();
}

void sg_ledger_charge(enum sg_domain domain, uint64_t bytes)
{
    struct sg_domain_counters *counters = &sg_own->domain[domain];
    enum sg_sum sum = sum_of(domain);
    uint64_t granted, total;
    prepare_peaks(counters, bytes);
    if (sum != SG_SUM_COUNT) {
        if (domain == SG_DOMAIN_DEVICE)
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

/* The promised bytes are read first: a promise is made after its charge, so a newer promise cannot make them too
 * high. */
uint64_t sg_ledger_promised_bytes(void)
{
    uint64_t promised = sg_load(&sg_own->slot.promised_bytes);
    uint64_t promisable = sg_load(&sg_own->domain[SG_DOMAIN_HEAP].granted_bytes) +
                          sg_load(&sg_own->domain[SG_DOMAIN_MAPPED].granted_bytes) +
                          sg_load(&sg_own->domain[SG_DOMAIN_MANAGED].granted_bytes);
    uint64_t inherited = sg_entry_sum(SG_SUM_INHERITED);
    promisable = promisable > inherited ? promisable - inherited : 0;
    return promised < promisable ? promised : promisable;
}

/* Lowers the inherited bytes of a forked child to its private bytes, after it has freed memory that it was forked
 * with. */
static void bound_inheritance(void)
{
    uint64_t inherited = sg_load(&sg_own->slot.inherited_bytes);
    if (SG_LIKELY(inherited == 0))
        return;
    uint64_t shared = sg_load(&sg_own->shared_bytes), granted = sg_load(&sg_own->slot.granted_bytes);
    uint64_t private_bytes = granted > shared ? granted - shared : 0;
    while (private_bytes < inherited && !sg_cas_u64(&sg_own->slot.inherited_bytes, &inherited, private_bytes))
        ;
    if (private_bytes < inherited)
        sg_store(&sg_entry_own()->slot.inherited_bytes, private_bytes);
}

void sg_ledger_release_own(enum sg_domain domain, uint64_t bytes)
{
    enum sg_sum sum = sum_of(domain);
    if (domain == SG_DOMAIN_MANAGED)
        sg_entry_lower_managed_missing(bytes);
    if (sum != SG_SUM_COUNT)
        sg_entry_lower_both(sum, SG_SUM_GRANTED, bytes);
    else
        (void)sg_entry_lower(SG_SUM_GRANTED, bytes - sg_sub_clamped(&sg_own->domain[domain].granted_bytes, bytes));
    if (domain == SG_DOMAIN_DEVICE) /* last: until now the memory has an owner (pool_room.c) */
        sg_driver_pool_note_given(bytes);
    bound_inheritance();
}

void sg_ledger_release(enum sg_domain domain, uint64_t bytes)
{
    sg_ledger_release_inherited(bytes); /* first, as readers read it last */
    sg_ledger_release_own(domain, bytes);
}

void sg_ledger_release_inherited(uint64_t bytes)
{
    if (SG_UNLIKELY(sg_entry_sum(SG_SUM_INHERITED) != 0))
        (void)sg_entry_lower(SG_SUM_INHERITED, bytes);
}

void sg_ledger_inherit(uint64_t mapped_bytes)
{
    uint64_t granted = sg_load(&sg_own->domain[SG_DOMAIN_HEAP].granted_bytes),
             heap = before_fork.domain[SG_DOMAIN_HEAP];
    heap = heap < granted ? heap : granted;
    heap = heap > SG_CREDIT_MAX ? heap - SG_CREDIT_MAX : 0; /* a child may have paid blocks from its first credit */
    (void)sg_entry_raise(SG_SUM_INHERITED, heap + mapped_bytes);
}

/* SG_SUM_EVER first: an observation that ends now may count the bytes twice, but never misses them. */
void sg_ledger_promise(uint64_t bytes, bool is_private)
{
    uint64_t all;
    if (is_private) {
        (void)sg_entry_raise_both(SG_SUM_EVER, SG_SUM_PROMISED, bytes, &all);
        return;
    }
    (void)sg_entry_raise(SG_SUM_EVER, bytes);
    sg_fetch_add(&shared_ever, bytes);
    (void)sg_entry_raise_both(SG_SUM_SHARED, SG_SUM_PROMISED, bytes, &all);
}

/* The sum first: in the other order an observation in between takes the bytes off once more. */
void sg_ledger_withdraw_shared(uint64_t bytes)
{
    if (bytes == 0 || sg_load_relaxed(&has_forked) != 0)
        return;
    (void)sg_entry_lower(SG_SUM_PROMISED, bytes);
    (void)sg_entry_lower(SG_SUM_SHARED, bytes);
}

void sg_ledger_note_moved(uint64_t bytes)
{
    if (bytes == 0)
        return;
    (void)sg_entry_raise(SG_SUM_EVER, bytes);
    sg_fetch_add(&shared_ever, bytes);
}

void sg_ledger_open_sparse(uint64_t bytes)
{
    sg_fetch_add(&sparse_ever, bytes);
    (void)sg_entry_raise(SG_SUM_SPARSE, bytes);
}

void sg_ledger_close_private(uint64_t bytes)
{
    (void)sg_entry_raise(SG_SUM_UNWRITABLE, bytes);
}

/* The promise comes first: an observation that finds the size in neither place finds it there. */
void sg_ledger_reopen_private(uint64_t bytes)
{
    uint64_t most = sg_entry_sum(SG_SUM_UNWRITABLE);
    bytes = bytes < most ? bytes : most;
    if (bytes == 0)
        return;
    sg_ledger_promise(bytes, true);
    (void)sg_entry_lower(SG_SUM_UNWRITABLE, bytes);
}

/* ---- array credit ------------------------------------------------------------------------------------------------ */

/* A thread without credit frees so many arrays before it gets any: a thread that frees one now and then shall
 * not keep its bytes granted. After ARRAYS_ON_CREDIT its credit is taken back: a thread that pays everything from
 * credit makes no decision, so it would not notice that another process of the job has begun, which ends all credit. */
enum { ARRAYS_BEFORE_CREDIT = 16, ARRAYS_ON_CREDIT = 16384 };

/* Promises are made ahead for so many times the credit, so that few frees make any. */
enum { AHEAD_CREDITS = 8 };

/* Takes the call site's part of a word off the call site. */
static void leave_site(uint64_t word)
{
    if (sg_array_site_bytes(word) != 0 || sg_array_site_count(word) != 0)
        sg_callsites_leave_blocks(SG_CALLSITES_HEAP, sg_array_site(word), sg_array_site_bytes(word),
                                  sg_array_site_count(word));
}

/* Takes the credit out of a record's word and closes the word, or leaves it open. Any thread may do this: the owner
 * changes the word by compare-and-swap, too. */
static void take_back(struct sg_record *record, bool closes)
{
    uint64_t word = sg_load(&record->array_credit), open = closes ? 0 : SG_ARRAY_OPEN;
    do {
        if ((word & ~open) == 0)
            return;
    } while (!sg_cas_u64(&record->array_credit, &word, word & open));
    leave_site(word);
    if (sg_array_credit_bytes(word) != 0)
        sg_ledger_release_own(SG_DOMAIN_HEAP, sg_array_credit_bytes(word));
}

static void take_back_arrays(bool closes)
{
    uint32_t used = sg_load(&sg_own->record_used);
    for (uint32_t i = 0; i < used && i < SG_RECORD_LIMIT; i++)
        take_back(&sg_own->record[i], closes);
}

void sg_ledger_take_back_arrays(void)
{
    take_back_arrays(false);
}

void sg_ledger_take_back_record(struct sg_record *record)
{
    take_back(record, true);
}

void sg_ledger_set_array_credit(uint64_t bytes)
{
    sg_store(&arrays_max_bytes, bytes < SG_ARRAY_CREDIT_MAX ? bytes : SG_ARRAY_CREDIT_MAX);
    if (bytes == 0)
        sg_ledger_take_back_arrays();
}

void sg_ledger_take_back_idle_arrays(void)
{
    uint32_t used = sg_load(&sg_own->record_used);
    for (uint32_t i = 0; i < used && i < SG_RECORD_LIMIT; i++) {
        struct sg_record *record = &sg_own->record[i];
        uint64_t freed = sg_load_relaxed(&record->arrays_freed);
        if (sg_load_relaxed(&record->array_credit) == 0)
            continue;
        if (freed == record->arrays_seen)
            take_back(record, true);
        record->arrays_seen = freed;
    }
}

/* The word that pays for an array, or 0 if `word` does not reach. */
static uint64_t word_after_taking(uint64_t word, uint64_t bytes, uint32_t site, bool *is_site_counted)
{
    uint64_t units = bytes / SG_ARRAY_UNIT;
    if (sg_array_credit_bytes(word) < bytes || bytes % SG_ARRAY_UNIT != 0)
        return 0;
    *is_site_counted =
        sg_array_site(word) == site && sg_array_site_bytes(word) >= bytes && sg_array_site_count(word) != 0;
    word -= units << 1;
    return *is_site_counted ? word - (units << SG_ARRAY_SITE_SUM_SHIFT) - (UINT64_C(1) << SG_ARRAY_COUNT_SHIFT) : word;
}

bool sg_ledger_take_array(struct sg_record *record, uint64_t bytes, uint32_t site, bool *is_site_counted)
{
    uint64_t word = sg_load_relaxed(&record->array_credit), after;
    do {
        after = word_after_taking(word, bytes, site, is_site_counted);
        if (after == 0)
            return false;
    } while (!sg_cas_u64(&record->array_credit, &word, after));
    sg_store_relaxed(&record->ahead_bytes, record->ahead_bytes > bytes ? record->ahead_bytes - bytes : 0);
    return true;
}

/* Opens a record's word after it was closed. What was promised ahead before is forgotten by then, or will be. */
static bool open_word(struct sg_record *record)
{
    uint64_t closed = 0;
    if (++record->arrays_freed < ARRAYS_BEFORE_CREDIT)
        return false;
    record->arrays_freed = 0;
    sg_store_relaxed(&record->ahead_bytes, 0);
    sg_store_relaxed(&record->ahead_most_bytes, 0);
    return sg_cas_u64(&record->array_credit, &closed, SG_ARRAY_OPEN);
}

/* Promises ahead what `credit_bytes` may need. The record shows it first: an observation may count it twice, but never
 * misses it. Other processes need to know how much may be taken without a new promise: ahead_most_bytes. */
static SG_COLD void promise_ahead(struct sg_record *record, uint64_t credit_bytes)
{
    uint64_t most = record->ahead_most_bytes, ahead = record->ahead_bytes;
    uint64_t step =
        credit_bytes * AHEAD_CREDITS < SG_ARRAY_CREDIT_MAX ? credit_bytes * AHEAD_CREDITS : SG_ARRAY_CREDIT_MAX;
    uint64_t wanted = step > SG_ARRAY_AHEAD ? step : SG_ARRAY_AHEAD;
    wanted = wanted > most ? wanted : most;
    sg_store(&record->ahead_most_bytes, wanted);
    sg_store(&record->ahead_bytes, wanted);
    if (wanted > most)
        sg_ledger_promise(wanted - most, false);
    if (most > ahead)
        sg_ledger_promise(most - ahead, true);
    sg_registry_note_returned(wanted - ahead); /* the array's pages go back now */
}

/* Whether another call site's part of the word has to go before an array of `site` is added. */
static bool replaces_site(uint64_t word, uint32_t site)
{
    bool has_part = sg_array_site_bytes(word) != 0 || sg_array_site_count(word) != 0;
    return site != 0 && has_part && (sg_array_site(word) != site || sg_array_site_count(word) == SG_ARRAY_COUNT_MAX);
}

/* The word with one array more. */
static uint64_t word_after_giving(uint64_t word, uint64_t bytes, uint32_t site)
{
    const uint64_t of_site = ~UINT64_C(0) << SG_ARRAY_SITE_SUM_SHIFT;
    uint64_t units = bytes / SG_ARRAY_UNIT;
    word += units << 1;
    if (site == 0)
        return word;
    if (sg_array_site(word) != site || replaces_site(word, site))
        word = (word & ~of_site) | (uint64_t)site << SG_ARRAY_SITE_SHIFT;
    return word + (units << SG_ARRAY_SITE_SUM_SHIFT) + (UINT64_C(1) << SG_ARRAY_COUNT_SHIFT);
}

bool sg_ledger_give_array(struct sg_record *record, uint64_t bytes, uint32_t site)
{
    if (bytes % SG_ARRAY_UNIT != 0 || bytes >= SG_ARRAY_MAX)
        return false;
    uint64_t word = sg_load(&record->array_credit), credit;
    if (SG_UNLIKELY((word & SG_ARRAY_OPEN) == 0)) {
        if (!open_word(record))
            return false;
        word = SG_ARRAY_OPEN;
    } else if (SG_UNLIKELY(++record->arrays_freed > ARRAYS_ON_CREDIT)) {
        record->arrays_freed = 0;
        take_back(record, true);
        return false;
    }
    do {
        credit = sg_array_credit_bytes(word) + bytes;
        if ((word & SG_ARRAY_OPEN) == 0 || credit > sg_load_relaxed(&arrays_max_bytes))
            return false;
        if (SG_UNLIKELY(credit > record->ahead_bytes))
            promise_ahead(record, credit);
    } while (!sg_cas_u64(&record->array_credit, &word, word_after_giving(word, bytes, site)));
    if (SG_UNLIKELY(replaces_site(word, site)))
        leave_site(word);
    return true;
}

/* ---- observations ------------------------------------------------------------------------------------------------ */

/* What the threads with array credit may take without a new promise. */
static uint64_t ahead_most_bytes(void)
{
    uint64_t sum = 0;
    uint32_t used = sg_load(&sg_own->record_used);
    for (uint32_t i = 0; i < used && i < SG_RECORD_LIMIT; i++)
        if (sg_load(&sg_own->record[i].array_credit) != 0)
            sum += sg_load(&sg_own->record[i].ahead_most_bytes);
    return sum;
}

uint64_t sg_ledger_begin_observation(void)
{
    return sg_entry_sum(SG_SUM_EVER);
}

void sg_ledger_observe(uint64_t begin, uint64_t missing_bytes)
{
    uint64_t before = sg_load(&sg_own->slot.promised_bytes), now;
    do
        now = missing_bytes + sg_entry_sum(SG_SUM_SHARED) + sg_entry_sum(SG_SUM_EVER) - begin;
    while (now < before && !sg_entry_exchange(SG_SUM_PROMISED, &before, now));
}

void sg_ledger_begin_scan(void)
{
    sg_store_relaxed(&has_forked, 0u);
    scan.ever = sg_ledger_begin_observation();
    scan.sparse = sg_load(&sparse_ever);
    scan.shared = sg_load(&shared_ever);
    scan.ahead = ahead_most_bytes(); /* before the kernel is asked, and after the sums */
}

static void end_scan_of_sparse(uint64_t bytes)
{
    uint64_t before = sg_load(&sg_own->slot.sparse_bytes), now;
    do
        now = bytes + sg_load(&sparse_ever) - scan.sparse;
    while (now != before && !sg_entry_exchange(SG_SUM_SPARSE, &before, now));
}

/* Sets what is promised of shared memory. Returns what it was before; *now is what it is. */
static uint64_t set_shared(uint64_t bytes, uint64_t *now)
{
    uint64_t before = sg_entry_sum(SG_SUM_SHARED);
    do
        *now = bytes + sg_load(&shared_ever) - scan.shared;
    while (!sg_entry_exchange(SG_SUM_SHARED, &before, *now));
    return before;
}

void sg_ledger_end_scan(const struct sg_ledger_scan *found)
{
    uint64_t shared, shared_before = set_shared(found->shared_bytes + scan.ahead, &shared);
    uint64_t before = sg_load(&sg_own->slot.promised_bytes), now, had;
    do {
        had = before > shared_before ? before - shared_before : 0;
        now = found->missing_bytes + sg_entry_sum(SG_SUM_EVER) - scan.ever;
        now = shared + (found->may_rise || now < had ? now : had);
    } while (!sg_entry_exchange(SG_SUM_PROMISED, &before, now));
    end_scan_of_sparse(found->sparse_bytes);
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
    sg_ledger_charge(SG_DOMAIN_HEAP, bytes); /* before the credit, so that live bytes never read too low */
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

/* Unused credit of all threads, with or without array credit. Another program may have written to the file. */
static int64_t credit_of_all(bool has_arrays)
{
    uint32_t used = sg_load_acquire(&sg_own->record_used);
    int64_t credit = 0;
    for (uint32_t i = 0; i < used && i < SG_RECORD_LIMIT; i++) {
        const struct sg_record *record = &sg_own->record[i];
        credit += sg_load_relaxed(&record->credit_bytes);
        if (has_arrays)
            credit += (int64_t)sg_array_credit_bytes(sg_load_relaxed(&record->array_credit));
    }
    return credit;
}

static uint64_t less_credit(uint64_t granted)
{
    int64_t live = (int64_t)granted - credit_of_all(true);
    return live > 0 ? (uint64_t)live : 0;
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
    int64_t credit = credit_of_all(false); /* first: credit that is granted now counts as held */
    int64_t own = (int64_t)sg_load(&sg_own->slot.granted_bytes) - credit - (int64_t)sg_own->slot.inherited_bytes;
    return own > 0 ? (uint64_t)own : 0;
}

void sg_ledger_count_fault(void)
{
    sg_add_relaxed(&sg_own->faults, 1);
}

void sg_ledger_before_fork(void)
{
    sg_store_relaxed(&has_forked, 1u);
    for (unsigned i = 0; i < SG_DOMAIN_COUNT; i++)
        before_fork.domain[i] = sg_load(&sg_own->domain[i].granted_bytes);
    before_fork.domain[SG_DOMAIN_HEAP] = sg_ledger_live_heap_bytes();
    for (unsigned i = 0; i < SG_DEVICE_CAPACITY; i++)
        before_fork.device[i] = sg_load(&sg_own->device[i].live_bytes);
    before_fork.machine = sg_own->machine;
    before_fork.inherited_bytes = sg_load(&sg_own->slot.inherited_bytes);
    before_fork.pid = sg_own->slot.pid;
    before_fork.promised_bytes = sg_ledger_promised_bytes() + sg_load(&sg_own->slot.inherited_promise_bytes);
}

void sg_ledger_set_mapped_before_fork(uint64_t bytes)
{
    before_fork.domain[SG_DOMAIN_MAPPED] = bytes;
}

void sg_ledger_add_promised_before_fork(uint64_t bytes)
{
    before_fork.promised_bytes += bytes;
}

void sg_ledger_atfork_child(void)
{
    sg_store(&peak_writer, 0u);
    sg_store(&sparse_ever, UINT64_C(0));
    sg_store(&arrays_max_bytes, UINT64_C(0)); /* until sg_tracker_inherit has marked the parent's blocks */
    sg_job_atfork_child();
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
    uint64_t promisable = before_fork.domain[SG_DOMAIN_HEAP] + before_fork.domain[SG_DOMAIN_MAPPED] +
                          before_fork.domain[SG_DOMAIN_MANAGED]; /* upper bound of the missing bytes in this child */
    sg_own->slot.inherited_promise_bytes =
        before_fork.promised_bytes < promisable ? before_fork.promised_bytes : promisable;
    sg_own->machine = before_fork.machine;
}
