/*
 * hook_heap.c - malloc and its family, behind any allocator. The fastest ways are in hook_malloc.c.
 *
 * A request below LARGE is paid from the thread's credit: no shared memory, no decision. Blocks of SG_TRACKED_BYTES and
 * more are entered in the index. Everything is counted by the usable size of live blocks, whatever was asked for.
 *
 * From inside the next allocator (jemalloc and others call their own family) calls pass through uncounted; the outermost
 * call counts. Every function may be the first one of the process, come from a signal handler or a dying thread.
 */
#include "admission.h"
#include "atomics.h"
#include "boot.h"
#include "compiler.h"
#include "glibc_heap.h"
#include "hook_heap.h"
#include "index.h"
#include "ledger.h"
#include "lifecycle.h"
#include "options.h"
#include "real.h"
#include "segment.h"
#include "sites.h"
#include "thread.h"
#include "watchdog.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

/* What the real heap is asked to do. */
enum work { WORK_MALLOC, WORK_CALLOC, WORK_ALIGN };

struct order {
    enum work work;
    enum sg_hook hook; /* which function's name and address */
    size_t size;       /* bytes altogether */
    size_t alignment;
    const void *caller; /* where the program's call returns to */
};

static size_t usable_size(void *ptr)
{
    return sg_boot_owns(ptr) ? sg_boot_usable_size(ptr) : SG_REAL(malloc_usable_size)(ptr);
}

/* The real call. */
static void *carry_out(const struct order *order)
{
    void *ptr = order->work == WORK_MALLOC ? SG_REAL(malloc)(order->size) : NULL;
    if (order->work == WORK_CALLOC)
        ptr = SG_REAL(calloc)(1, order->size);
    if (order->work != WORK_ALIGN)
        return ptr;
    if (order->hook == SG_HOOK_valloc)
        return SG_REAL(valloc)(order->size);
    if (order->hook == SG_HOOK_pvalloc)
        return SG_REAL(pvalloc)(order->size);
    if (order->hook == SG_HOOK_aligned_alloc)
        return SG_REAL(aligned_alloc)(order->alignment, order->size);
    if (order->hook == SG_HOOK_memalign)
        return SG_REAL(memalign)(order->alignment, order->size);
    int result = SG_REAL(posix_memalign)(&ptr, order->alignment, order->size);
    if (result != 0)
        errno = result; /* the hook turns it back into the result */
    return result == 0 ? ptr : NULL;
}

static void *carry_out_inside(const struct order *order)
{
    sg_self.layers |= order->work != WORK_ALIGN ? sg_load_relaxed(&sg_heap_inside) : SG_LAYER_HEAP;
    void *ptr = carry_out(order);
    sg_self.layers &= ~(uint32_t)SG_LAYER_HEAP;
    return ptr;
}

static void *refused(void)
{
    errno = ENOMEM;
    return NULL;
}

static void leave_site(uint64_t entry)
{
    if (sg_block_site(entry) != 0)
        sg_sites_leave(SG_SITES_HEAP, sg_block_site(entry), sg_block_size(entry));
}

/* `caller` NULL, here and below: of a request that was not large. `before`: the entry of the block that it was, or 0. */
static SG_COLD void enter_tracked(void *ptr, size_t usable, const void *caller, uint64_t before)
{
    uint64_t stale = 0, entry = sg_block(usable, SG_DOMAIN_HEAP, 0) | sg_index_seen_of(before);
    if (caller != NULL)
        entry |= (uint64_t)sg_sites_enter(SG_SITES_HEAP, SG_DOMAIN_HEAP, caller, usable) << SG_BLOCK_SITE_SHIFT;
    if (sg_table_insert(&sg_index_blocks, (uintptr_t)ptr, entry, &stale) != 0) {
        sg_ledger_count_fault();
        leave_site(entry);
    }
    if (stale != 0) { /* the block that was here went through a door we do not see */
        leave_site(stale);
        sg_ledger_release(SG_DOMAIN_HEAP, sg_block_size(stale));
        sg_add_relaxed(&sg_own->unmatched_frees, 1);
    }
}

