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

#include <fcntl.h>
#include <sys/mman.h>

struct sg_vmm_memory {
    uint64_t bytes;
    uint32_t uses; /* its handles and mappings, and calls under way */
    uint32_t domain;
    uint32_t device;
    uint32_t site; /* its number */
    bool is_exported;
};

struct sg_vmm_handle {
    struct sg_vmm_memory *memory;
    uint64_t number;
    uint32_t references; /* 0: the number is no name of it any more */
    uint32_t releases;   /* under way in the driver */
};

/* One cuMemMap: of which memory, and how long. */
struct sg_vmm_mapping {
    struct sg_vmm_memory *memory;
    uint64_t address;
    uint64_t bytes;
    struct sg_vmm_mapping *next; /* on its way out */
};

/* By number, by address, by what a shareable counterpart is known by; the values are addresses of the above. */
static struct sg_block_table handles, mapped, exported;

/* Slabs of equal items, never given back: 32 bytes for each memory, handle or mapping ever live at once. A free item
 * holds the address of the next. */
struct slab {
    void *free_items;
    char *unused;
    size_t unused_bytes;
};

static struct slab memory_slab, handle_slab, mapping_slab;

void sg_vmm_refork(void)
{
    if (sg_load(&sg_vmm_lock.word) !=
        0) /* another thread was changing these lists: their memory is lost to the child */
        memory_slab = handle_slab = mapping_slab = (struct slab){0};
    sg_lock_reset(&sg_vmm_lock);
}

/* ---- all under the lock ------------------------------------------------------------------------------------------ */

static void *slab_take(struct slab *slab, size_t bytes)
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

static void slab_give(struct slab *slab, void *item)
{
    *(void **)item = slab->free_items;
    slab->free_items = item;
}

static void *find(const struct sg_block_table *table, uint64_t key)
{
    return (void *)(uintptr_t)sg_block_table_find(table, key);
}

static void forget_export(void *memory, uint64_t key, uint64_t value)
{
    if (value == (uintptr_t)memory)
        (void)sg_block_table_remove(&exported, key);
}

/* One use less: gives the memory back when nothing uses it any more. */
static void leave(struct sg_vmm_memory *memory)
{
    if (--memory->uses != 0)
        return;
    if (memory->is_exported)
        sg_block_table_visit(&exported, forget_export, memory);
    sg_callsites_leave(SG_CALLSITES_CUDA, memory->site, memory->bytes);
    sg_ledger_release((enum sg_domain)memory->domain, memory->bytes);
    sg_ledger_count_free((enum sg_domain)memory->domain);
    if (memory->domain == SG_DOMAIN_DEVICE)
        sg_ledger_charge_device(memory->device, -(int64_t)memory->bytes);
    slab_give(&memory_slab, memory);
}

/* One reference more by that number, which may be new to us. False: no memory to remember it by. */
static bool refer(struct sg_vmm_memory *memory, uint64_t number)
{
    struct sg_vmm_handle *handle = find(&handles, number);
    if (handle != NULL)
        handle->references++;
    if (handle != NULL || memory == NULL)
        return true;
    handle = slab_take(&handle_slab, sizeof *handle);
    if (handle == NULL)
        return false;
    *handle = (struct sg_vmm_handle){.memory = memory, .number = number, .references = 1};
    if (sg_block_table_insert(&handles, number, (uintptr_t)handle, NULL) != 0) {
        slab_give(&handle_slab, handle);
        return false;
    }
    memory->uses++;
    return true;
}

static void drop_if_unused(struct sg_vmm_handle *handle)
{
    if (handle->references != 0 || handle->releases != 0)
        return;
    leave(handle->memory);
    slab_give(&handle_slab, handle);
}

/* What had that number went by a way we did not see, for it names new memory now. */
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

static struct sg_vmm_memory *hold(struct sg_vmm_memory *memory)
{
    if (memory != NULL)
        memory->uses++;
    return memory;
}

/* ---- taking ------------------------------------------------------------------------------------------------------ */

