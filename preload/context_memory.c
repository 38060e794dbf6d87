/*
 * context_memory.c - see context_memory.h.
 */
#include "context_memory.h"

#include "compiler.h"
#include "returns.h"
#include "vmm.h"

struct known_context {
    CUcontext handle;   /* (atomic) NULL: free */
    uint32_t is_ending; /* (atomic) the driver may give its handle to a new one before the call returns */
    uint32_t attached;
};

/* By number, from 1 on; those from SG_CONTEXT_SHARED on share that slot. A context of a real device takes 100 MiB and more. Written
 * under sg_vmm_lock. */
enum { CONTEXT_ROOM = 256 };
static struct known_context contexts[CONTEXT_ROOM];
static uint32_t context_top = 1; /* (atomic) above all numbers ever used */
static uint32_t context_count;   /* (atomic) */

static struct sg_context_end *endings; /* those under way; under sg_vmm_lock */
static uint32_t ending_count;          /* (atomic) of them */

uint64_t sg_context_ends;                             /* (atomic) how many have ended */
static uint64_t slot_ended_at[SG_CONTEXT_SHARED + 1]; /* what it was then; under sg_vmm_lock */
static uint64_t primary_ended_at[SG_DEVICE_ROOM];     /* the same, by device */

/* What lies in a context. */
static struct sg_table *const tables[SG_CONTEXT_TABLES] = {&sg_index_cuda, &sg_index_arrays, &sg_index_registered};

static uint32_t find(CUcontext context, uint32_t is_ending)
{
    uint32_t top = sg_load_acquire(&context_top);
    for (uint32_t number = 1; number < top; number++)
        if (sg_load_acquire(&contexts[number].handle) == context &&
            sg_load_acquire(&contexts[number].is_ending) == is_ending)
            return number;
    return 0;
}

static uint32_t number_of(CUcontext context)
{
    return find(context, 0);
}

static uint32_t slot_of(uint32_t number)
{
    return number < SG_CONTEXT_SHARED ? number : SG_CONTEXT_SHARED;
}

uint32_t sg_context_current(void)
{
    CUcontext current = NULL;
    if (sg_load_acquire(&context_count) == 0)
        return SG_CONTEXT_PRIMARY;
    SG_DRIVER(get, cuCtxGetCurrent);
    if (get == NULL || get(&current) != CUDA_SUCCESS || current == NULL)
        return SG_CONTEXT_PRIMARY;
    uint32_t number = number_of(current);
    return slot_of(number != 0 ? number : find(current, 1));
}

void sg_context_enter(CUcontext context)
{
    struct sg_lock_state lock;
    uint32_t number = 1;
    if (context == NULL)
        return;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    while (number < CONTEXT_ROOM && contexts[number].handle != NULL)
        number++;
    if (number < CONTEXT_ROOM) {
        contexts[number].attached = 1;
        sg_store_release(&contexts[number].handle, context);
        sg_fetch_add(&context_count, 1u);
        if (number >= context_top)
            sg_store_release(&context_top, number + 1);
    } else {
        sg_ledger_count_fault();
    }
    sg_lock_release(&sg_vmm_lock, &lock);
}

static void change_attached(CUcontext context, int by)
{
    struct sg_lock_state lock;
    uint32_t number = number_of(context);
    if (number == 0)
        return;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    contexts[number].attached += (uint32_t)by;
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
    uint32_t number = number_of(context);
    return number != 0 && contexts[number].attached == 1;
}

/* ---- the end of a context ----------------------------------------------------------------------------------------- */

struct sg_context_end sg_context_end_of(CUcontext context)
{
    uint32_t number = context != NULL ? number_of(context) : 0;
    return (struct sg_context_end){.number = number, .is_known = number != 0};
}

/* The last number stands for all devices from there on: what is on those stays counted. */
struct sg_context_end sg_context_end_of_primary(CUdevice device)
{
    return (struct sg_context_end){.device = (uint32_t)device, .is_known = device >= 0 && device < SG_DEVICE_ROOM - 1};
}

static bool is_in(const struct sg_context_end *end, uint64_t block)
{
    return (block & SG_BLOCK_POOLED) == 0 &&
           (uint32_t)(block >> SG_BLOCK_SLOT_SHIFT & SG_CONTEXT_SHARED) == slot_of(end->number) &&
           (end->number != 0 || sg_block_device(block) == end->device);
}

/* Under the lock: whether nothing that has its slot lives on. */
static bool is_alone(const struct sg_context_end *end)
{
    uint32_t number = SG_CONTEXT_SHARED;
    if (end->number < SG_CONTEXT_SHARED)
        return true;
    while (number < context_top && (number == end->number || contexts[number].handle == NULL))
        number++;
    return number == context_top;
}

struct walk {
    const struct sg_context_end *end;
    struct sg_table *table, *taken;
    uint64_t bytes;
    CUresult result;
};

static void take_out(void *context, uint64_t key, uint64_t value)
{
    struct walk *walk = context;
    uint64_t block = is_in(walk->end, value) ? sg_table_remove(walk->table, key) : 0;
    if (block == 0)
        return;
    if (walk->table != &sg_index_registered)
        walk->bytes += sg_cuda_returned_bytes(block);
    if (sg_table_insert(walk->taken, key, block, NULL) != 0)
        sg_cuda_released(walk->table, block); /* no memory to remember it by */
}

/* Under the lock, so that a free finds each entry in one place or the other. How much it will give back. */
static uint64_t take_all_out(struct sg_context_end *end)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < SG_CONTEXT_TABLES; i++) {
        struct walk walk = {.end = end, .table = tables[i], .taken = &end->taken[i]};
        sg_table_visit(tables[i], take_out, &walk);
        bytes += walk.bytes;
    }
    return bytes;
}