static SG_COLD void mend_credit(struct sg_record *record, int64_t credit)
{
    if (credit < 0) /* the allocator rounded up beyond what was asked for */
        sg_ledger_grant_credit(record, SG_CREDIT_REFILL + (uint64_t)-credit);
    else
        sg_ledger_return_credit(record, SG_CREDIT_REFILL);
}

static SG_COLD void pay_directly(int64_t change)
{
    if (change > 0)
        sg_ledger_charge(SG_DOMAIN_HEAP, (uint64_t)change);
    else
        sg_ledger_release(SG_DOMAIN_HEAP, (uint64_t)-change);
}

/* Heap bytes change by `change`: paid from the thread's credit, or directly where it has none or the change was judged
 * by itself. */
static inline void pay(int64_t change, bool is_direct)
{
    struct sg_record *record = sg_self.record;
    if (SG_UNLIKELY(record == NULL || is_direct)) {
        pay_directly(change);
        return;
    }
    int64_t credit = sg_owner_add(&record->credit_bytes, -change);
    if (SG_UNLIKELY((uint64_t)credit > SG_CREDIT_MOST))
        mend_credit(record, credit);
}

static void count_block(void *ptr, size_t usable, const void *caller)
{
    if (SG_UNLIKELY(usable >= SG_TRACKED_BYTES))
        enter_tracked(ptr, usable, caller, 0);
    pay((int64_t)usable, caller != NULL);
}

static void count_allocation(void)
{
    if (SG_LIKELY(sg_self.record != NULL))
        sg_owner_count(&sg_self.record->allocations);
    else
        sg_add_relaxed(&sg_own->record[0].allocations, 1);
}

static void count_free(void)
{
    if (SG_LIKELY(sg_self.record != NULL))
        sg_owner_count(&sg_self.record->frees);
    else
        sg_add_relaxed(&sg_own->record[0].frees, 1);
}

/* A request of LARGE or more: judged by itself. */
static void *take_large(const struct order *order)
{
    struct sg_request request = {.domain = SG_DOMAIN_HEAP,
                                 .size_bytes = order->size,
                                 .growth_bytes = order->size,
                                 .call = sg_hook_table[order->hook].base};
    if (!sg_admission_ask(&request))
        return refused();
    void *ptr = carry_out_inside(order);
    size_t usable = ptr != NULL ? usable_size(ptr) : 0;
    if (ptr != NULL) {
        int saved_errno = errno;
        count_block(ptr, usable, order->caller);
        count_allocation();
        errno = saved_errno;
    }
    sg_admission_settle(&request, usable);
    sg_watchdog_consider();
    return ptr;
}

/* Once, when the process has a heap: opens the ways of hook_malloc.c. */
static void consider_fast(void)
{
    static uint32_t is_considered;
    uint32_t no = 0;
    if (SG_LIKELY(sg_load_relaxed(&is_considered) != 0) || !sg_cas_u32(&is_considered, &no, 1))
        return;
    sg_self.layers |= SG_LAYER_HEAP;
    bool is_glibcs = sg_glibc_heap_is_next();
    sg_self.layers &= ~(uint32_t)SG_LAYER_HEAP;
    sg_heap_open_fast(is_glibcs);
}

static void *take(const struct order order)
{
    if (sg_real_is_looking()) {
        void *ptr = sg_boot_allocate(order.size, order.alignment);
        return ptr != NULL ? ptr : refused();
    }
    if (!sg_lifecycle_enter() || (sg_self.layers & SG_LAYER_HEAP) != 0 || order.size > PTRDIFF_MAX)
        return carry_out(&order);
    if (order.size >= sg_options.large_bytes)
        return take_large(&order);
    if (!sg_admission_take_credit(order.size, sg_hook_table[order.hook].base))
        return refused();
    void *ptr = carry_out_inside(&order);
    if (ptr != NULL) {
        count_block(ptr, usable_size(ptr), NULL);
        count_allocation();
    }
    consider_fast();
    sg_watchdog_consider();
    return ptr;
}

