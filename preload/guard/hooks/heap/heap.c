/*
 * heap.c - the slow path of malloc and its family, for every allocator. fast.c has the fast path; derived.c has the
 * functions that glibc makes of realloc and free.
 *
 * A block below SG_TRACKED_BYTES is paid from the thread's credit, without a decision. Larger blocks are entered in the
 * block table; array credit pays for them, or they are requests of their own. All counts are of the usable size of live
 * blocks, whatever size was requested.
 *
 * Calls from inside the next allocator (jemalloc and others call their own family) pass through uncounted; the
 * outermost call counts. Every function may be the first one that the process calls, and may come from a signal handler
 * or a thread that ends.
 */
#include "admit/admission.h"
#include "admit/reclaim/trim.h"
#include "base/atomics.h"
#include "hooks/heap/bootstrap_alloc.h"
#include "base/compiler.h"
#include "hooks/heap/glibc.h"
#include "hooks/heap/heap.h"
#include "account/tracker.h"
#include "account/ledger.h"
#include "hooks/lifecycle.h"
#include "base/options.h"
#include "hooks/real.h"
#include "shared/segment.h"
#include "account/callsites.h"
#include "base/elf_symbols.h"
#include "account/thread_record.h"
#include "watch/watchdog.h"
#include "base/pages.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

uint32_t sg_heap_inside = SG_LAYER_HEAP;
uint32_t sg_heap_is_checking;

/* Function of the real heap, by its kind. */
enum operation { OPERATION_MALLOC, OPERATION_CALLOC, OPERATION_ALIGN };

struct alloc_request {
    enum operation operation;
    enum sg_hook hook; /* gives the name and the address of the function */
    size_t size;       /* bytes altogether */
    size_t alignment;
    const void *caller; /* return address of the program's call */
    int *result;        /* result of posix_memalign, written only if the real function is called */
};

size_t sg_heap_usable_size(void *ptr)
{
    if (sg_load_relaxed(&sg_heap_inside) == 0) { /* glibc's heap: see open_fast */
        uint64_t header = sg_glibc_header(ptr);
        return SG_LIKELY((header & SG_GLIBC_MAPPED) == 0) ? sg_glibc_usable(header) : SG_REAL(malloc_usable_size)(ptr);
    }
    uint32_t layers = sg_self.layers;
    sg_self.layers = layers | sg_load_relaxed(&sg_heap_inside);
    size_t usable = SG_REAL(malloc_usable_size)(ptr);
    sg_self.layers = layers;
    return usable;
}

static size_t usable_size(void *ptr)
{
    return sg_bootstrap_owns(ptr) ? sg_bootstrap_usable_size(ptr) : sg_heap_usable_size(ptr);
}

/* Calls the real function. */
static void *call_real(const struct alloc_request *wanted)
{
    void *ptr = wanted->operation == OPERATION_MALLOC ? SG_REAL(malloc)(wanted->size) : NULL;
    if (wanted->operation == OPERATION_CALLOC)
        ptr = SG_REAL(calloc)(1, wanted->size);
    if (wanted->operation != OPERATION_ALIGN)
        return ptr;
    if (wanted->hook == SG_HOOK_valloc)
        return SG_REAL(valloc)(wanted->size);
    if (wanted->hook == SG_HOOK_pvalloc)
        return SG_REAL(pvalloc)(wanted->size);
    if (wanted->hook == SG_HOOK_aligned_alloc)
        return SG_REAL(aligned_alloc)(wanted->alignment, wanted->size);
    if (wanted->hook == SG_HOOK_memalign)
        return SG_REAL(memalign)(wanted->alignment, wanted->size);
    *wanted->result = SG_REAL(posix_memalign)(&ptr, wanted->alignment, wanted->size);
    return *wanted->result == 0 ? ptr : NULL;
}

static void *call_real_inside(const struct alloc_request *wanted)
{
    sg_self.layers |= wanted->operation != OPERATION_ALIGN ? sg_load_relaxed(&sg_heap_inside) : SG_LAYER_HEAP;
    void *ptr = call_real(wanted);
    sg_self.layers &= ~(uint32_t)SG_LAYER_HEAP;
    return ptr;
}

