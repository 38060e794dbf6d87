/*
 * fast.c - the fast path of malloc, calloc, realloc and free. It needs glibc's heap as next allocator (glibc.h), a
 * small block, and a thread that has a record and credit enough.
 *
 * Every instruction counts here, so one comparison tests as much as possible. A call that fails a test takes the path
 * for other allocators, which asks the allocator for the size, or goes to heap.c.
 * - The limits lie in the fork-detection page, which reads 0 in a forked child, and are 0 until the next allocator is
 *   known. Therefore the tests "is the block small" and "is its address below the limit" also test whether this process
 *   may use the fast path.
 * - A thread without a record, or one whose calls do not count, pays from a shared record without credit
 *   (sg_thread_no_credit). Each payment from it is short and each refund is beyond the maximum, so the slow path is
 *   taken.
 * - A small block is allocated before it is paid. If the credit does not reach and the request is refused, the block is
 *   freed. The program has not written to it by then.
 * - glibc's heap does not call malloc, so no layer is set around the call, and free leaves by a jump.
 */
#include "base/atomics.h"
#include "hooks/heap/bootstrap_alloc.h"
#include "base/compiler.h"
#include "hooks/heap/glibc.h"
#include "hooks/heap/heap.h"
#include "account/tracker.h"
#include "account/ledger.h"
#include "base/options.h"
#include "account/thread_record.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

/* Undoes a change of the credit. The record without credit is set back to its constant. */
static void undo_payment(struct sg_record *credit_record, int64_t change)
{
    if (credit_record == &sg_thread_no_credit)
        sg_store_relaxed(&credit_record->credit_bytes, (int64_t)SG_NO_CREDIT);
    else
        (void)sg_owner_add(&credit_record->credit_bytes, -change);
}

/* Undoes a payment that the credit did not cover, and lets the slow path judge the block. */
static SG_COLD void *pay_slowly(void *ptr, struct sg_record *credit_record, uint64_t usable, enum sg_hook hook)
{
    undo_payment(credit_record, -(int64_t)usable);
    return sg_heap_admit(ptr, hook);
}

/* Undoes a refund that exceeds SG_CREDIT_MAX, and frees the block by the slow path. */
static SG_COLD void free_slowly(void *ptr, struct sg_record *credit_record, uint64_t usable)
{
    undo_payment(credit_record, (int64_t)usable);
    sg_heap_give_back(ptr);
}

/* Pays for a block from the thread's credit. Returns the block, or NULL if the slow path refuses it. */
static inline void *pay(void *ptr, uint64_t usable, enum sg_hook hook)
{
    struct sg_record *credit_record = sg_self.credit;
    if (SG_UNLIKELY(sg_owner_take_is_short(&credit_record->credit_bytes, (int64_t)usable)))
        return pay_slowly(ptr, credit_record, usable, hook);
    sg_owner_count(&credit_record->allocations);
    return ptr;
}

/* Pays for a block that glibc's heap has just allocated, by the size in its header. */
static inline void *pay_glibc_block(void *ptr, enum sg_hook hook)
{
    if (SG_UNLIKELY(ptr == NULL))
        return NULL;
    uint64_t header = sg_glibc_header(ptr);
    if (SG_UNLIKELY((header & SG_GLIBC_MAPPED) != 0))
        return sg_heap_admit(ptr, hook);
    return pay(ptr, sg_glibc_usable(header), hook);
}

/* ---- medium blocks, and the first ones --------------------------------------------------------------------------- */

/* Returns whether this thread may take the path for medium blocks: it has a record with `size` bytes of credit, is in
 * no layer, and the request is of up to LARGE. */
static inline bool can_pay(size_t size)
{
    const struct sg_record *record = sg_self.record;
    return SG_LIKELY(record != NULL && sg_load_relaxed(&sg_wipe.is_armed) != 0 && size < sg_options.large_bytes &&
                     sg_load_relaxed(&sg_heap_is_checking) == 0 &&
                     (int64_t)size <= sg_load_relaxed(&record->credit_bytes) && sg_self.layers == 0);
}