static void release_tracked(const void *ptr, size_t usable)
{
    sg_index_withdraw_block((uintptr_t)ptr, usable);
    uint64_t entry = sg_table_remove(&sg_index_blocks, (uintptr_t)ptr);
    if (entry == 0) { /* nobody saw it come */
        sg_add_relaxed(&sg_own->unmatched_frees, 1);
        return;
    }
    leave_site(entry);
    pay(-(int64_t)usable, true);
}

/* Before a block really goes: out of the index and off the ledger. */
static void release_block(const void *ptr, size_t usable)
{
    if (SG_LIKELY(usable < SG_TRACKED_BYTES))
        pay(-(int64_t)usable, false);
    else
        release_tracked(ptr, usable);
}

void *sg_heap_take(size_t size, enum sg_hook hook, const void *caller)
{
    return take((struct order){hook == SG_HOOK_calloc ? WORK_CALLOC : WORK_MALLOC, hook, size, 0, caller});
}

void *sg_heap_admit(void *ptr, enum sg_hook hook)
{
    size_t usable = SG_REAL(malloc_usable_size)(ptr);
    if (!sg_lifecycle_enter() || (sg_self.layers & SG_LAYER_HEAP) != 0)
        return ptr;
    if (!sg_admission_take_credit(usable, sg_hook_table[hook].base)) {
        SG_REAL(free)(ptr);
        return refused();
    }
    count_block(ptr, usable, NULL);
    count_allocation();
    sg_watchdog_consider();
    return ptr;
}

void sg_heap_give_back(void *ptr)
{
    if (ptr == NULL || sg_boot_owns(ptr))
        return;
    if (!sg_lifecycle_enter() || (sg_self.layers & SG_LAYER_HEAP) != 0) {
        SG_REAL(free)(ptr);
        return;
    }
    int saved_errno = errno; /* free keeps errno since glibc 2.33; what we add must not change that */
    size_t usable = SG_REAL(malloc_usable_size)(ptr);
    struct sg_passage passage = sg_index_begin_passage((uintptr_t)ptr, usable, false);
    release_block(ptr, usable);
    count_free();
    sg_self.layers |= sg_load_relaxed(&sg_heap_inside);
    SG_REAL(free)(ptr);
    sg_self.layers &= ~(uint32_t)SG_LAYER_HEAP;
    sg_index_end_passage(passage);
    errno = saved_errno;
}

void sg_heap_count(void *ptr, size_t usable)
{
    count_block(ptr, usable, NULL);
}

static void *move_from_boot(void *ptr, size_t size)
{
    void *moved = malloc(size);
    size_t old = sg_boot_usable_size(ptr);
    if (moved != NULL)
        memcpy(moved, ptr, old < size ? old : size);
    return moved;
}

static void *carry_out_realloc(void *ptr, size_t size)
{
    sg_self.layers |= sg_load_relaxed(&sg_heap_inside);
    void *moved = SG_REAL(realloc)(ptr, size);
    sg_self.layers &= ~(uint32_t)SG_LAYER_HEAP;
    return moved;
}

/* Above this size glibc has every block in a mapping of its own (DEFAULT_MMAP_THRESHOLD_MAX), and grows it by mremap
 * without a second copy. Below it, or with another allocator, old and new may live side by side for a moment. */
#define GROWS_IN_PLACE_BYTES ((size_t)32 << 20)

