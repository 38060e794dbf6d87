/*
 * hook_vmm.c - virtual memory management: cuMemCreate, cuMemMap, cuMemUnmap, cuMemRelease.
 *
 * cuda.h: the memory of a handle goes only when all references to it AND all its mappings are gone; counting it off at
 * cuMemRelease would undercount whatever stays mapped (PyTorch's expandable segments release right after mapping). So each
 * handle has an object with both counts; handles and mapped addresses lead to it.
 */
#include "vmm.h"

#include "compiler.h"
#include "cuda_call.h"
#include "sites.h"
#include "syscall.h"

#include <sys/mman.h>

struct sg_lock sg_vmm_lock;

struct object {
    uint64_t handle;
    uint64_t bytes;
    uint32_t references;
    uint32_t mappings;
    uint32_t releases; /* under way in the driver */
    uint32_t domain;
    uint32_t device;
    uint32_t site; /* its number */
    struct object *next_free;
};

/* One cuMemMap: which object, and how long. */
struct mapping {
    struct object *object;
    uint64_t address;
    uint64_t bytes;
    struct mapping *next; /* free, or on its way out */
};

/* The tables hold the address of an object or a mapping as value. */
static struct sg_table handles;
static struct sg_table mapped;

/* Slabs of equal items, never given back: at most 56 bytes for each handle or mapping ever live at once. */
struct slab {
    void *free_items;
    char *unused;
    size_t unused_bytes;
};

static struct slab object_slab, mapping_slab;

void sg_vmm_refork(void)
{
    sg_lock_reset(&sg_vmm_lock);
}