static void enter_again(void *context, uint64_t key, uint64_t value)
{
    const struct walk *walk = context;
    if (sg_table_insert(walk->table, key, value, NULL) != 0)
        sg_ledger_count_fault();
}

static void release(void *context, uint64_t key, uint64_t value)
{
    const struct walk *walk = context;
    (void)key;
    sg_cuda_released(walk->table, value);
}

static void empty_pool(void *context, uint64_t key, uint64_t value)
{
    (void)context;
    bool is_gone = (value & SG_BLOCK_POOLED) != 0 && sg_pool_is_emptied(value);
    uint64_t block = is_gone ? sg_cuda_take_out(&sg_index_cuda, key) : 0;
    if (block != 0)
        sg_cuda_released(&sg_index_cuda, block);
}

static void visit_taken(struct sg_context_end *end, void (*visit)(void *, uint64_t, uint64_t))
{
    for (unsigned i = 0; i < SG_CONTEXT_TABLES; i++) {
        struct walk walk = {.table = tables[i]};
        sg_table_visit(&end->taken[i], visit, &walk);
    }
}

void sg_context_take_out(struct sg_context_end *end)
{
    struct sg_lock_state lock;
    if (!end->is_known)
        return;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    if (end->number != 0)
        sg_store_release(&contexts[end->number].is_ending, 1u);
    end->next = endings;
    endings = end;
    sg_fetch_add(&ending_count, 1u);
    uint64_t bytes = is_alone(end) ? take_all_out(end) : 0;
    sg_lock_release(&sg_vmm_lock, &lock);
    sg_returns_note_free(bytes);
}

/* Under the lock: the driver has ended it. */
static void note_ended(struct sg_context_end *end)
{
    uint64_t *ended_at = end->number != 0 ? &slot_ended_at[slot_of(end->number)] : &primary_ended_at[end->device];
    if (end->number != 0) {
        sg_store_release(&contexts[end->number].handle, NULL);
        sg_store_release(&contexts[end->number].is_ending, 0u);
        sg_fetch_sub(&context_count, 1u);
    }
    if (!is_alone(end))
        return;
    if (slot_of(end->number) == SG_CONTEXT_SHARED)
        (void)take_all_out(end); /* others have gone before it */
    *ended_at = sg_context_ends + 1;
    sg_store_release(&sg_context_ends, *ended_at); /* pairs with the load in SG_GIVE_BACK */
}

static void unlink_end(const struct sg_context_end *end)
{
    struct sg_context_end **link = &endings;
    while (*link != end)
        link = &(*link)->next;
    *link = end->next;
    sg_fetch_sub(&ending_count, 1u);
}

void sg_context_taken_out(struct sg_context_end *end, CUresult result)
{
    struct sg_lock_state lock;
    if (!end->is_known)
        return;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    unlink_end(end);
    if (result == CUDA_SUCCESS)
        note_ended(end);
    else
        visit_taken(end, enter_again);
    if (result != CUDA_SUCCESS && end->number != 0)
        sg_store_release(&contexts[end->number].is_ending, 0u);
    sg_lock_release(&sg_vmm_lock, &lock);
    if (result == CUDA_SUCCESS)
        visit_taken(end, release);
    for (unsigned i = 0; i < SG_CONTEXT_TABLES; i++)
        sg_table_destroy(&end->taken[i]);
    if (end->number != 0 || result != CUDA_SUCCESS)
        return;
    if (sg_pool_emptied(end->device) != 0)
        sg_table_visit(&sg_index_cuda, empty_pool, NULL);
    sg_pool_memory_refresh();
    sg_graph_memory_refresh();
}

/* ---- frees beside it ------------------------------------------------------------------------------------------------ */

static struct sg_table *taken_of(struct sg_context_end *end, const struct sg_table *table)
{
    unsigned i = 0;
    while (i < SG_CONTEXT_TABLES - 1 && tables[i] != table)
        i++;
    return &end->taken[i];
}

uint64_t sg_context_take_ending(struct sg_table *table, uint64_t key)
{
    struct sg_lock_state lock;
    if (SG_LIKELY(sg_load_acquire(&ending_count) == 0))
        return 0;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    uint64_t block = sg_table_remove(table, key); /* it may have failed to end since */
    for (struct sg_context_end *end = endings; block == 0 && end != NULL; end = end->next)
        block = sg_table_remove(taken_of(end, table), key);
    sg_lock_release(&sg_vmm_lock, &lock);
    return block;
}

/* Under the lock. */
static bool has_ended(uint64_t block, uint64_t ends_before)
{
    uint32_t slot = (uint32_t)(block >> SG_BLOCK_SLOT_SHIFT & SG_CONTEXT_SHARED);
    if ((block & SG_BLOCK_POOLED) != 0)
        return false;
    return (slot != SG_CONTEXT_PRIMARY ? slot_ended_at[slot] : primary_ended_at[sg_block_device(block)]) > ends_before;
}

bool sg_context_put_back(struct sg_table *table, uint64_t key, uint64_t block, uint64_t ends_before)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    bool is_there = !has_ended(block, ends_before);
    struct sg_context_end *end = endings;
    while (end != NULL && !is_in(end, block))
        end = end->next;
    if (end != NULL && is_alone(end))
        table = taken_of(end, table);
    if (is_there && sg_table_insert(table, key, block, NULL) != 0)
        sg_ledger_count_fault();
    sg_lock_release(&sg_vmm_lock, &lock);
    return is_there;
}
