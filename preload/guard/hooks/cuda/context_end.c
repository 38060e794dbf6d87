/*
 * context_end.c - see context_end.h.
 */
#include "hooks/cuda/context_end.h"

#include "account/ledger.h"
#include "account/tracker.h"
#include "admit/deferred_frees.h"
#include "base/atomics.h"
#include "base/compiler.h"
#include "hooks/cuda/blocks.h"
#include "hooks/cuda/graph.h"
#include "hooks/cuda/lock.h"
#include "hooks/pool/mempool.h"

static uint32_t primaries_ending[SG_DEVICE_CAPACITY]; /* resets under way; under sg_cuda_lock */

uint64_t sg_context_ends;
static uint64_t
    slot_ended_at[SG_CONTEXT_SHARED + 1]; /* sg_context_ends after the slot's last end; under sg_cuda_lock */
static uint64_t primary_ended_at[SG_DEVICE_CAPACITY]; /* the same for primary contexts, by device */

/* The primary context of each device; under sg_cuda_lock. */
static struct {
    unsigned long long id; /* cuCtxGetId of the last one retained; 0: unknown */
    uint64_t retained;     /* (atomic) number of retains */
    bool exists;           /* one was retained, and is not known to have ended */
} primaries[SG_DEVICE_CAPACITY];

/* The tables of memory that ends with its context. */
static struct sg_block_table *const tables[SG_CONTEXT_TABLES] = {&sg_tracker_cuda, &sg_tracker_arrays,
                                                                 &sg_tracker_registered};

/* ---- the end of a context ---------------------------------------------------------------------------------------- */

struct sg_context_end sg_context_end_of(CUcontext context)
{
    uint32_t number = sg_context_number(context);
    return (struct sg_context_end){.number = number, .is_known = number != 0};
}

/* The last index stands for all higher devices. If there are several of those, their blocks cannot be told apart and
 * stay counted. */
static bool is_one_device(CUdevice device)
{
    SG_DRIVER(get_count, cuDeviceGetCount);
    int count = 0;
    if (device != SG_DEVICE_CAPACITY - 1)
        return device >= 0 && device < SG_DEVICE_CAPACITY;
    return get_count != NULL && get_count(&count) == CUDA_SUCCESS && count == SG_DEVICE_CAPACITY;
}

struct sg_context_end sg_context_end_of_primary(CUdevice device)
{
    return (struct sg_context_end){.device = (uint32_t)device, .is_known = is_one_device(device)};
}

/* True if the block lies in the context that ends. */
static bool is_in(const struct sg_context_end *end, uint64_t block)
{
    return (block & SG_BLOCK_POOLED) == 0 &&
           (uint32_t)(block >> SG_BLOCK_SLOT_SHIFT & SG_CONTEXT_SHARED) == sg_context_slot(end->number) &&
           (end->number != 0 || sg_block_device(block) == end->device);
}

/* Arguments of one visit of a table. */
struct walk {
    const struct sg_context_end *end;
    struct sg_block_table *table, *taken;
    uint64_t bytes;
};

/* Removes the entry if it still has the value seen, or that value with SG_BLOCK_SETTLED, which a scan may have set. */
static bool remove_seen(struct sg_block_table *table, uint64_t key, uint64_t value)
{
    return sg_block_table_remove_exact(table, key, value) ||
           sg_block_table_remove_exact(table, key, value | SG_BLOCK_SETTLED);
}

/* Visitor: adds up what the end returns. */
static void add_returned(void *context, uint64_t key, uint64_t value)
{
    struct walk *walk = context;
    (void)key;
    if (is_in(walk->end, value))
        walk->bytes += sg_cuda_returned_bytes(value);
}

/* Visitor: moves a block of the ended context from its table to `taken`. */
static void take_out(void *context, uint64_t key, uint64_t value)
{
    struct walk *walk = context;
    if (is_in(walk->end, value) && remove_seen(walk->table, key, value) &&
        sg_block_table_insert(walk->taken, key, value, NULL) != 0)
        sg_cuda_released(walk->table, value); /* no memory for the entry: release the block now */
}

/* Visitor: releases a block of the ended context. */
static void release(void *context, uint64_t key, uint64_t value)
{
    const struct walk *walk = context;
    (void)key;
    sg_cuda_released(walk->table, value);
}

/* Visitor: releases a block whose pool was emptied with the primary context. */
static void empty_pool(void *context, uint64_t key, uint64_t value)
{
    (void)context;
    if ((value & SG_BLOCK_POOLED) != 0 && sg_mempool_is_emptied(value) && remove_seen(&sg_tracker_cuda, key, value))
        sg_cuda_released(&sg_tracker_cuda, value);
}

