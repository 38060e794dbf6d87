/*
 * vmm.c - see vmm.h.
 */
#include "hooks/cuda/vmm.h"

#include "account/ledger.h"
#include "base/atomics.h"
#include "base/compiler.h"
#include "account/callsites.h"
#include "hooks/cuda/blocks.h"
#include "shared/segment.h"
#include "base/syscall.h"
#include "hooks/cuda/lock.h"

#include <sys/mman.h>

struct sg_vmm_memory {
    uint64_t bytes;
    uint32_t uses; /* handles, mappings and calls under way */
    uint32_t domain;
    uint32_t device;
    uint32_t site; /* number of the call site */
};

struct sg_vmm_handle {
    struct sg_vmm_memory *memory;
    uint64_t number;
    uint32_t references; /* 0: the number no longer names this memory */
    uint32_t releases;   /* cuMemRelease calls under way in the driver */
};

/* One cuMemMap. */
struct sg_vmm_mapping {
    struct sg_vmm_memory *memory;
    uint64_t address;
    uint64_t bytes;
    struct sg_vmm_mapping *next; /* in the list of one cuMemUnmap */
};

/* Handles by number, mappings by address. The values are addresses of the structures above. */
static struct sg_block_table handles, mapped;

/* An allocator of items of one size. Slabs are never unmapped; they hold 32 bytes for each memory, handle or mapping
 * that was ever live at once. A free item holds the address of the next free item. */
struct slab {
    void *free_items;
    char *unused;
    size_t unused_bytes;
};

static struct slab memory_slab, handle_slab, mapping_slab;

void sg_vmm_atfork_child(void)
{
    /* Lock held: another thread of the parent was changing the lists. Give up the slabs, whose lists may be torn. */
    if (sg_load(&sg_cuda_lock.word) != 0)
        memory_slab = handle_slab = mapping_slab = (struct slab){0};
    sg_lock_reset(&sg_cuda_lock);
}

/* ---- functions that need the lock -------------------------------------------------------------------------------- */