static void *slab_take(struct slab *slab, size_t bytes)
{
    enum { SLAB_BYTES = 1 << 16 };
    if (slab->unused_bytes < bytes) {
        void *fresh = sg_sys_mmap(NULL, SLAB_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (sg_is_error(fresh))
            return NULL;
        slab->unused = fresh;
        slab->unused_bytes = SLAB_BYTES;
    }
    void *item = slab->unused;
    slab->unused += bytes;
    slab->unused_bytes -= bytes;
    return item;
}

static struct object *object_make(void)
{
    struct object *object = object_slab.free_items;
    if (object == NULL)
        return slab_take(&object_slab, sizeof *object);
    object_slab.free_items = object->next_free;
    return object;
}

static struct mapping *mapping_make(void)
{
    struct mapping *mapping = mapping_slab.free_items;
    if (mapping == NULL)
        return slab_take(&mapping_slab, sizeof *mapping);
    mapping_slab.free_items = mapping->next;
    return mapping;
}

static struct object *object_of(uint64_t handle)
{
    return (struct object *)(uintptr_t)sg_table_find(&handles, handle);
}

/* Under the lock: gives the memory back when nothing holds it any more. */
static void release_if_unused(struct object *object)
{
    if (object->references == 0 && object->handle != 0) {
        (void)sg_table_remove(&handles, object->handle); /* the driver may use the number again */
        object->handle = 0;
    }
    if (object->references != 0 || object->mappings != 0 || object->releases != 0)
        return;
    sg_sites_leave(SG_SITES_CUDA, object->site, object->bytes);
    sg_ledger_release((enum sg_domain)object->domain, object->bytes);
    sg_ledger_count_free((enum sg_domain)object->domain);
    if (object->domain == SG_DOMAIN_DEVICE)
        sg_ledger_charge_device(object->device, -(int64_t)object->bytes);
    object->next_free = object_slab.free_items;
    object_slab.free_items = object;
}

static void record_handle(const struct sg_cuda_call *call, uint64_t handle, uint64_t bytes, const void *caller)
{
    struct sg_lock_state lock;
    if (!call->is_counted)
        return;
    enum sg_domain domain = call->request.domain;
    uint32_t device = call->device, site = sg_cuda_enter_site(domain, caller, bytes);
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct object *object = object_make();
    bool is_entered = false;
    if (object != NULL) {
        *object = (struct object){
            .handle = handle, .bytes = bytes, .references = 1, .domain = domain, .device = device, .site = site};
        is_entered = sg_table_insert(&handles, handle, (uintptr_t)object, NULL) == 0;
    }
    sg_lock_release(&sg_vmm_lock, &lock);
    if (!is_entered) {
        sg_ledger_count_fault();
        sg_sites_leave(SG_SITES_CUDA, site, bytes);
        return;
    }
    sg_ledger_charge(domain, bytes);
    sg_ledger_count_allocation(domain);
    if (domain == SG_DOMAIN_DEVICE)
        sg_ledger_charge_device(device, (int64_t)bytes);
}

/* Whether the driver can make such a handle at all; if not, it says so itself. */
static bool is_sound(const CUmemAllocationProp *prop, size_t size, unsigned long long flags)
{
    SG_DRIVER(get, cuMemGetAllocationGranularity);
    size_t granularity = 1;
    if (flags != 0 || (get != NULL && get(&granularity, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS))
        return false;
    return granularity == 0 || size % granularity == 0;
}

SG_EXPORT CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                                       const CUmemAllocationProp *prop, unsigned long long flags)
{
    struct sg_cuda_call call;
    if (handle == NULL || size == 0 || prop == NULL)
        return SG_DRIVER_CALL(cuMemCreate, handle, size, prop, flags);
    bool is_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    uint64_t growth = is_sound(prop, size, flags) ? size : 0;
    if (is_device ? !sg_cuda_begin_at(&call, SG_HOOK_cuMemCreate, prop->location.id, growth)
                  : !sg_cuda_begin(&call, SG_HOOK_cuMemCreate, SG_DOMAIN_PINNED, growth))
        return call.answer;
    CUresult result = SG_DRIVER_CALL(cuMemCreate, handle, size, prop, flags);
    if (result == CUDA_SUCCESS)
        record_handle(&call, *handle, size, __builtin_return_address(0));
    sg_cuda_end(&call, result == CUDA_SUCCESS ? size : 0);
    return result;
}

SG_EXPORT CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct sg_lock_state lock;
    if (!sg_cuda_is_ours())
        return SG_DRIVER_CALL(cuMemRelease, handle);
    /* Out before the real call, as everywhere: the driver may hand the number to another thread at once. */
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct object *object = object_of(handle);
    if (object != NULL) {
        object->releases++;
        if (--object->references == 0) {
            (void)sg_table_remove(&handles, handle);
            object->handle = 0;
        }
    }
    sg_lock_release(&sg_vmm_lock, &lock);
    SG_DRIVER_INSIDE(cuMemRelease, handle);
    if (object == NULL)
        return result;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    object->releases--;
    if (result != CUDA_SUCCESS && object->references++ == 0) {
        object->handle = handle;
        if (sg_table_insert(&handles, handle, (uintptr_t)object, NULL) != 0)
            sg_ledger_count_fault();
    }
    release_if_unused(object);
    sg_lock_release(&sg_vmm_lock, &lock);
    return result;
}

struct search {
    uint64_t address;
    struct mapping *found;
};

static void look_inside(void *context, uint64_t key, uint64_t value)
{
    struct search *search = context;
    struct mapping *mapping = (struct mapping *)(uintptr_t)value;
    if (search->address >= key && search->address - key < mapping->bytes)
        search->found = mapping;
}

SG_EXPORT CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    struct sg_lock_state lock;
    if (!sg_cuda_is_ours())
        return SG_DRIVER_CALL(cuMemRetainAllocationHandle, handle, addr);
    SG_DRIVER_INSIDE(cuMemRetainAllocationHandle, handle, addr);
    if (result != CUDA_SUCCESS)
        return result;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct object *object = object_of(*handle);
    if (object == NULL) { /* all its references were gone, the mapping held it: the number is new to us */
        struct search search = {(uintptr_t)addr, NULL};
        sg_table_visit(&mapped, look_inside, &search); /* any address inside will do (cuda.h) */
        object = search.found != NULL ? search.found->object : NULL;
        if (object != NULL && object->handle == 0 && sg_table_insert(&handles, *handle, (uintptr_t)object, NULL) == 0)
            object->handle = *handle;
    }
    if (object != NULL)
        object->references++;
    sg_lock_release(&sg_vmm_lock, &lock);
    return result;
}

/* Takes nothing new: the exporter counts it. But that may be this process, and the number the one it has (cuda.h gives no
 * guarantee either way): then there is one more reference to be released. */
