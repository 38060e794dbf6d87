/*
 * thread_record.c - see thread_record.h.
 */
#include "account/thread_record.h"

#include "base/atomics.h"
#include "account/ledger.h"
#include "base/elf_symbols.h"
#include "base/procfs.h"
#include "base/seccomp.h"
#include "shared/segment.h"
#include "base/syscall.h"

#include <errno.h>
#include <pthread.h>

struct sg_record sg_thread_no_credit = {.credit_bytes = SG_NO_CREDIT};
SG_THREAD_LOCAL struct sg_thread sg_self = {.credit = &sg_thread_no_credit};
union sg_fork_page sg_wipe __attribute__((aligned(SG_PAGE_MAX)));

static uint32_t has_been_armed SG_AT_FORK;
static struct sg_fast_limits fast[SG_FAST_WAYS]; /* the limits that arming copies to the fork-detection page */

/* Whether a record's thread has ended: the kernel knows no thread of that number in any process. (clone(2) makes
 * processes that share this process's memory, and its records.) No callback at the end of a thread is used: those of
 * the C library are limited in number or allocate from the program's heap. */
static bool has_ended(uint32_t tid)
{
    return tid != 0 && sg_syscall_asked(SYS_tkill, tid, 0, 0, 0, 0, 0) == -ESRCH;
}

/* Whether has_ended may be called: a seccomp filter could end the program for its tkill. If not, all threads count as
 * alive. The answer is kept for several calls of has_ended, because it costs more than they do. */
enum may_probe { NOT_KNOWN, MAY_PROBE, MAY_NOT_PROBE };
static bool may_probe(enum may_probe *answer)
{
    if (*answer == NOT_KNOWN)
        *answer = sg_seccomp_is_on() ? MAY_NOT_PROBE : MAY_PROBE;
    return *answer == MAY_PROBE;
}

static uint32_t search_from = 1; /* (atomic) the record where the next search for a free one begins */
static uint32_t reap_from = 1;   /* (atomic) the record that sg_thread_reap checks next, modulo the records in use */

static void set_limits(enum sg_fast_way way, const struct sg_fast_limits *limits)
{
    struct sg_fast_limits *armed = &sg_wipe.fast[way];
    sg_store_release(&armed->request_bytes, sg_load_relaxed(&limits->request_bytes)); /* pairs with fast.c */
    sg_store_release(&armed->address, sg_load_relaxed(&limits->address));
}

static void arm(void)
{
    if (sg_load_relaxed(&sg_wipe.is_armed) != 0)
        return;
    (void)sg_sys_madvise(&sg_wipe, sizeof sg_wipe, 18 /* MADV_WIPEONFORK, Linux 4.14 */);
    sg_store_relaxed(&sg_wipe.is_armed, 1u);
    sg_store_release(&has_been_armed, 1u); /* pairs with sg_thread_has_been_armed */
    set_limits(SG_FAST_GLIBC, &fast[SG_FAST_GLIBC]);
    set_limits(SG_FAST_OTHER, &fast[SG_FAST_OTHER]);
}

bool sg_thread_has_been_armed(void)
{
    return sg_load_acquire(&has_been_armed) != 0; /* pairs with arm */
}

bool sg_thread_arm(void)
{
    /* has_been_armed is read first: another thread that is arming the page sets is_armed before has_been_armed. */
    if (sg_thread_has_been_armed() && sg_load_relaxed(&sg_wipe.is_armed) == 0)
        return false;
    arm();
    return true;
}

/* Takes over a free record, or, if `may` is not NULL, the record of an ended thread, together with its credit. Returns
 * whether it did. */
static bool take_over(struct sg_record *record, uint32_t tid, enum may_probe *may)
{
    uint32_t held = sg_load_relaxed(&record->tid);
    bool is_free =
        held == 0 || (may != NULL && held != SG_RECORD_REAPED && (held == tid || (may_probe(may) && has_ended(held))));
    return is_free && sg_cas_u32(&record->tid, &held, tid);
}

static struct sg_record *claim_record(uint32_t tid, uint32_t capacity)
{
    enum { PROBES_MAX = 8 };
    enum may_probe may = NOT_KNOWN;
    uint32_t begin = sg_load_relaxed(&search_from);
    for (uint32_t i = 0; i < capacity; i++) {
        uint32_t index = 1 + (begin - 1 + i) % (capacity - 1);
        struct sg_record *record = &sg_own->record[index];
        if (!take_over(record, tid, i < PROBES_MAX ? &may : NULL))
            continue;
        uint32_t used = sg_load_relaxed(&sg_own->record_used);
        while (used < index + 1 && !sg_cas_u32(&sg_own->record_used, &used, index + 1))
            ;
        sg_store_relaxed(&search_from, index);
        return record;
    }
    return NULL;
}