static void *slab_allocate(struct slab *slab, size_t bytes)
{
    enum { SLAB_BYTES = 1 << 16 };
    void **item = slab->free_items;
    if (item != NULL) {
        slab->free_items = *item;
        return item;
    }
    if (slab->unused_bytes < bytes) {
        void *fresh = sg_sys_mmap(NULL, SLAB_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (sg_is_error(fresh))
            return NULL;
        slab->unused = fresh;
        slab->unused_bytes = SLAB_BYTES;
    }
    item = (void **)(void *)slab->unused;
    slab->unused += bytes;
    slab->unused_bytes -= bytes;
    return item;
}

static void slab_free(struct slab *slab, void *item)
{
    *(void **)item = slab->free_items;
    slab->free_items = item;
}

static void *find(const struct sg_block_table *table, uint64_t key)
{
    return (void *)(uintptr_t)sg_block_table_find(table, key);
}

/* Removes one use. Releases the memory in the ledger with the last use. */
static void drop_use(struct sg_vmm_memory *memory)
{
    if (--memory->uses != 0)
        return;
    sg_callsites_leave(SG_CALLSITES_CUDA, memory->site, memory->bytes);
    sg_ledger_release((enum sg_domain)memory->domain, memory->bytes);
    sg_ledger_count_free((enum sg_domain)memory->domain);
    if (memory->domain == SG_DOMAIN_DEVICE)
        sg_ledger_charge_device(memory->device, -(int64_t)memory->bytes);
    slab_free(&memory_slab, memory);
}

/* Adds a reference by a handle number, which may be new. False: no memory for the entry. */
static bool refer(struct sg_vmm_memory *memory, uint64_t number)
{
    struct sg_vmm_handle *handle = find(&handles, number);
    if (handle != NULL)
        handle->references++;
    if (handle != NULL || memory == NULL)
        return true;
    handle = slab_allocate(&handle_slab, sizeof *handle);
    if (handle == NULL)
        return false;
    *handle = (struct sg_vmm_handle){.memory = memory, .number = number, .references = 1};
    if (sg_block_table_insert(&handles, number, (uintptr_t)handle, NULL) != 0) {
        slab_free(&handle_slab, handle);
        return false;
    }
    memory->uses++;
    return true;
}

/* Frees a handle without references and without releases under way. */
static void drop_if_unused(struct sg_vmm_handle *handle)
{
    if (handle->references != 0 || handle->releases != 0)
        return;
    drop_use(handle->memory);
    slab_free(&handle_slab, handle);
}

/* Drops a stale handle: its number names new memory now, so the old one was released by a call that no hook saw. */
static void drop_stale(uint64_t number)
{
    struct sg_vmm_handle *stale = find(&handles, number);
    if (stale == NULL)
        return;
    (void)sg_block_table_remove(&handles, number);
    stale->references = 0;
    drop_if_unused(stale);
    sg_add_relaxed(&sg_own->unmatched_frees, 1);
}

/* Adds a use for the time of a driver call. */
static struct sg_vmm_memory *hold(struct sg_vmm_memory *memory)
{
    if (memory != NULL)
        memory->uses++;
    return memory;
}

/* ---- adding references ------------------------------------------------------------------------------------------- */

void sg_vmm_enter(enum sg_domain domain, uint32_t device, uint64_t number, uint64_t bytes, const void *caller)
{
    struct sg_lock_state lock;
    uint32_t site = sg_cuda_enter_site(domain, caller, bytes);
    sg_lock_acquire(&sg_cuda_lock, &lock);
    struct sg_vmm_memory *memory = slab_allocate(&memory_slab, sizeof *memory);
    bool is_entered = false;
    if (memory != NULL) {
        *memory = (struct sg_vmm_memory){.bytes = bytes, .domain = domain, .device = device, .site = site};
        drop_stale(number);
        is_entered = refer(memory, number);
        if (!is_entered)
            slab_free(&memory_slab, memory);
    }
    sg_lock_release(&sg_cuda_lock, &lock);
    if (!is_entered) {
        sg_ledger_count_fault();
        sg_callsites_leave(SG_CALLSITES_CUDA, site, bytes);
        return;
    }
    sg_ledger_charge(domain, bytes);
    sg_ledger_count_allocation(domain);
    if (domain == SG_DOMAIN_DEVICE)
        sg_ledger_charge_device(device, (int64_t)bytes);
}

struct sg_vmm_memory *sg_vmm_hold_handle(uint64_t number)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    const struct sg_vmm_handle *handle = find(&handles, number);
    struct sg_vmm_memory *held = hold(handle != NULL ? handle->memory : NULL);
    sg_lock_release(&sg_cuda_lock, &lock);
    return held;
}

struct search {
    uint64_t address;
    const struct sg_vmm_mapping *found;
};

/* Visitor: finds the mapping around an address. */
static void match_address(void *context, uint64_t key, uint64_t value)
{
    struct search *search = context;
    const struct sg_vmm_mapping *mapping = (const struct sg_vmm_mapping *)(uintptr_t)value;
    if (search->address >= key && search->address - key < mapping->bytes)
        search->found = mapping;
}

/* The address may lie anywhere inside a mapping (cuda.h of cuMemRetainAllocationHandle). */
struct sg_vmm_memory *sg_vmm_hold_address(uint64_t address)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    struct search search = {address, find(&mapped, address)};
    if (search.found == NULL)
        sg_block_table_visit(&mapped, match_address, &search);
    struct sg_vmm_memory *held = hold(search.found != NULL ? search.found->memory : NULL);
    sg_lock_release(&sg_cuda_lock, &lock);
    return held;
}

void sg_vmm_end_refer(struct sg_vmm_memory *held, uint64_t number, CUresult result)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    bool is_entered = result != CUDA_SUCCESS || refer(held, number);
    if (held != NULL)
        drop_use(held);
    sg_lock_release(&sg_cuda_lock, &lock);
    if (!is_entered)
        sg_ledger_count_fault();
}