void sg_context_begin_end(struct sg_context_end *end)
{
    struct sg_lock_state lock;
    struct walk walk = {.end = end};
    if (!end->is_known)
        return;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    if (end->number != 0)
        sg_context_set_ending(end->number, true);
    else
        primaries_ending[end->device]++;
    for (unsigned i = 0; i < 2 && sg_context_is_alone(end->number); i++) /* registered memory stays the program's */
        sg_block_table_visit(tables[i], add_returned, &walk);
    sg_lock_release(&sg_cuda_lock, &lock);
    sg_deferred_frees_note_free(walk.bytes);
}

/* The driver has ended the context; under the lock. A call that enters its block after this finds that the context has
 * ended (sg_context_recheck). */
static void note_ended(struct sg_context_end *end)
{
    uint64_t *ended_at =
        end->number != 0 ? &slot_ended_at[sg_context_slot(end->number)] : &primary_ended_at[end->device];
    if (sg_context_is_alone(end->number)) {
        *ended_at = sg_context_ends + 1;
        sg_store_release(&sg_context_ends, *ended_at); /* pairs with the loads in SG_GIVE_BACK and sg_context_recheck */
        sg_fence();
        for (unsigned i = 0; i < SG_CONTEXT_TABLES; i++) {
            struct walk walk = {.end = end, .table = tables[i], .taken = &end->taken[i]};
            sg_block_table_visit(tables[i], take_out, &walk);
        }
    }
    if (end->number != 0)
        sg_context_forget(end->number);
}

/* Releases all entries that note_ended has taken out; without the lock. */
static void release_taken(struct sg_context_end *end)
{
    for (unsigned i = 0; i < SG_CONTEXT_TABLES; i++) {
        struct walk walk = {.table = tables[i]};
        sg_block_table_visit(&end->taken[i], release, &walk);
        sg_block_table_destroy(&end->taken[i]);
    }
}

void sg_context_finish_end(struct sg_context_end *end, CUresult result)
{
    struct sg_lock_state lock;
    if (!end->is_known)
        return;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    if (end->number == 0)
        primaries_ending[end->device]--;
    else if (result == CUDA_SUCCESS)
        note_ended(end);
    else
        sg_context_set_ending(end->number, false);
    sg_lock_release(&sg_cuda_lock, &lock);
    release_taken(end);
    if (end->number == 0 && result == CUDA_SUCCESS)
        sg_context_check_primary((CUdevice)end->device);
}

/* ---- the primary context ----------------------------------------------------------------------------------------- */

enum sg_primary_state sg_context_primary_state(CUdevice device)
{
    SG_DRIVER(get_state, cuDevicePrimaryCtxGetState);
    unsigned int flags = 0;
    int active = 0;
    uint32_t layers = sg_cuda_go_inside();
    bool is_answered = get_state != NULL && get_state(device, &flags, &active) == CUDA_SUCCESS;
    sg_self.layers = layers;
    return !is_answered ? SG_PRIMARY_UNKNOWN : active != 0 ? SG_PRIMARY_ACTIVE : SG_PRIMARY_INACTIVE;
}

/* Releases blocks of pools that ended with the primary context, and refreshes the charges of all pools. */
static void empty_pools(uint32_t device, bool has_ended)
{
    if (sg_mempool_emptied(device, has_ended) != 0)
        sg_block_table_visit(&sg_tracker_cuda, empty_pool, NULL);
    sg_mempool_memory_refresh();
    sg_graph_memory_refresh();
}

/* The lock is not held during the query. If a retain came meanwhile, the answer may be about the previous primary
 * context, and the driver is queried again. Entries are searched even if no primary context is known to exist: one may
 * have come and gone before its retain has returned. */
void sg_context_check_primary(CUdevice device)
{
    struct sg_lock_state lock;
    struct sg_context_end end = sg_context_end_of_primary(device);
    bool existed = false, is_overtaken = end.is_known;
    while (is_overtaken) {
        uint64_t seen = sg_load_acquire(&primaries[device].retained);
        if (sg_context_primary_state(device) != SG_PRIMARY_INACTIVE)
            return;
        sg_lock_acquire(&sg_cuda_lock, &lock);
        is_overtaken = seen != primaries[device].retained;
        if (!is_overtaken) {
            existed = primaries[device].exists;
            primaries[device].exists = false;
            note_ended(&end);
        }
        sg_lock_release(&sg_cuda_lock, &lock);
    }
    release_taken(&end);
    if (!is_overtaken && end.is_known)
        empty_pools(end.device, existed);
}