SG_EXPORT CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                                          CUmemAllocationHandleType shHandleType)
{
    struct sg_lock_state lock;
    if (!sg_cuda_is_ours())
        return SG_DRIVER_CALL(cuMemImportFromShareableHandle, handle, osHandle, shHandleType);
    SG_DRIVER_INSIDE(cuMemImportFromShareableHandle, handle, osHandle, shHandleType);
    if (result != CUDA_SUCCESS)
        return result;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct object *object = object_of(*handle);
    if (object != NULL)
        object->references++;
    sg_lock_release(&sg_vmm_lock, &lock);
    return result;
}

SG_EXPORT CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                                    unsigned long long flags)
{
    struct sg_lock_state lock;
    if (!sg_cuda_is_ours())
        return SG_DRIVER_CALL(cuMemMap, ptr, size, offset, handle, flags);
    SG_DRIVER_INSIDE(cuMemMap, ptr, size, offset, handle, flags);
    if (result != CUDA_SUCCESS)
        return result;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct object *object = object_of(handle);
    struct mapping *mapping = object != NULL ? mapping_make() : NULL;
    if (mapping != NULL) {
        *mapping = (struct mapping){.object = object, .address = ptr, .bytes = size};
        if (sg_table_insert(&mapped, ptr, (uintptr_t)mapping, NULL) == 0)
            object->mappings++;
        else
            mapping = NULL;
    }
    sg_lock_release(&sg_vmm_lock, &lock);
    if (object != NULL && mapping == NULL)
        sg_ledger_count_fault();
    return result;
}

struct range {
    uint64_t begin, end;
    struct mapping *found;
};

static void take_mapping(void *context, uint64_t key, uint64_t value)
{
    struct range *range = context;
    struct mapping *mapping = (struct mapping *)(uintptr_t)value;
    if (key < range->begin || key >= range->end || sg_table_remove(&mapped, key) == 0)
        return;
    mapping->next = range->found;
    range->found = mapping;
}

/* Under the lock: takes out the mappings that lie in the range, side by side as a rule. Between them there can be others
 * that we do not count, of imported handles: then all are looked at. */
static struct mapping *take_mappings(uint64_t begin, uint64_t end)
{
    struct range range = {begin, end, NULL};
    while (range.begin < end) {
        uint64_t value = sg_table_find(&mapped, range.begin);
        if (value == 0)
            break;
        uint64_t bytes = ((struct mapping *)(uintptr_t)value)->bytes;
        take_mapping(&range, range.begin, value);
        range.begin += bytes;
    }
    if (range.begin < end)
        sg_table_visit(&mapped, take_mapping, &range);
    return range.found;
}

/* Under the lock: what was taken out is unmapped, or it still is mapped. */
static void settle_mapping(struct mapping *mapping, bool is_unmapped)
{
    if (!is_unmapped) {
        if (sg_table_insert(&mapped, mapping->address, (uintptr_t)mapping, NULL) != 0)
            sg_ledger_count_fault();
        return;
    }
    mapping->object->mappings--;
    release_if_unused(mapping->object);
    mapping->next = mapping_slab.free_items;
    mapping_slab.free_items = mapping;
}

/* One unmap may cover several mappings, each as a whole. The driver may wait for the device in it (cuda.h), so no lock is
 * held; out of the table before, for the addresses may be mapped anew before it returns. */
SG_EXPORT CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    struct sg_lock_state lock;
    if (!sg_cuda_is_ours() || size > UINT64_MAX - ptr)
        return SG_DRIVER_CALL(cuMemUnmap, ptr, size);
    sg_lock_acquire(&sg_vmm_lock, &lock);
    struct mapping *mapping = take_mappings(ptr, ptr + size);
    sg_lock_release(&sg_vmm_lock, &lock);
    SG_DRIVER_INSIDE(cuMemUnmap, ptr, size);
    sg_lock_acquire(&sg_vmm_lock, &lock);
    while (mapping != NULL) {
        struct mapping *next = mapping->next;
        settle_mapping(mapping, result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED);
        mapping = next;
    }
    sg_lock_release(&sg_vmm_lock, &lock);
    return result;
}
