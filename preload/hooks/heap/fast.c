/*
 * fast.c - malloc, calloc, realloc and free where nothing is unusual: the next allocator is glibc's and known
 * (glibc.h), the block small, the thread has a record and credit enough.
 *
 * Every instruction counts here, so one comparison asks for as much as it can, and what it finds unusual goes further:
 * behind another allocator, which is asked for the size, or to heap.c:
 * - The limits lie in the page that reads 0 in a forked child, and are 0 until the next allocator is known. So "is it
 *   small" and "is it above address 0" also ask whether this process may at all.
 * - A thread without a record, and one whose calls do not count, pays from a credit that is always short and always
 * beyond.
 * - A small block is taken before it is paid: where the credit does not reach, it goes back if it is refused. Nobody
 *   has written on it by then.
 * - glibc's heap does not call malloc, so no layer is noted around the call; and free leaves by a jump.
 */
#include "base/atomics.h"
#include "base/bootstrap_alloc.h"
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

/* Takes back what has been done to the credit. */
static void undo(struct sg_record *purse, int64_t change)
{
    if (purse == &sg_thread_no_purse)
        sg_store_relaxed(&purse->credit_bytes, (int64_t)SG_NO_CREDIT);
    else
        (void)sg_owner_add(&purse->credit_bytes, -change);
}

static SG_COLD void *pay_late(void *ptr, struct sg_record *purse, uint64_t usable, enum sg_hook hook)
{
    undo(purse, -(int64_t)usable);
    return sg_heap_admit(ptr, hook);
}

static SG_COLD void give_back_late(void *ptr, struct sg_record *purse, uint64_t usable)
{
    undo(purse, (int64_t)usable);
    sg_heap_give_back(ptr);
}

static inline void *pay(void *ptr, uint64_t usable, enum sg_hook hook)
{
    struct sg_record *purse = sg_self.purse;
    if (SG_UNLIKELY(sg_owner_take_is_short(&purse->credit_bytes, (int64_t)usable)))
        return pay_late(ptr, purse, usable, hook);
    sg_owner_count(&purse->allocations);
    return ptr;
}

static inline void *pay_glibcs(void *ptr, enum sg_hook hook)
{
    if (SG_UNLIKELY(ptr == NULL))
        return NULL;
    uint64_t header = sg_glibc_header(ptr);
    if (SG_UNLIKELY((header & SG_GLIBC_MAPPED) != 0))
        return sg_heap_admit(ptr, hook);
    return pay(ptr, sg_glibc_usable(header), hook);
}

/* ---- medium blocks, and the first ones --------------------------------------------------------------------------- */

static inline bool is_open(size_t size)
{
    const struct sg_record *record = sg_self.record;
    return SG_LIKELY(record != NULL && sg_load_relaxed(&sg_wipe.is_armed) != 0 && size < sg_options.large_bytes &&
                     sg_load_relaxed(&sg_heap_is_checking) == 0 &&
                     (int64_t)size <= sg_load_relaxed(&record->credit_bytes) && sg_self.layers == 0);
}

static SG_APART void *take_medium(size_t size, enum sg_hook hook, const void *caller)
{
    struct sg_record *record = sg_self.record;
    if (!is_open(size))
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
        return pay_late(ptr, record, usable, hook);
    sg_owner_count(&record->allocations);
    return ptr;
}

static SG_APART void give_back_medium(void *ptr)
{
    struct sg_record *record = sg_self.record;
    if (ptr == NULL || sg_bootstrap_owns(ptr) || !is_open(0)) {
        sg_heap_give_back(ptr);
        return;
    }
    size_t usable = sg_heap_usable_size(ptr);
    if (SG_UNLIKELY(usable >= SG_TRACKED_BYTES)) {
        sg_heap_give_back(ptr);
        return;
    }
    if (SG_UNLIKELY(sg_owner_add_is_beyond(&record->credit_bytes, (int64_t)usable, SG_CREDIT_MAX))) {
        give_back_late(ptr, record, usable);
        return;
    }
    sg_owner_count(&record->frees);
    sg_self.layers = sg_load_relaxed(&sg_heap_inside);
    SG_REAL(free)(ptr);
    sg_self.layers = 0;
}

/* ---- behind another allocator
 * --------------------------------------------------------------------------------------------
 *
 * It is asked for the size of each block. Its functions are known since this way is open.
 */

#define KNOWN(name) ((__typeof__(&name))sg_real_address[SG_HOOK_##name])

static SG_INLINE void *take_behind(size_t size, enum sg_hook hook, const void *caller)
{
    if (SG_UNLIKELY(size >= sg_load_acquire(&sg_wipe.fast[SG_FAST_OTHER].request_bytes) || sg_self.layers != 0))
        return take_medium(size, hook, caller);
    sg_self.layers = SG_LAYER_HEAP;
    void *ptr = hook == SG_HOOK_calloc ? KNOWN(calloc)(1, size) : KNOWN(malloc)(size);
    if (SG_UNLIKELY(ptr == NULL)) {
        sg_self.layers = 0;
        return NULL;
    }
    size_t usable = KNOWN(malloc_usable_size)(ptr); /* which may allocate, too */
    sg_self.layers = 0;
    return SG_UNLIKELY(usable >= SG_TRACKED_BYTES) ? sg_heap_admit(ptr, hook) : pay(ptr, usable, hook);
}