static SG_APART void *allocate_medium(size_t size, enum sg_hook hook, const void *caller)
{
    if (size >= SG_ARRAY_MIN)
        return sg_heap_take(size, hook, caller);
    struct sg_record *record = sg_self.record;
    if (!can_pay(size))
        return sg_heap_take(size, hook, caller);
    sg_self.layers = sg_load_relaxed(&sg_heap_inside);
    void *ptr = hook == SG_HOOK_calloc ? SG_REAL(calloc)(1, size) : SG_REAL(malloc)(size);
    size_t usable = SG_LIKELY(ptr != NULL) ? SG_REAL(malloc_usable_size)(ptr) : 0;
    sg_self.layers = 0;
    if (SG_UNLIKELY(ptr == NULL))
        return NULL;
    if (SG_UNLIKELY(usable >= SG_TRACKED_BYTES))
        return sg_heap_admit(ptr, hook);
    if (SG_UNLIKELY(sg_owner_take_is_short(&record->credit_bytes, (int64_t)usable)))
        return pay_slowly(ptr, record, usable, hook);
    sg_owner_count(&record->allocations);
    return ptr;
}

static SG_APART void free_medium(void *ptr)
{
    struct sg_record *record = sg_self.record;
    if (ptr == NULL || sg_bootstrap_owns(ptr) || !can_pay(0)) {
        sg_heap_give_back(ptr);
        return;
    }
    size_t usable = sg_heap_usable_size(ptr);
    if (SG_UNLIKELY(usable >= SG_TRACKED_BYTES)) {
        sg_heap_give_back(ptr);
        return;
    }
    if (SG_UNLIKELY(sg_owner_add_is_beyond(&record->credit_bytes, (int64_t)usable, SG_CREDIT_MAX))) {
        free_slowly(ptr, record, usable);
        return;
    }
    sg_owner_count(&record->frees);
    sg_self.layers = sg_load_relaxed(&sg_heap_inside);
    SG_REAL(free)(ptr);
    sg_self.layers = 0;
}

/* ---- behind another allocator ------------------------------------------------------------------------------------ */

/* The allocator is asked for the size of each block. Once this path is open, the addresses of its functions are
 * known. */

#define REAL_ADDRESS(name) ((__typeof__(&name))sg_real_address[SG_HOOK_##name])

static SG_INLINE void *allocate_other(size_t size, enum sg_hook hook, const void *caller)
{
    if (SG_UNLIKELY(size >= sg_load_acquire(&sg_wipe.fast[SG_FAST_OTHER].request_bytes) || sg_self.layers != 0))
        return allocate_medium(size, hook, caller);
    sg_self.layers = SG_LAYER_HEAP;
    void *ptr = hook == SG_HOOK_calloc ? REAL_ADDRESS(calloc)(1, size) : REAL_ADDRESS(malloc)(size);
    if (SG_UNLIKELY(ptr == NULL)) {
        sg_self.layers = 0;
        return NULL;
    }
    size_t usable = REAL_ADDRESS(malloc_usable_size)(ptr); /* may allocate, too, so the layer is still set */
    sg_self.layers = 0;
    return SG_UNLIKELY(usable >= SG_TRACKED_BYTES) ? sg_heap_admit(ptr, hook) : pay(ptr, usable, hook);
}

static SG_APART void *malloc_other(size_t size, const void *caller)
{
    return allocate_other(size, SG_HOOK_malloc, caller);
}

static SG_APART void *calloc_other(size_t size, const void *caller)
{
    return allocate_other(size, SG_HOOK_calloc, caller);
}

static SG_APART void *realloc_other(size_t size, const void *caller)
{
    return allocate_other(size, SG_HOOK_realloc, caller);
}

static SG_APART void free_other(void *ptr)
{
    if (SG_UNLIKELY((uintptr_t)ptr - 1 >= sg_load_acquire(&sg_wipe.fast[SG_FAST_OTHER].address) ||
                    sg_bootstrap_owns(ptr) || sg_self.layers != 0)) {
        free_medium(ptr);
        return;
    }
    sg_self.layers = SG_LAYER_HEAP;
    size_t usable = REAL_ADDRESS(malloc_usable_size)(ptr);
    if (SG_UNLIKELY(usable >= SG_TRACKED_BYTES)) {
        sg_self.layers = 0;
        sg_heap_give_back(ptr);
        return;
    }
    struct sg_record *credit_record = sg_self.credit;
    if (SG_UNLIKELY(sg_owner_add_is_beyond(&credit_record->credit_bytes, (int64_t)usable, SG_CREDIT_MAX))) {
        sg_self.layers = 0;
        free_slowly(ptr, credit_record, usable);
        return;
    }
    sg_owner_count(&credit_record->frees);
    REAL_ADDRESS(free)(ptr);
    sg_self.layers = 0;
}