static void free_inside(void *ptr)
{
    sg_self.layers |= sg_load_relaxed(&sg_heap_inside);
    SG_REAL(free)(ptr);
    sg_self.layers &= ~(uint32_t)SG_LAYER_HEAP;
}

static void *refused(void)
{
    errno = ENOMEM;
    return NULL;
}

static void leave_site(uint64_t entry)
{
    if (sg_block_site(entry) != 0)
        sg_callsites_leave(SG_CALLSITES_HEAP, sg_block_site(entry), sg_block_size(entry));
}

/* Takes array credit back before a call site gets a new peak: the peak shall not count it. */
static void prepare_site_peak(uint32_t number, uint64_t bytes)
{
    const struct sg_callsite *site = &sg_own->site[SG_CALLSITES_HEAP][number];
    if (sg_load_relaxed(&site->live_bytes) + bytes > sg_load_relaxed(&site->peak_bytes))
        sg_ledger_take_back_arrays();
}

/* Finds the call site of a block of `bytes`, before the call site counts it. */
static uint32_t find_site(const void *caller, uint64_t bytes)
{
    uint32_t number = sg_callsites_find(SG_CALLSITES_HEAP, SG_DOMAIN_HEAP, caller);
    prepare_site_peak(number, bytes);
    return number;
}

/* Enters a block in the block table, with the table value `entry`. */
static void enter_block(void *ptr, uint64_t entry)
{
    uint64_t stale = 0;
    if (sg_block_table_insert(&sg_tracker_blocks, (uintptr_t)ptr, entry, &stale) != 0) {
        sg_ledger_count_fault();
        leave_site(entry);
    }
    if (stale != 0) { /* the block that was here was freed through an entry point that is not hooked */
        leave_site(stale);
        sg_ledger_release(SG_DOMAIN_HEAP, sg_block_size(stale));
        sg_add_relaxed(&sg_own->unmatched_frees, 1);
    }
}

/* Enters a block that was paid from the thread's credit, or resized. `caller` is NULL here and below for a request of
 * up to LARGE. `before` is the table entry of the block that was resized, or 0. */
static SG_COLD void enter_tracked(void *ptr, size_t usable, const void *caller, uint64_t before)
{
    uint64_t entry = sg_block(usable, SG_DOMAIN_HEAP, 0) | (before & SG_BLOCK_INHERITED);
    if (caller != NULL)
        entry |= (uint64_t)sg_callsites_add(SG_CALLSITES_HEAP, find_site(caller, usable), usable)
                 << SG_BLOCK_SITE_SHIFT;
    enter_block(ptr, entry);
}