void sg_vmm_enter(enum sg_domain domain, uint32_t device, uint64_t number, uint64_t bytes, const void *caller)
{
    struct sg_lock_state lock;
    uint32_t site = sg_cuda_enter_site(domain, caller, bytes);
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct sg_vmm_memory *memory = slab_take(&memory_slab, sizeof *memory);
    bool is_entered = false;
    if (memory != NULL) {
        *memory = (struct sg_vmm_memory){.bytes = bytes, .domain = domain, .device = device, .site = site};
        drop_stale(number);
        is_entered = refer(memory, number);
        if (!is_entered)
            slab_give(&memory_slab, memory);
    }
    sg_lock_release(&sg_vmm_lock, &lock);
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
    sg_lock_acquire(&sg_vmm_lock, &lock);
    const struct sg_vmm_handle *handle = find(&handles, number);
    struct sg_vmm_memory *held = hold(handle != NULL ? handle->memory : NULL);
    sg_lock_release(&sg_vmm_lock, &lock);
    return held;
}

struct search {
    uint64_t address;
    const struct sg_vmm_mapping *found;
};

static void look_inside(void *context, uint64_t key, uint64_t value)
{
    struct search *search = context;
    const struct sg_vmm_mapping *mapping = (const struct sg_vmm_mapping *)(uintptr_t)value;
    if (search->address >= key && search->address - key < mapping->bytes)
        search->found = mapping;
}

/* Any address inside a mapping will do (cuda.h of cuMemRetainAllocationHandle). */
struct sg_vmm_memory *sg_vmm_hold_address(uint64_t address)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct search search = {address, find(&mapped, address)};
    if (search.found == NULL)
        sg_block_table_visit(&mapped, look_inside, &search);
    struct sg_vmm_memory *held = hold(search.found != NULL ? search.found->memory : NULL);
    sg_lock_release(&sg_vmm_lock, &lock);
    return held;
}

/*
 * What a shareable counterpart is known by, or 0. A fabric handle is its bytes. Of a descriptor the number says
 * nothing, for programs close it and are sent another under it; nor does its inode, which may be the driver's device
 * for all of them. So the open file is marked at the export: this process becomes the receiver of signals that are
 * never asked for (fcntl(2): F_SETOWN without O_ASYNC), which F_GETOWN shows. Without a mark (kcmp, epoll) it takes a
 * descriptor that we keep: a duplicate holds the memory, and any may be closed by the program. Nothing tells when the
 * last one is closed: an open one is no use.
 */
static uint64_t export_key(const void *shareable, CUmemAllocationHandleType type, bool is_new)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a, by words */
    if (shareable != NULL && type == CU_MEM_HANDLE_TYPE_FABRIC) {
        for (size_t i = 0; i < sizeof(CUmemFabricHandle) / sizeof hash; i++)
            hash = (hash ^ ((const uint64_t *)shareable)[i]) * UINT64_C(0x100000001b3);
        return hash >> 1 | UINT64_C(1) << 40; /* no descriptor, and a key that a table can hold */
    }
    if (shareable == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return 0;
    const void *self = (const void *)(uintptr_t)sg_sys_getpid(); /* both take numbers for pointers: fcntl, and cuda.h */
    int file = is_new ? *(const int *)shareable : (int)(uintptr_t)shareable;
    bool is_ours =
        is_new ? sg_sys_fcntl(file, F_SETOWN, self) == 0 : sg_sys_fcntl(file, F_GETOWN, NULL) == (long)(uintptr_t)self;
    return is_ours ? (uint64_t)(uint32_t)file + 1 : 0;
}

struct sg_vmm_memory *sg_vmm_hold_exported(const void *shareable, CUmemAllocationHandleType type)
{
    struct sg_lock_state lock;
    uint64_t key = export_key(shareable, type, false);
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct sg_vmm_memory *held = hold(key != 0 ? find(&exported, key) : NULL);
    sg_lock_release(&sg_vmm_lock, &lock);
    return held;
}

void sg_vmm_end_export(struct sg_vmm_memory *held, const void *shareable, CUmemAllocationHandleType type,
                       CUresult result)
{
    struct sg_lock_state lock;
    uint64_t key = held != NULL && result == CUDA_SUCCESS ? export_key(shareable, type, true) : 0;
    if (held == NULL)
        return;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    bool is_entered = key == 0 || sg_block_table_insert(&exported, key, (uintptr_t)held, NULL) == 0;
    held->is_exported = held->is_exported || (key != 0 && is_entered);
    leave(held);
    sg_lock_release(&sg_vmm_lock, &lock);
    if (!is_entered) /* an import of it will not be known for what it is */
        sg_ledger_count_fault();
}