void sg_vmm_end_map(struct sg_vmm_memory *held, uint64_t address, uint64_t bytes, CUresult result)
{
    struct sg_lock_state lock;
    struct sg_vmm_mapping *mapping = NULL;
    uint64_t stale = 0;
    if (held == NULL)
        return;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    if (result == CUDA_SUCCESS)
        mapping = slab_allocate(&mapping_slab, sizeof *mapping);
    if (mapping != NULL) {
        *mapping = (struct sg_vmm_mapping){.memory = held, .address = address, .bytes = bytes};
        if (sg_block_table_insert(&mapped, address, (uintptr_t)mapping, &stale) == 0)
            held->uses++;
        else
            mapping = NULL; /* its slab item is lost: no memory is left anyway */
    }
    if (stale != 0) { /* unmapped by a call that no hook saw */
        struct sg_vmm_mapping *unmapped = (struct sg_vmm_mapping *)(uintptr_t)stale;
        drop_use(unmapped->memory);
        slab_free(&mapping_slab, unmapped);
        sg_add_relaxed(&sg_own->unmatched_frees, 1);
    }
    drop_use(held);
    sg_lock_release(&sg_cuda_lock, &lock);
    if (result == CUDA_SUCCESS && mapping == NULL)
        sg_ledger_count_fault();
}

/* ---- removing references ----------------------------------------------------------------------------------------- */

/* Removes the number before the call: the driver may give the number to another thread before the call returns. */
struct sg_vmm_handle *sg_vmm_begin_release(uint64_t number)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    struct sg_vmm_handle *handle = find(&handles, number);
    if (handle != NULL) {
        handle->releases++;
        if (--handle->references == 0)
            (void)sg_block_table_remove(&handles, number);
    }
    sg_lock_release(&sg_cuda_lock, &lock);
    return handle;
}

void sg_vmm_end_release(struct sg_vmm_handle *handle, CUresult result)
{
    struct sg_lock_state lock;
    if (handle == NULL)
        return;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    handle->releases--;
    bool is_gone = sg_cuda_is_gone(result);
    if (!is_gone && handle->references != 0)
        handle->references++;
    else if (!is_gone && !refer(handle->memory, handle->number)) /* a retain may have entered it meanwhile */
        sg_ledger_count_fault();
    drop_if_unused(handle);
    sg_lock_release(&sg_cuda_lock, &lock);
}

struct range {
    uint64_t begin, end;
    struct sg_vmm_mapping *found;
};

/* Visitor: moves a mapping that begins in the range from the table to the list. */
static void take_mapping(void *context, uint64_t key, uint64_t value)
{
    struct range *range = context;
    struct sg_vmm_mapping *mapping = (struct sg_vmm_mapping *)(uintptr_t)value;
    if (key < range->begin || key >= range->end || sg_block_table_remove(&mapped, key) == 0)
        return;
    mapping->next = range->found;
    range->found = mapping;
}

/* The mappings of a range are usually adjacent. Uncounted mappings of imported memory may lie between them; then all
 * mappings are searched. */
struct sg_vmm_mapping *sg_vmm_begin_unmap(uint64_t begin, uint64_t end)
{
    struct sg_lock_state lock;
    struct range range = {begin, end, NULL};
    sg_lock_acquire(&sg_cuda_lock, &lock);
    while (range.begin < end) {
        const struct sg_vmm_mapping *mapping = find(&mapped, range.begin);
        if (mapping == NULL)
            break;
        uint64_t bytes = mapping->bytes;
        take_mapping(&range, range.begin, (uintptr_t)mapping);
        range.begin += bytes;
    }
    if (range.begin < end)
        sg_block_table_visit(&mapped, take_mapping, &range);
    sg_lock_release(&sg_cuda_lock, &lock);
    return range.found;
}

void sg_vmm_end_unmap(struct sg_vmm_mapping *mappings, CUresult result)
{
    struct sg_lock_state lock;
    bool is_gone = sg_cuda_is_gone(result);
    sg_lock_acquire(&sg_cuda_lock, &lock);
    while (mappings != NULL) {
        struct sg_vmm_mapping *mapping = mappings;
        mappings = mapping->next;
        if (!is_gone && sg_block_table_insert(&mapped, mapping->address, (uintptr_t)mapping, NULL) != 0)
            sg_ledger_count_fault();
        if (is_gone) {
            drop_use(mapping->memory);
            slab_free(&mapping_slab, mapping);
        }
    }
    sg_lock_release(&sg_cuda_lock, &lock);
}