static SG_COLD void correct_credit(struct sg_record *record, int64_t credit)
{
    if (credit < 0) /* the allocator rounded the size up beyond the credit */
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

/* Counts `change` more heap bytes. The thread's credit pays for them. They are charged directly if the thread has no
 * record, or if the change was judged by itself (`is_direct`). */
static inline void pay(int64_t change, bool is_direct)
{
    struct sg_record *record = sg_self.record;
    if (SG_UNLIKELY(record == NULL || is_direct)) {
        pay_directly(change);
        return;
    }
    int64_t credit = sg_owner_add(&record->credit_bytes, -change);
    if (SG_UNLIKELY((uint64_t)credit > SG_CREDIT_MAX))
        correct_credit(record, credit);
}

/* Returns whether a block of this size is in the block table. */
static bool is_tracked(size_t usable)
{
    return usable >= SG_TRACKED_BYTES || (sg_load_relaxed(&sg_heap_is_checking) != 0 && usable != 0);
}

/* Counts a block that the thread's credit pays. */
static void count_block(void *ptr, size_t usable)
{
    if (SG_UNLIKELY(is_tracked(usable)))
        enter_tracked(ptr, usable, NULL, 0);
    pay((int64_t)usable, false);
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

/* ---- arrays: blocks in the block table --------------------------------------------------------------------------- */

/* Counts an array that has been allocated. `site`: its call site, or 0. */
static void enter_array(void *ptr, size_t usable, uint32_t site)
{
    enter_block(ptr, sg_block(usable, SG_DOMAIN_HEAP, 0) | (uint64_t)site << SG_BLOCK_SITE_SHIFT);
    count_allocation();
}

/* Whether the array credit of this thread probably reaches for a request: the heap may round the size up. */
static bool has_array_credit(const struct alloc_request *wanted)
{
    const struct sg_record *record = sg_self.record;
    return wanted->size >= SG_ARRAY_MIN && wanted->size < SG_ARRAY_MAX && record != NULL &&
           sg_array_credit_bytes(sg_load_relaxed(&record->array_credit)) >= wanted->size;
}

/* Adds an array that array credit has paid to its call site. Its bytes came from another call site, which has lost
 * them. */
static SG_COLD void move_to_site(uint32_t site, size_t usable)
{
    if (sg_load_relaxed(&sg_own->sites_peak_state) == SG_CALLSITES_PEAK_LIVE)
        sg_callsites_keep_peak();
    prepare_site_peak(site, usable);
    (void)sg_callsites_add(SG_CALLSITES_HEAP, site, usable);
}

/* Pays for an array that has been allocated, and enters it. False: the credit does not reach, or a signal handler has
 * forked meanwhile, and this is the child, which has no credit. */
static bool pay_from_credit(void *ptr, struct sg_record *record, uint32_t site)
{
    bool is_site_counted = false;
    size_t usable = sg_heap_usable_size(ptr);
    if (sg_self.record != record)
        return false;
    bool is_paid = sg_ledger_take_array(record, usable, site, &is_site_counted);
    if (SG_UNLIKELY(!is_paid))
        return false;
    if (site != 0 && !is_site_counted)
        move_to_site(site, usable);
    enter_array(ptr, usable, site);
    return true;
}

/* Allocates an array and pays for it from array credit. Returns false if it cannot be paid so: *ptr is NULL. */
static bool allocate_from_credit(const struct alloc_request *wanted, void **ptr)
{
    struct sg_record *record = sg_self.record;
    uint32_t site = 0;
    if (wanted->size >= sg_options.large_bytes)
        site = sg_callsites_find(SG_CALLSITES_HEAP, SG_DOMAIN_HEAP, wanted->caller);
    *ptr = call_real_inside(wanted);
    if (SG_UNLIKELY(*ptr == NULL) || SG_LIKELY(pay_from_credit(*ptr, record, site)))
        return true;
    free_inside(*ptr);
    *ptr = NULL;
    return false;
}

/* Counts a block that was judged by itself. `caller`: NULL for an array of up to LARGE, which has no call site. */
static void count_judged(void *ptr, size_t usable, const void *caller)
{
    if (!is_tracked(usable)) {
        count_allocation();
    } else if (caller != NULL) {
        uint32_t site = find_site(caller, usable);
        enter_array(ptr, usable, sg_callsites_add(SG_CALLSITES_HEAP, site, usable));
    } else {
        enter_array(ptr, usable, 0);
    }
    sg_ledger_charge(SG_DOMAIN_HEAP, usable);
}

/* Allocates and counts a block. Returns its usable size; 0: *ptr is NULL. */
static size_t allocate_judged(const struct alloc_request *wanted, const void *caller, void **ptr)
{
    *ptr = call_real_inside(wanted);
    size_t usable = *ptr != NULL ? usable_size(*ptr) : 0;
    if (*ptr != NULL) {
        int saved_errno = errno;
        count_judged(*ptr, usable, caller);
        errno = saved_errno;
    }
    return usable;
}

static struct sg_request request_of(const struct alloc_request *wanted)
{
    return (struct sg_request){.domain = SG_DOMAIN_HEAP,
                               .size_bytes = wanted->size,
                               .growth_bytes = wanted->size,
                               .wording.call = sg_hook_table[wanted->hook].base};
}

/* Allocates a block above LARGE, which is a request of its own. */
static void *allocate_large(const struct alloc_request *wanted)
{
    struct sg_request request = request_of(wanted);
    void *ptr;
    if (!sg_admission_ask(&request))
        return refused();
    sg_admission_settle(&request, allocate_judged(wanted, wanted->caller, &ptr));
    sg_watchdog_consider();
    return ptr;
}

/* Allocates an array of up to LARGE: as a large one where headroom is ample, else as a small block, with its grace. */
static void *allocate_small_array(const struct alloc_request *wanted)
{
    struct sg_request request = request_of(wanted);
    void *ptr;
    if (SG_LIKELY(sg_admission_take(&request))) {
        sg_admission_settle(&request, allocate_judged(wanted, NULL, &ptr));
    } else {
        if (!sg_admission_ask_small(SG_DOMAIN_HEAP, wanted->size, request.wording.call))
            return refused();
        sg_admission_settle_small(&request, allocate_judged(wanted, NULL, &ptr));
    }
    sg_watchdog_consider();
    return ptr;
}

/* Whether a request of up to LARGE is for an array. A checking heap has each block in the table, paid from the thread's
 * credit. So is what the driver allocates in a CUDA call: it may not handle a refusal. */
static bool is_array(size_t size)
{
    return size >= SG_ARRAY_MIN && sg_load_relaxed(&sg_heap_is_checking) == 0 && (sg_self.layers & SG_LAYER_CUDA) == 0;
}

/* Finds out whether the next allocator checks blocks (sg_heap_is_checking), before the first block is counted. The
 * names are exports of glibc's libc_malloc_debug, of hardened_malloc and of Scudo. */
static void find_checking_heap(void)
{
    static const char *const names[] = {"mcheck_check_all", "malloc_object_size", "__scudo_print_stats"};
    static uint32_t is_considered;
    if (SG_LIKELY(sg_load_acquire(&is_considered) != 0))
        return;
    for (unsigned i = 0; i < SG_ARRAY_LENGTH(names); i++)
        if (sg_elf_symbols_between(names[i]) != NULL)
            sg_store_relaxed(&sg_heap_is_checking, 1u);
    sg_store_release(&is_considered, 1u);
}

/* The heap rounds a request up by less than this. A request below SG_TRACKED_BYTES less this is never in the block
 * table. */
#define ROUNDING_MAX 64

/* Opens the fast path. `is_glibcs` says that the next allocator is glibc's, with blocks as glibc.h describes them. */
static void open_fast(bool is_glibcs)
{
    const uint64_t untracked = SG_TRACKED_BYTES - ROUNDING_MAX;
    const struct sg_fast_limits limits = {sg_options.large_bytes < untracked ? sg_options.large_bytes : untracked,
                                          SG_ADDRESS_LIMIT};
    if (is_glibcs) {
        sg_store_relaxed(&sg_heap_inside, 0u);
        sg_trim_set_heap();
    } else if (SG_REAL(malloc) == NULL || SG_REAL(calloc) == NULL || SG_REAL(free) == NULL ||
               SG_REAL(malloc_usable_size) == NULL) {
        return;
    }
    sg_thread_open_fast(is_glibcs ? SG_FAST_GLIBC : SG_FAST_OTHER, &limits);
}

/* Opens the fast path of fast.c, once, when the process has a heap. */
static void open_fast_once(void)
{
    static uint32_t is_considered;
    uint32_t no = 0;
    if (SG_LIKELY(sg_load_relaxed(&is_considered) != 0) || !sg_cas_u32(&is_considered, &no, 1) ||
        sg_load_relaxed(&sg_heap_is_checking) != 0)
        return;
    sg_self.layers |= SG_LAYER_HEAP;
    bool is_glibcs = sg_glibc_heap_is_next();
    sg_self.layers &= ~(uint32_t)SG_LAYER_HEAP;
    open_fast(is_glibcs);
}

static void *allocate_array(const struct alloc_request *wanted)
{
    void *ptr;
    if (SG_LIKELY(has_array_credit(wanted)) && SG_LIKELY(allocate_from_credit(wanted, &ptr)))
        return ptr;
    (void)sg_admission_take_credit(0, sg_hook_table[wanted->hook].base); /* a thread without a record gets one */
    open_fast_once();
    return wanted->size >= sg_options.large_bytes ? allocate_large(wanted) : allocate_small_array(wanted);
}

/* Judges and counts a block that is already allocated. Returns false if it is refused; it has then been freed. */
static bool admit(void *ptr, size_t usable, enum sg_hook hook)
{
    if (!sg_admission_take_credit(usable, sg_hook_table[hook].base)) {
        free_inside(ptr);
        return false;
    }
    count_block(ptr, usable);
    count_allocation();
    return true;
}

static void *allocate(const struct alloc_request wanted)
{
    if (sg_real_is_looking()) {
        void *ptr = sg_bootstrap_allocate(wanted.size, wanted.alignment);
        return ptr != NULL ? ptr : refused();
    }
    if (!sg_lifecycle_enter() || (sg_self.layers & SG_LAYER_HEAP) != 0)
        return call_real(&wanted);
    if (wanted.size >= SG_ADDRESS_LIMIT)
        return call_real_inside(&wanted);
    find_checking_heap();
    if (wanted.size >= sg_options.large_bytes || is_array(wanted.size))
        return allocate_array(&wanted);
    if (!sg_admission_take_credit(wanted.size, sg_hook_table[wanted.hook].base))
        return refused();
    void *ptr = call_real_inside(&wanted);
    if (ptr != NULL && !admit(ptr, usable_size(ptr), wanted.hook))
        return refused();
    open_fast_once();
    sg_watchdog_consider();
    return ptr;
}

static void release_tracked(const void *ptr, size_t usable)
{
    uint64_t entry = sg_block_table_remove(&sg_tracker_blocks, (uintptr_t)ptr);
    if (entry == 0) { /* allocated through an entry point that is not hooked */
        sg_add_relaxed(&sg_own->unmatched_frees, 1);
        return;
    }
    bool may_be_credit = (entry & SG_BLOCK_INHERITED) == 0 && sg_self.record != NULL && sg_block_size(entry) == usable;
    if (may_be_credit && sg_ledger_give_array(sg_self.record, usable, sg_block_site(entry)))
        return;
    leave_site(entry);
    if ((entry & SG_BLOCK_INHERITED) != 0 || !sg_tracker_has_inherited())
        sg_ledger_release(SG_DOMAIN_HEAP, usable);
    else
        sg_ledger_release_own(SG_DOMAIN_HEAP, usable);
}

/* Takes a block out of the block table and off the ledger, before it is really freed. */
static void release_block(const void *ptr, size_t usable)
{
    if (SG_LIKELY(!is_tracked(usable)))
        pay(-(int64_t)usable, false);
    else
        release_tracked(ptr, usable);
}

void *sg_heap_take(size_t size, enum sg_hook hook, const void *caller)
{
    return allocate((struct alloc_request){hook == SG_HOOK_calloc ? OPERATION_CALLOC : OPERATION_MALLOC, hook, size, 0,
                                           caller, NULL});
}

void *sg_heap_admit(void *ptr, enum sg_hook hook)
{
    size_t usable = sg_heap_usable_size(ptr);
    if (!sg_lifecycle_enter() || (sg_self.layers & SG_LAYER_HEAP) != 0)
        return ptr;
    if (!admit(ptr, usable, hook))
        return refused();
    sg_watchdog_consider();
    return ptr;
}

static void call_real_free(void *ptr, const struct sg_heap_sized *sized)
{
    if (sized == NULL)
        SG_REAL(free)(ptr);
    else if (sized->alignment == 0)
        ((void (*)(void *, size_t))sized->real)(ptr, sized->size);
    else
        ((void (*)(void *, size_t, size_t))sized->real)(ptr, sized->alignment, sized->size);
}

/* Returns the size of a block that the program frees or resizes. Returns SIZE_MAX if the next allocator checks blocks
 * and has not allocated this one: that allocator shall judge the block itself. */
static size_t size_of_given(void *ptr)
{
    if (sg_load_relaxed(&sg_heap_is_checking) == 0)
        return sg_heap_usable_size(ptr);
    uint64_t entry = sg_block_table_find(&sg_tracker_blocks, (uintptr_t)ptr);
    return entry != 0 ? sg_block_size(entry) : SIZE_MAX;
}

static void count_and_free(void *ptr, const struct sg_heap_sized *sized)
{
    if (ptr == NULL || sg_bootstrap_owns(ptr))
        return;
    if (!sg_lifecycle_enter() || (sg_self.layers & SG_LAYER_HEAP) != 0) {
        call_real_free(ptr, sized);
        return;
    }
    int saved_errno = errno; /* free keeps errno since glibc 2.33, and so must this hook */
    size_t usable = size_of_given(ptr);
    if (usable != SIZE_MAX)
        release_block(ptr, usable);
    count_free();
    sg_self.layers |= sg_load_relaxed(&sg_heap_inside);
    call_real_free(ptr, sized);
    sg_self.layers &= ~(uint32_t)SG_LAYER_HEAP;
    errno = saved_errno;
}

void sg_heap_give_back(void *ptr)
{
    count_and_free(ptr, NULL);
}

void sg_heap_give_back_sized(void *ptr, const struct sg_heap_sized *sized)
{
    count_and_free(ptr, sized);
}

static void *move_from_bootstrap(void *ptr, size_t size, const void *caller)
{
    void *moved = sg_heap_take(size, SG_HOOK_malloc, caller);
    size_t old = sg_bootstrap_usable_size(ptr);
    if (moved != NULL)
        memcpy(moved, ptr, old < size ? old : size);
    return moved;
}

static void *call_real_realloc(void *ptr, size_t size)
{
    sg_self.layers |= sg_load_relaxed(&sg_heap_inside);
    void *moved = SG_REAL(realloc)(ptr, size);
    sg_self.layers &= ~(uint32_t)SG_LAYER_HEAP;
    return moved;
}

/* From this size on, glibc gives every block a mapping of its own (DEFAULT_MMAP_THRESHOLD_MAX) and grows it by mremap,
 * without a second copy. Below it, or with another allocator, old and new block may exist side by side for a moment. */
#define GROWS_IN_PLACE_BYTES ((size_t)32 << 20)

static bool grows_in_place(size_t old)
{
    return old >= GROWS_IN_PLACE_BYTES && sg_load_relaxed(&sg_heap_inside) == 0;
}

/* A smaller block has hardly ever a mapping of its own. */
#define OWN_MAPPING_BYTES ((size_t)64 << 10)

/* Returns by how many bytes a block grows. A block with a mapping of its own grows in whole pages. */
static size_t growth_of(size_t old, size_t size)
{
    if (size <= old)
        return 0;
    return old < OWN_MAPPING_BYTES ? size - old : sg_round_up(size - old, sg_page_bytes());
}

/* Bytes of alignment that an allocator may have left at the end of a block, at most. */
#define TAIL_BYTES 16

/* Returns whether a block is good for the request as it is. glibc would add a page to a block with a mapping of its own
 * that is asked for exactly its usable size: a request that seems to take nothing would grow the process. */
static bool is_large_enough(size_t usable, size_t size)
{
    return size != 0 && size <= usable && usable - size < TAIL_BYTES;
}

/* Counts a real realloc that has returned: `old` bytes became those of `moved`. `entry` is the old block's table entry,
 * which was taken out. Returns how many more bytes the block has. */
static uint64_t count_resized(void *moved, size_t old, uint64_t entry, const void *caller, bool is_judged)
{
    bool is_known = entry != 0 || !is_tracked(old);
    size_t usable = moved != NULL ? sg_heap_usable_size(moved) : 0;
    int64_t change = (int64_t)usable - (is_known ? (int64_t)old : 0);
    if (!is_known)
        sg_add_relaxed(&sg_own->unmatched_frees, 1);
    leave_site(entry);
    if (is_tracked(usable))
        enter_tracked(moved, usable, usable >= sg_options.large_bytes ? caller : NULL, entry);
    pay(change, is_judged || (change < 0 && old >= SG_TRACKED_BYTES));
    return usable > old ? usable - old : 0;
}

static void *resize(void *ptr, size_t size, const char *call, const void *caller)
{
    size_t old = size_of_given(ptr);
    if (old == SIZE_MAX)
        return call_real_realloc(ptr, size);
    if (is_large_enough(old, size))
        return ptr;
    size_t growth = growth_of(old, size);
    bool is_judged = size >= sg_options.large_bytes && growth != 0;
    struct sg_request request = {.domain = SG_DOMAIN_HEAP,
                                 .size_bytes = grows_in_place(old) ? growth : size,
                                 .growth_bytes = growth,
                                 .wording.block_bytes = size,
                                 .wording.call = call};
    if (is_judged ? !sg_admission_ask(&request) : growth != 0 && !sg_admission_take_credit(growth, call))
        return refused();
    uint64_t entry = is_tracked(old) ? sg_block_table_remove(&sg_tracker_blocks, (uintptr_t)ptr) : 0;
    void *moved = call_real_realloc(ptr, size);
    int saved_errno = errno;
    uint64_t grown_bytes = 0;
    if (moved != NULL || size == 0)
        grown_bytes = count_resized(moved, old, entry, caller, is_judged);
    else if (entry != 0 && sg_block_table_insert(&sg_tracker_blocks, (uintptr_t)ptr, entry, NULL) != 0)
        sg_ledger_count_fault();
    if (moved == NULL && size == 0) /* glibc frees the block; other allocators return a small one */
        count_free();
    if (is_judged)
        sg_admission_settle(&request, grown_bytes);
    errno = saved_errno;
    return moved;
}

void *sg_heap_resize(void *ptr, size_t size, enum sg_hook hook, const void *caller)
{
    if (ptr == NULL)
        return allocate((struct alloc_request){OPERATION_MALLOC, hook, size, 0, caller, NULL});
    if (sg_bootstrap_owns(ptr))
        return move_from_bootstrap(ptr, size, caller);
    if (!sg_lifecycle_enter() || (sg_self.layers & SG_LAYER_HEAP) != 0) {
        void *moved = SG_REAL(realloc)(ptr, size);
        return moved;
    }
    if (size >= SG_ADDRESS_LIMIT) /* the real call fails */
        return call_real_realloc(ptr, size);
    return resize(ptr, size, sg_hook_table[hook].base, caller);
}

void sg_heap_settle(int64_t change)
{
    pay(change, false);
}

/* A refusal leaves errno alone. If the real function fails, errno is as the next allocator leaves it. */
SG_EXPORT int posix_memalign(void **out, size_t alignment, size_t size)
{
    bool is_valid = alignment % sizeof(void *) == 0 && alignment != 0 && (alignment & (alignment - 1)) == 0;
    if (!is_valid)
        return sg_real_is_looking() ? EINVAL : SG_REAL(posix_memalign)(out, alignment, size);
    int saved_errno = errno, result = -1;
    void *ptr = allocate((struct alloc_request){OPERATION_ALIGN, SG_HOOK_posix_memalign, size, alignment,
                                                __builtin_return_address(0), &result});
    if (ptr == NULL && result > 0)
        return result;
    errno = saved_errno;
    if (ptr == NULL)
        return ENOMEM;
    *out = ptr;
    return 0;
}

SG_EXPORT void *aligned_alloc(size_t alignment, size_t size)
{
    return allocate((struct alloc_request){OPERATION_ALIGN, SG_HOOK_aligned_alloc, size, alignment,
                                           __builtin_return_address(0), NULL});
}

SG_EXPORT void *memalign(size_t alignment, size_t size)
{
    return allocate(
        (struct alloc_request){OPERATION_ALIGN, SG_HOOK_memalign, size, alignment, __builtin_return_address(0), NULL});
}

SG_EXPORT void *valloc(size_t size)
{
    return allocate(
        (struct alloc_request){OPERATION_ALIGN, SG_HOOK_valloc, size, 0, __builtin_return_address(0), NULL});
}

SG_EXPORT void *pvalloc(size_t size)
{
    return allocate(
        (struct alloc_request){OPERATION_ALIGN, SG_HOOK_pvalloc, size, 0, __builtin_return_address(0), NULL});
}

SG_EXPORT size_t malloc_usable_size(void *ptr)
{
    return ptr != NULL ? usable_size(ptr) : 0;
}
