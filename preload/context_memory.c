/*
 * context_memory.c - see context_memory.h.
 */
#include "context_memory.h"

#include "vmm.h"

struct known_context {
    CUcontext handle; /* (atomic) NULL: free */
    uint32_t attached;
};

/* Slot 0 is not used. Written under sg_vmm_lock. */
static struct known_context contexts[SG_CONTEXT_UNKNOWN];
static uint32_t context_count; /* (atomic) */
static uint32_t has_unknown;   /* (atomic) more contexts at once than slots: what is allocated in those stays counted */

/* What lies in a context. */
static struct sg_table *const tables[SG_CONTEXT_TABLES] = {&sg_index_cuda, &sg_index_arrays, &sg_index_registered};

static uint32_t slot_of(CUcontext context)
{
    for (uint32_t slot = 1; slot < SG_CONTEXT_UNKNOWN; slot++)
        if (sg_load_acquire(&contexts[slot].handle) == context)
            return slot;
    return sg_load_acquire(&has_unknown) != 0 ? SG_CONTEXT_UNKNOWN : SG_CONTEXT_PRIMARY;
}

uint32_t sg_context_current(void)
{
    CUcontext current = NULL;
    if (sg_load_acquire(&context_count) == 0)
        return SG_CONTEXT_PRIMARY;
    SG_DRIVER(get, cuCtxGetCurrent);
    if (get == NULL || get(&current) != CUDA_SUCCESS || current == NULL)
        return SG_CONTEXT_PRIMARY;
    return slot_of(current);
}

void sg_context_enter(CUcontext context)
{
    struct sg_lock_state lock;
    uint32_t slot = 1;
    if (!sg_lifecycle_enter() || context == NULL)
        return;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    while (slot < SG_CONTEXT_UNKNOWN && contexts[slot].handle != NULL)
        slot++;
    if (slot < SG_CONTEXT_UNKNOWN) {
        contexts[slot].attached = 1;
        sg_store_release(&contexts[slot].handle, context);
    } else {
        sg_store_release(&has_unknown, 1u);
        sg_ledger_count_fault();
    }
    sg_fetch_add(&context_count, 1u);
    sg_lock_release(&sg_vmm_lock, &lock);
}

static void change_attached(CUcontext context, int by)
{
    struct sg_lock_state lock;
    uint32_t slot = slot_of(context);
    if (slot == SG_CONTEXT_PRIMARY || slot == SG_CONTEXT_UNKNOWN)
        return;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    contexts[slot].attached += (uint32_t)by;
    sg_lock_release(&sg_vmm_lock, &lock);
}

void sg_context_attached(CUcontext context)
{
    change_attached(context, 1);
}

void sg_context_detached(CUcontext context)
{
    change_attached(context, -1);
}

bool sg_context_is_last(CUcontext context)
{
    uint32_t slot = slot_of(context);
    return slot != SG_CONTEXT_PRIMARY && slot != SG_CONTEXT_UNKNOWN && contexts[slot].attached == 1;
}

/* ---- the end of a context ----------------------------------------------------------------------------------------- */

struct sg_context_end sg_context_end_of(CUcontext context)
{
    uint32_t slot = context != NULL && sg_lifecycle_enter() ? slot_of(context) : SG_CONTEXT_UNKNOWN;
    return (struct sg_context_end){.context = context, .slot = slot == SG_CONTEXT_PRIMARY ? SG_CONTEXT_UNKNOWN : slot};
}

/* The last number stands for all devices from there on: what is on those stays counted. */
struct sg_context_end sg_context_end_of_primary(CUdevice device)
{
    bool is_known = sg_lifecycle_enter() && device >= 0 && device < SG_DEVICE_ROOM - 1;
    return (struct sg_context_end){.slot = is_known ? SG_CONTEXT_PRIMARY : SG_CONTEXT_UNKNOWN,
                                   .device = (uint32_t)device};
}

struct walk {
    const struct sg_context_end *end;
    struct sg_table *table, *taken;
    CUresult result;
};

static bool is_in(const struct sg_context_end *end, uint64_t block)
{
    return (block & SG_BLOCK_POOLED) == 0 && (uint32_t)(block >> SG_BLOCK_SLOT_SHIFT & 31) == end->slot &&
           (end->slot != SG_CONTEXT_PRIMARY || sg_block_device(block) == end->device);
}

static void take_out(void *context, uint64_t key, uint64_t value)
{
    const struct walk *walk = context;
    uint64_t block = is_in(walk->end, value) ? sg_cuda_take_out(walk->table, key) : 0;
    if (block != 0 && sg_table_insert(walk->taken, key, block, NULL) != 0)
        (void)sg_cuda_released(walk->table, key, block, CUDA_SUCCESS); /* no memory to remember it by */
}

static void settle(void *context, uint64_t key, uint64_t value)
{
    const struct walk *walk = context;
    (void)sg_cuda_released(walk->table, key, value, walk->result);
}

static void empty_pool(void *context, uint64_t key, uint64_t value)
{
    (void)context;
    bool is_gone = (value & SG_BLOCK_POOLED) != 0 && sg_pool_is_emptied(value);
    uint64_t block = is_gone ? sg_cuda_take_out(&sg_index_cuda, key) : 0;
    (void)sg_cuda_released(&sg_index_cuda, key, block, CUDA_SUCCESS);
}

/* In the slot of a context that is ending: the driver may give its handle to a new one before the call returns. */
#define ENDING ((CUcontext)(uintptr_t)1)

static void change_handle(uint32_t slot, CUcontext handle)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    sg_store_release(&contexts[slot].handle, handle);
    if (handle == NULL)
        sg_fetch_sub(&context_count, 1u);
    sg_lock_release(&sg_vmm_lock, &lock);
}

void sg_context_take_out(struct sg_context_end *end)
{
    if (end->context != NULL && end->slot != SG_CONTEXT_UNKNOWN)
        change_handle(end->slot, ENDING);
    for (unsigned i = 0; end->slot != SG_CONTEXT_UNKNOWN && i < SG_CONTEXT_TABLES; i++) {
        struct walk walk = {.end = end, .table = tables[i], .taken = &end->taken[i]};
        sg_table_visit(tables[i], take_out, &walk);
    }
}

void sg_context_taken_out(struct sg_context_end *end, CUresult result)
{
    if (end->slot == SG_CONTEXT_UNKNOWN)
        return;
    for (unsigned i = 0; i < SG_CONTEXT_TABLES; i++) {
        struct walk walk = {.table = tables[i], .result = result};
        sg_table_visit(&end->taken[i], settle, &walk);
        sg_table_destroy(&end->taken[i]);
    }
    if (end->context != NULL)
        change_handle(end->slot, result == CUDA_SUCCESS ? NULL : end->context);
    if (end->context != NULL || result != CUDA_SUCCESS)
        return;
    if (sg_pool_emptied(end->device) != 0)
        sg_table_visit(&sg_index_cuda, empty_pool, NULL);
    sg_pool_memory_refresh();
    sg_graph_memory_refresh();
}
