/*
 * thread.c - see thread.h.
 */
#include "thread.h"

#include "atomics.h"
#include "ledger.h"
#include "segment.h"
#include "syscall.h"

#include <limits.h>
#include <pthread.h>

struct sg_record sg_thread_no_purse = {.credit_bytes = SG_NO_CREDIT};
SG_THREAD_LOCAL struct sg_thread sg_self = {.purse = &sg_thread_no_purse};
union sg_wipe_page sg_wipe __attribute__((aligned(SG_PAGE_MOST)));

static uint32_t has_been_armed;
static struct sg_fast_limits fast[SG_FAST_WAYS]; /* what the page is armed with */

static pthread_key_t key SG_AT_START;
static uint32_t has_key SG_AT_START;
static uint32_t search_from = 1;

/* Runs when a thread ends. Other keys' destructors may still free memory after ours, in any order, so the record is
 * given back in the last round only: setting the key again asks for another. */
static void leave(void *round)
{
    uintptr_t number = (uintptr_t)round;
    if (number < PTHREAD_DESTRUCTOR_ITERATIONS && pthread_setspecific(key, (void *)(number + 1)) == 0)
        return;
    struct sg_record *record = sg_self.record;
    if (record == NULL)
        return;
    sg_self.purse = &sg_thread_no_purse;
    sg_self.record = NULL;
    sg_self.is_late = 1;
    sg_ledger_return_credit(record, 0);
    sg_store_release(&record->tid, 0u); /* pairs with the claim in sg_thread_enter */
}

static void set_limits(enum sg_fast_way way, const struct sg_fast_limits *limits)
{
    struct sg_fast_limits *armed = &sg_wipe.fast[way];
    sg_store_release(&armed->request_bytes, sg_load_relaxed(&limits->request_bytes)); /* pairs with hook_malloc.c */
    sg_store_release(&armed->address, sg_load_relaxed(&limits->address));
}

static void arm(void)
{
    if (sg_load_relaxed(&sg_wipe.is_armed) != 0)
        return;
    (void)sg_sys_madvise(&sg_wipe, sizeof sg_wipe, 18 /* MADV_WIPEONFORK, Linux 4.14 */);
    sg_store_relaxed(&sg_wipe.is_armed, 1u);
    sg_store_release(&has_been_armed, 1u); /* pairs with sg_thread_arm */
    set_limits(SG_FAST_GLIBC, &fast[SG_FAST_GLIBC]);
    set_limits(SG_FAST_OTHER, &fast[SG_FAST_OTHER]);
}

bool sg_thread_arm(void)
{
    /* In this order: another thread may be arming it. */
    if (sg_load_acquire(&has_been_armed) != 0 && sg_load_relaxed(&sg_wipe.is_armed) == 0)
        return false;
    arm();
    return true;
}

void sg_thread_begin(void)
{
    has_key = pthread_key_create(&key, leave) == 0;
}

static struct sg_record *claim_record(uint32_t tid, uint32_t capacity)
{
    uint32_t begin = sg_load_relaxed(&search_from);
    for (uint32_t i = 0; i < capacity; i++) {
        uint32_t index = 1 + (begin - 1 + i) % (capacity - 1);
        struct sg_record *record = &sg_own->record[index];
        uint32_t nobody = 0;
        if (sg_load_relaxed(&record->tid) != 0 || !sg_cas_u32(&record->tid, &nobody, tid))
            continue;
        uint32_t used = sg_load_relaxed(&sg_own->record_used);
        while (used < index + 1 && !sg_cas_u32(&sg_own->record_used, &used, index + 1))
            ;
        sg_store_relaxed(&search_from, index % (capacity - 1) + 1);
        return record;
    }
    return NULL;
}

void sg_thread_enter(void)
{
    if (sg_self.record != NULL || sg_self.is_late)
        return;
    arm();
    uint32_t tid = sg_sys_gettid();
    struct sg_record *record = NULL;
    uint32_t capacity;
    do {
        capacity = sg_segment_record_capacity();
        record = claim_record(tid, capacity);
    } while (record == NULL && sg_segment_grow(capacity));
    if (record == NULL)
        return;
    sg_self.record = record;
    sg_self.purse = record;
    if (has_key) {
        int saved_errno = errno;
        (void)pthread_setspecific(key, (void *)1);
        errno = saved_errno;
    }
}

void sg_thread_open_fast(enum sg_fast_way way, const struct sg_fast_limits *limits)
{
    sg_store_relaxed(&fast[way].request_bytes, limits->request_bytes);
    sg_store_relaxed(&fast[way].address, limits->address);
    if (sg_load_relaxed(&sg_wipe.is_armed) != 0)
        set_limits(way, limits);
}

struct sg_thread_pause sg_thread_pause(void)
{
    struct sg_thread_pause pause = {sg_self.purse, sg_self.layers};
    sg_self.purse = &sg_thread_no_purse;
    sg_self.layers = SG_LAYER_HEAP | SG_LAYER_CUDA;
    return pause;
}

void sg_thread_resume(const struct sg_thread_pause *pause)
{
    sg_self.layers = pause->layers;
    sg_self.purse = pause->purse;
}

void sg_thread_refork(void)
{
    sg_self.purse = &sg_thread_no_purse;
    sg_self.record = NULL;
    sg_store_relaxed(&search_from, 1u);
    const struct sg_fast_limits nothing = {0, 0};
    set_limits(SG_FAST_GLIBC, &nothing);
    set_limits(SG_FAST_OTHER, &nothing);
    sg_store_relaxed(&sg_wipe.is_armed, 0u);
    arm(); /* at once: a raw clone may be the next thing this child does */
}