void sg_vmm_end_refer(struct sg_vmm_memory *held, uint64_t number, CUresult result)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    bool is_entered = result != CUDA_SUCCESS || refer(held, number);
    if (held != NULL)
        leave(held);
    sg_lock_release(&sg_vmm_lock, &lock);
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
    sg_lock_acquire(&sg_vmm_lock, &lock);
    if (result == CUDA_SUCCESS)
        mapping = slab_take(&mapping_slab, sizeof *mapping);
    if (mapping != NULL) {
        *mapping = (struct sg_vmm_mapping){.memory = held, .address = address, .bytes = bytes};
        if (sg_block_table_insert(&mapped, address, (uintptr_t)mapping, &stale) == 0)
            held->uses++;
        else
            mapping = NULL; /* lost: no memory is left anyway */
    }
    if (stale != 0) { /* as with a number */
        struct sg_vmm_mapping *gone = (struct sg_vmm_mapping *)(uintptr_t)stale;
        leave(gone->memory);
        slab_give(&mapping_slab, gone);
        sg_add_relaxed(&sg_own->unmatched_frees, 1);
    }
    leave(held);
    sg_lock_release(&sg_vmm_lock, &lock);
    if (result == CUDA_SUCCESS && mapping == NULL)
        sg_ledger_count_fault();
}

/* ---- giving back ------------------------------------------------------------------------------------------------- */

/* The driver may hand the number to another thread before it returns. */
struct sg_vmm_handle *sg_vmm_begin_release(uint64_t number)
{
    struct sg_lock_state lock;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct sg_vmm_handle *handle = find(&handles, number);
    if (handle != NULL) {
        handle->releases++;
        if (--handle->references == 0)
            (void)sg_block_table_remove(&handles, number);
    }
    sg_lock_release(&sg_vmm_lock, &lock);
    return handle;
}

void sg_vmm_end_release(struct sg_vmm_handle *handle, CUresult result)
{
    struct sg_lock_state lock;
    if (handle == NULL)
        return;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    handle->releases--;
    bool is_gone = sg_cuda_is_gone(result);
    if (!is_gone && handle->references != 0)
        handle->references++;
    else if (!is_gone && !refer(handle->memory, handle->number)) /* by a retain meanwhile it may have it */
        sg_ledger_count_fault();
    drop_if_unused(handle);
    sg_lock_release(&sg_vmm_lock, &lock);
}

struct range {
    uint64_t begin, end;
    struct sg_vmm_mapping *found;
};

static void take_mapping(void *context, uint64_t key, uint64_t value)
{
    struct range *range = context;
    struct sg_vmm_mapping *mapping = (struct sg_vmm_mapping *)(uintptr_t)value;
    if (key < range->begin || key >= range->end || sg_block_table_remove(&mapped, key) == 0)
        return;
    mapping->next = range->found;
    range->found = mapping;
}

/* Side by side as a rule. Between them there can be others that we do not count, of imported memory: then all are
 * looked at. */
struct sg_vmm_mapping *sg_vmm_begin_unmap(uint64_t begin, uint64_t end)
{
    struct sg_lock_state lock;
    struct range range = {begin, end, NULL};
    sg_lock_acquire(&sg_vmm_lock, &lock);
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
    sg_lock_release(&sg_vmm_lock, &lock);
    return range.found;
}

void sg_vmm_end_unmap(struct sg_vmm_mapping *mappings, CUresult result)
{
    struct sg_lock_state lock;
    bool is_gone = sg_cuda_is_gone(result);
    sg_lock_acquire(&sg_vmm_lock, &lock);
    while (mappings != NULL) {
        struct sg_vmm_mapping *mapping = mappings;
        mappings = mapping->next;
        if (!is_gone && sg_block_table_insert(&mapped, mapping->address, (uintptr_t)mapping, NULL) != 0)
            sg_ledger_count_fault();
        if (is_gone) {
            leave(mapping->memory);
            slab_give(&mapping_slab, mapping);
        }
    }
    sg_lock_release(&sg_vmm_lock, &lock);
}