static void *resize(void *ptr, size_t size, const char *call, const void *caller)
{
    size_t old = SG_REAL(malloc_usable_size)(ptr);
    size_t growth = size > old ? size - old : 0;
    bool is_large = size >= sg_options.large_bytes && growth != 0;
    struct sg_request request = {.domain = SG_DOMAIN_HEAP,
                                 .size_bytes = old >= GROWS_IN_PLACE_BYTES ? growth : size,
                                 .growth_bytes = growth,
                                 .call = call};
    if (is_large ? !sg_admission_ask(&request) : growth != 0 && !sg_admission_take_credit(growth, call))
        return refused();
    struct sg_passage passage = sg_index_begin_passage((uintptr_t)ptr, old, true);
    uint64_t entry = old >= SG_TRACKED_BYTES ? sg_table_remove(&sg_index_blocks, (uintptr_t)ptr) : 0;
    void *moved = carry_out_realloc(ptr, size);
    int saved_errno = errno;
    if (moved != NULL || size == 0) {
        bool is_known = entry != 0 || old < SG_TRACKED_BYTES;
        size_t usable = moved != NULL ? SG_REAL(malloc_usable_size)(moved) : 0;
        if (!is_known)
            sg_add_relaxed(&sg_own->unmatched_frees, 1);
        leave_site(entry);
        if (usable >= SG_TRACKED_BYTES)
            enter_tracked(moved, usable, usable >= sg_options.large_bytes ? caller : NULL, entry);
        pay((int64_t)usable - (is_known ? (int64_t)old : 0), is_large || old >= SG_TRACKED_BYTES);
    } else if (entry != 0 && sg_table_insert(&sg_index_blocks, (uintptr_t)ptr, entry, NULL) != 0) {
        sg_ledger_count_fault();
    }
    sg_index_end_passage(passage);
    if (moved == NULL && size == 0) /* glibc frees; others hand out a small block */
        count_free();
    if (is_large)
        sg_admission_settle(&request, moved != NULL ? growth : 0);
    errno = saved_errno;
    return moved;
}

void *sg_heap_resize(void *ptr, size_t size, enum sg_hook hook, const void *caller)
{
    if (ptr == NULL)
        return take((struct order){WORK_MALLOC, hook, size, 0, caller});
    if (sg_boot_owns(ptr))
        return move_from_boot(ptr, size);
    bool is_ours = sg_lifecycle_enter() && (sg_self.layers & SG_LAYER_HEAP) == 0 && size <= PTRDIFF_MAX;
    void *moved = is_ours ? NULL : SG_REAL(realloc)(ptr, size);
    return !is_ours ? moved : resize(ptr, size, sg_hook_table[hook].base, caller);
}

void sg_heap_settle(int64_t change)
{
    pay(change, false);
}

SG_EXPORT void *reallocarray(void *ptr, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return refused();
    return sg_heap_resize(ptr, bytes, SG_HOOK_reallocarray, __builtin_return_address(0));
}

SG_EXPORT int posix_memalign(void **out, size_t alignment, size_t size)
{
    if (alignment % sizeof(void *) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0)
        return EINVAL;
    int saved_errno = errno;
    errno = 0;
    void *ptr = take((struct order){WORK_ALIGN, SG_HOOK_posix_memalign, size, alignment, __builtin_return_address(0)});
    int result = ptr != NULL ? 0 : errno != 0 ? errno : ENOMEM;
    errno = saved_errno;
    if (ptr != NULL)
        *out = ptr;
    return result;
}

SG_EXPORT void *aligned_alloc(size_t alignment, size_t size)
{
    return take((struct order){WORK_ALIGN, SG_HOOK_aligned_alloc, size, alignment, __builtin_return_address(0)});
}

SG_EXPORT void *memalign(size_t alignment, size_t size)
{
    return take((struct order){WORK_ALIGN, SG_HOOK_memalign, size, alignment, __builtin_return_address(0)});
}

SG_EXPORT void *valloc(size_t size)
{
    return take((struct order){WORK_ALIGN, SG_HOOK_valloc, size, 0, __builtin_return_address(0)});
}

SG_EXPORT void *pvalloc(size_t size)
{
    return take((struct order){WORK_ALIGN, SG_HOOK_pvalloc, size, 0, __builtin_return_address(0)});
}

SG_EXPORT size_t malloc_usable_size(void *ptr)
{
    return ptr != NULL ? usable_size(ptr) : 0;
}