void sg_thread_reap(uint32_t max_records)
{
    uint32_t used = sg_load(&sg_own->record_used), capacity = sg_segment_record_capacity();
    used = used < capacity ? used : capacity;
    enum may_probe may = NOT_KNOWN;
    for (uint32_t i = 0; used > 2 && i < max_records && i + 1 < used; i++) {
        uint32_t index = 1 + sg_fetch_add(&reap_from, 1u) % (used - 1);
        struct sg_record *record = &sg_own->record[index];
        uint32_t tid = sg_load_relaxed(&record->tid);
        if (tid == SG_RECORD_REAPED || !may_probe(&may) || !has_ended(tid) ||
            !sg_cas_u32(&record->tid, &tid, SG_RECORD_REAPED))
            continue;
        sg_ledger_return_credit(record, 0);
        sg_ledger_take_back_record(record);
        sg_store_release(&record->tid, 0u); /* pairs with the claim in take_over */
    }
}

void sg_thread_enter(void)
{
    if (sg_self.record != NULL)
        return;
    arm();
    uint32_t tid = sg_procfs_thread();
    struct sg_record *record = NULL;
    uint32_t capacity;
    do {
        capacity = sg_segment_record_capacity();
        record = claim_record(tid, capacity);
        if (record == NULL) {
            sg_thread_reap(capacity);
            record = claim_record(tid, capacity);
        }
    } while (record == NULL && sg_segment_grow(capacity));
    if (record == NULL)
        return;
    sg_self.record = record;
    sg_self.credit = record;
}

void sg_thread_open_fast(enum sg_fast_way way, const struct sg_fast_limits *limits)
{
    sg_store_relaxed(&fast[way].request_bytes, limits->request_bytes);
    sg_store_relaxed(&fast[way].address, limits->address);
    if (sg_load_relaxed(&sg_wipe.is_armed) != 0)
        set_limits(way, limits);
}

/* Whether this thread can be cancelled at cancellation points only. A thread with asynchronous cancellation must not
 * call functions that allocate (POSIX), and its cancel state stays as it is: glibc 2.36 ends such a thread without
 * PTHREAD_CANCELED when pthread_setcancelstate enables cancellation again. */
static const char not_single;
const char *sg_thread_is_single = &not_single;

void sg_thread_find_single(void)
{
    const char *found = sg_elf_symbols_variable("__libc_single_threaded");
    sg_thread_is_single = found != NULL ? found : &not_single;
}

static bool is_cancelled_at_points(void)
{
    int type = PTHREAD_CANCEL_DEFERRED;
    (void)pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
    if (type == PTHREAD_CANCEL_DEFERRED)
        return true;
    (void)pthread_setcanceltype(type, NULL);
    return false;
}

/* Needed although no function that allocates is a cancellation point: another allocator or a driver may wait in one. */
void sg_thread_disable_cancel(void)
{
    if (is_cancelled_at_points()) /* the C library stores the old state before it changes the state */
        (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &sg_self.open.cancel_state);
}

void sg_thread_let_all_cancels(void)
{
    struct sg_open_call *open = &sg_self.open;
    if (open->cancel_holds != 0 && open->cancel_state != SG_CANCEL_AS_IT_IS)
        (void)pthread_setcancelstate(open->cancel_state, NULL);
    open->cancel_holds = 0;
}

void sg_thread_count_nothing(void)
{
    sg_self.open.mark = (struct sg_mark){0, 0};
    sg_self.credit = &sg_thread_no_credit;
    sg_self.layers = SG_LAYER_HEAP | SG_LAYER_CUDA | SG_LAYER_CALL;
}

void sg_thread_atfork_child(void)
{
    sg_self.credit = &sg_thread_no_credit;
    sg_self.record = NULL;
    sg_self.open = (struct sg_open_call){.mark = sg_self.open.mark, /* all other fields describe the parent's call */
                                         .cancel_holds = sg_self.open.cancel_holds,
                                         .cancel_state = sg_self.open.cancel_state};
    sg_store_relaxed(&search_from, 1u);
    const struct sg_fast_limits nothing = {0, 0};
    set_limits(SG_FAST_GLIBC, &nothing);
    set_limits(SG_FAST_OTHER, &nothing);
    sg_store_relaxed(&sg_wipe.is_armed, 0u);
    arm(); /* at once: the next call of this child may be a raw clone */
}