/* ---- the exports ------------------------------------------------------------------------------------------------- */

static inline void *allocate(size_t size, enum sg_hook hook)
{
    if (SG_UNLIKELY(!sg_is_below(size, &sg_wipe.fast[SG_FAST_GLIBC].request_bytes)))
        return hook == SG_HOOK_malloc ? malloc_other(size, __builtin_return_address(0))
                                      : realloc_other(size, __builtin_return_address(0));
    return pay_glibc_block(sg_glibc_malloc(size), hook);
}

SG_EXPORT void *malloc(size_t size)
{
    return allocate(size, SG_HOOK_malloc);
}

SG_EXPORT void *calloc(size_t count, size_t size)
{
    size_t bytes;
    if (SG_UNLIKELY(__builtin_mul_overflow(count, size, &bytes))) {
        errno = ENOMEM;
        return NULL;
    }
    if (SG_UNLIKELY(!sg_is_below(bytes, &sg_wipe.fast[SG_FAST_GLIBC].request_bytes)))
        return calloc_other(bytes, __builtin_return_address(0));
    return pay_glibc_block(sg_glibc_calloc(1, bytes), SG_HOOK_calloc);
}

/* Returns whether a block is below SG_TRACKED_BYTES and has no mapping of its own. A header with higher bits set is not
 * one of the heap that we know, and fails the same comparison. */
static inline bool is_usual(uint64_t header)
{
    return (header & ~(uint64_t)(SG_TRACKED_BYTES - 1 - SG_GLIBC_MAPPED)) == 0;
}

/* Returns whether the header of the block may be read. NULL less one is above every address, so NULL gives false. */
static inline bool is_header_readable(const void *ptr)
{
    return sg_is_below((uintptr_t)ptr - 1, &sg_wipe.fast[SG_FAST_GLIBC].address);
}

/* Frees a block that is not usual: an array, or one with a mapping of its own. */
static SG_APART void free_unusual(void *ptr, uint64_t header)
{
    if (header >= SG_TRACKED_BYTES)
        sg_heap_give_back(ptr);
    else
        free_medium(ptr);
}

SG_EXPORT void free(void *ptr)
{
    if (SG_UNLIKELY(!is_header_readable(ptr))) {
        free_other(ptr);
        return;
    }
    uint64_t header = sg_glibc_header(ptr);
    if (SG_UNLIKELY(!is_usual(header))) {
        free_unusual(ptr, header);
        return;
    }
    uint64_t usable = sg_glibc_usable(header);
    struct sg_record *credit_record = sg_self.credit;
    if (SG_UNLIKELY(sg_owner_add_is_beyond(&credit_record->credit_bytes, (int64_t)usable, SG_CREDIT_MAX))) {
        free_slowly(ptr, credit_record, usable);
        return;
    }
    sg_owner_count(&credit_record->frees);
    sg_glibc_free(ptr);
}

/* A refused realloc must keep the block. Therefore the credit is compared first, with the whole size of the new block.
 * */
SG_EXPORT void *realloc(void *ptr, size_t size)
{
    struct sg_record *credit_record = sg_self.credit;
    if (ptr == NULL)
        return allocate(size, SG_HOOK_realloc);
    if (!is_header_readable(ptr) || !is_usual(sg_glibc_header(ptr)) || size == 0 ||
        !sg_is_below(size, &sg_wipe.fast[SG_FAST_GLIBC].request_bytes) ||
        sg_load_relaxed(&credit_record->credit_bytes) < (int64_t)size)
        return sg_heap_resize(ptr, size, SG_HOOK_realloc, __builtin_return_address(0));
    uint64_t old = sg_glibc_usable(sg_glibc_header(ptr));
    void *moved = sg_glibc_realloc(ptr, size);
    if (moved == NULL)
        return NULL;
    uint64_t header = sg_glibc_header(moved);
    uint64_t usable = SG_LIKELY(is_usual(header)) ? sg_glibc_usable(header) : malloc_usable_size(moved);
    int64_t change = (int64_t)(usable - old), credit = sg_owner_add(&credit_record->credit_bytes, -change);
    if (SG_UNLIKELY((uint64_t)credit > SG_CREDIT_MAX)) {
        (void)sg_owner_add(&credit_record->credit_bytes, change);
        sg_heap_settle(change);
    }
    return moved;
}