/* The check before the retain may have found the previous primary context still active, and another thread may have
 * ended that context meanwhile. A new context is recognised by its id, which drivers give since CUDA 12.0. */
void sg_context_primary_retained(CUdevice device, CUcontext context)
{
    struct sg_lock_state lock;
    struct sg_context_end end = sg_context_end_of_primary(device);
    unsigned long long id = 0;
    SG_DRIVER(get_id, cuCtxGetId);
    if (!end.is_known)
        return;
    if (context == NULL || get_id == NULL || get_id(context, &id) != CUDA_SUCCESS)
        id = 0;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    bool is_another = primaries[device].exists && id != 0 && primaries[device].id != 0 && id != primaries[device].id;
    if (is_another)
        note_ended(&end);
    primaries[device].id = id;
    primaries[device].exists = true;
    sg_store_release(&primaries[device].retained, primaries[device].retained + 1);
    sg_lock_release(&sg_cuda_lock, &lock);
    release_taken(&end);
    if (is_another)
        empty_pools(end.device, true);
}

/* ---- concurrent frees -------------------------------------------------------------------------------------------- */

/* Under the lock. A block of a pool carries no slot; it may have disappeared with its device's primary context. */
static bool has_ended(uint64_t block, uint64_t ends_before)
{
    uint32_t slot = (uint32_t)(block >> SG_BLOCK_SLOT_SHIFT & SG_CONTEXT_SHARED);
    if ((block & SG_BLOCK_POOLED) != 0 || slot == SG_CONTEXT_PRIMARY)
        return primary_ended_at[sg_block_device(block)] > ends_before;
    return slot_ended_at[slot] > ends_before;
}

bool sg_context_put_back(struct sg_block_table *table, uint64_t key, uint64_t block, uint64_t ends_before)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    bool is_pooled = (block & SG_BLOCK_POOLED) != 0, exists = is_pooled || !has_ended(block, ends_before);
    if (exists && sg_block_table_insert(table, key, block, NULL) != 0)
        sg_ledger_count_fault();
    sg_lock_release(&sg_cuda_lock, &lock);
    if (is_pooled)
        sg_context_recheck(table, key, block, ends_before);
    return exists;
}

bool sg_context_may_be_over(uint64_t block)
{
    struct sg_lock_state lock;
    uint32_t slot = (uint32_t)(block >> SG_BLOCK_SLOT_SHIFT & SG_CONTEXT_SHARED);
    sg_lock_acquire(&sg_cuda_lock, &lock);
    bool is_ending = slot == SG_CONTEXT_PRIMARY ? primaries_ending[sg_block_device(block)] != 0
                                                : slot == SG_CONTEXT_SHARED || sg_context_is_ending(slot);
    bool may_be = is_ending || has_ended(block, 0);
    sg_lock_release(&sg_cuda_lock, &lock);
    return may_be;
}

/* ---- concurrent allocations -------------------------------------------------------------------------------------- */

/* The context that was current when the allocation began has ended: whether the block has ended, too. The driver may
 * have allocated the block in a newer primary context. Arrays count as gone. */
static bool went_with_it(const struct sg_block_table *table, uint64_t key)
{
    return table == &sg_tracker_arrays || sg_context_has_taken(key);
}

bool sg_context_is_over(uint64_t block, uint64_t ends_before)
{
    struct sg_lock_state lock;
    if (SG_LIKELY(sg_load_acquire(&sg_context_ends) == ends_before))
        return false;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    bool is_over = has_ended(block, ends_before);
    sg_lock_release(&sg_cuda_lock, &lock);
    return is_over;
}

void sg_context_recheck(struct sg_block_table *table, uint64_t key, uint64_t block, uint64_t ends_before)
{
    sg_fence(); /* pairs with the fence in note_ended: either note_ended finds the entry, or this call finds the end */
    uint64_t ends = sg_load_acquire(&sg_context_ends);
    while (SG_UNLIKELY(ends != ends_before)) {
        if (sg_context_is_over(block, ends_before) && went_with_it(table, key)) {
            if (remove_seen(table, key, block)) /* otherwise note_ended has taken it out */
                sg_cuda_released(table, block);
            return;
        }
        ends_before = ends;
        ends = sg_load_acquire(&sg_context_ends);
    }
}