static SG_APART void *malloc_behind(size_t size, const void *caller)
{
    return take_behind(size, SG_HOOK_malloc, caller);
}

static SG_APART void *calloc_behind(size_t size, const void *caller)
{
    return take_behind(size, SG_HOOK_calloc, caller);
}

static SG_APART void *realloc_behind(size_t size, const void *caller)
{
    return take_behind(size, SG_HOOK_realloc, caller);
}

static SG_APART void give_back_behind(void *ptr)
{
    if (SG_UNLIKELY((uintptr_t)ptr - 1 >= sg_load_acquire(&sg_wipe.fast[SG_FAST_OTHER].address) ||
                    sg_bootstrap_owns(ptr) || sg_self.layers != 0)) {
        give_back_medium(ptr);
        return;
    }
    sg_self.layers = SG_LAYER_HEAP;
    size_t usable = KNOWN(malloc_usable_size)(ptr);
    if (SG_UNLIKELY(usable >= SG_TRACKED_BYTES)) {
        sg_self.layers = 0;
        sg_heap_give_back(ptr);
        return;
    }
    struct sg_record *purse = sg_self.purse;
    if (SG_UNLIKELY(sg_owner_add_is_beyond(&purse->credit_bytes, (int64_t)usable, SG_CREDIT_MAX))) {
        sg_self.layers = 0;
        give_back_late(ptr, purse, usable);
        return;
    }
    sg_owner_count(&purse->frees);
    KNOWN(free)(ptr);
    sg_self.layers = 0;
}

/* ---- the exports ------------------------------------------------------------------------------------------------- */

static inline void *take(size_t size, enum sg_hook hook)
{
    if (SG_UNLIKELY(!sg_is_below(size, &sg_wipe.fast[SG_FAST_GLIBC].request_bytes)))
        return hook == SG_HOOK_malloc ? malloc_behind(size, __builtin_return_address(0))
                                      : realloc_behind(size, __builtin_return_address(0));
    return pay_glibcs(sg_glibc_malloc(size), hook);
}

SG_EXPORT void *malloc(size_t size)
{
    return take(size, SG_HOOK_malloc);
}

SG_EXPORT void *calloc(size_t count, size_t size)
{
    size_t bytes;
    if (SG_UNLIKELY(__builtin_mul_overflow(count, size, &bytes))) {
        errno = ENOMEM;
        return NULL;
    }
    if (SG_UNLIKELY(!sg_is_below(bytes, &sg_wipe.fast[SG_FAST_GLIBC].request_bytes)))
        return calloc_behind(bytes, __builtin_return_address(0));
    return pay_glibcs(sg_glibc_calloc(1, bytes), SG_HOOK_calloc);
}

/* Neither tracked nor in a mapping of its own, and of the heap we know. */
static inline bool is_usual(uint64_t header)
{
    return (header & ~(uint64_t)(SG_TRACKED_BYTES - 1 - SG_GLIBC_MAPPED)) == 0;
}

/* Whether the header may be looked at. One less: for NULL that is above every address. */
static inline bool is_known(const void *ptr)
{
    return sg_is_below((uintptr_t)ptr - 1, &sg_wipe.fast[SG_FAST_GLIBC].address);
}

SG_EXPORT void free(void *ptr)
{
    if (SG_UNLIKELY(!is_known(ptr))) {
        give_back_behind(ptr);
        return;
    }
    uint64_t header = sg_glibc_header(ptr);
    if (SG_UNLIKELY(!is_usual(header))) {
        give_back_behind(ptr);
        return;
    }
    uint64_t usable = sg_glibc_usable(header);
    struct sg_record *purse = sg_self.purse;
    if (SG_UNLIKELY(sg_owner_add_is_beyond(&purse->credit_bytes, (int64_t)usable, SG_CREDIT_MAX))) {
        give_back_late(ptr, purse, usable);
        return;
    }
    sg_owner_count(&purse->frees);
    sg_glibc_free(ptr);
}

/* A refused realloc keeps the block, so here the credit is asked first: for all of the new block. */
SG_EXPORT void *realloc(void *ptr, size_t size)
{
    struct sg_record *purse = sg_self.purse;
    if (ptr == NULL)
        return take(size, SG_HOOK_realloc);
    if (!is_known(ptr) || !is_usual(sg_glibc_header(ptr)) || size == 0 ||
        !sg_is_below(size, &sg_wipe.fast[SG_FAST_GLIBC].request_bytes) ||
        sg_load_relaxed(&purse->credit_bytes) < (int64_t)size)
        return sg_heap_resize(ptr, size, SG_HOOK_realloc, __builtin_return_address(0));
    uint64_t old = sg_glibc_usable(sg_glibc_header(ptr));
    void *moved = sg_glibc_realloc(ptr, size);
    if (moved == NULL)
        return NULL;
    uint64_t header = sg_glibc_header(moved);
    uint64_t usable = SG_LIKELY(is_usual(header)) ? sg_glibc_usable(header) : malloc_usable_size(moved);
    int64_t change = (int64_t)(usable - old), credit = sg_owner_add(&purse->credit_bytes, -change);
    if (SG_UNLIKELY((uint64_t)credit > SG_CREDIT_MAX)) {
        (void)sg_owner_add(&purse->credit_bytes, change);
        sg_heap_settle(change);
    }
    return moved;
}
