/*
 * sim_share.c - memory shared between processes: VMM handles, CUDA IPC, pools and their blocks.
 *
 * What is imported of another process takes nothing and shows fresh zero pages. A shareable handle is a description of 64
 * bytes; a file descriptor is a memfd that holds one. Imported by the process that exported it, a fabric handle is the same
 * handle once more, a descriptor a handle with a number of its own (cuda.h leaves both open), and an IPC handle is refused,
 * as a real driver does. A descriptor keeps nothing alive.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC 0x73677368u

struct description {
    uint32_t magic;
    uint32_t pid; /* the exporter's */
    uint64_t key, size;
    uint32_t role, kind;
    uint32_t device;
    uint32_t padding[7];
};
_Static_assert(sizeof(struct description) == 64 && sizeof(CUmemFabricHandle) == 64 && sizeof(CUipcMemHandle) == 64 &&
                   sizeof(CUmemPoolPtrExportData) == 64,
               "what programs hand around");

static struct description describe(const struct sgsim_object *object)
{
    return (struct description){.magic = MAGIC,
                                .pid = (uint32_t)syscall(SYS_getpid),
                                .key = object->key,
                                .size = object->size,
                                .role = object->role,
                                .kind = object->kind,
                                .device = (uint32_t)object->device};
}

static bool is_own(const struct description *what)
{
    return what->pid == (uint32_t)syscall(SYS_getpid);
}

static CUresult export(const struct sgsim_object *object, void *shareable, CUmemAllocationHandleType type)
{
    struct description what = describe(object);
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        memcpy(shareable, &what, sizeof what);
        return CUDA_SUCCESS;
    }
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    long file = syscall(SYS_memfd_create, "cuda_sim", MFD_CLOEXEC);
    if (file < 0 || syscall(SYS_pwrite64, file, &what, sizeof what, 0L) != sizeof what)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareable = (int)file;
    return CUDA_SUCCESS;
}

/* False: it is none of that role. */
static bool read_shareable(struct description *what, const void *shareable, CUmemAllocationHandleType type,
                           enum sgsim_role role)
{
    memset(what, 0, sizeof *what);
    if (type == CU_MEM_HANDLE_TYPE_FABRIC && shareable)
        memcpy(what, shareable, sizeof *what);
    else if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        syscall(SYS_pread64, (long)(intptr_t)shareable, what, sizeof *what, 0L);
    return what->magic == MAGIC && what->role == role && what->kind < SGSIM_KINDS && sgsim_is_device((int)what->device);
}

/* ---- VMM handles ------------------------------------------------------------------------------------------------------ */

CUresult CUDAAPI cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type, unsigned long long flags)
{
    SGSIM_ENTER(cuMemExportToShareableHandle, SGSIM_NEEDS_INIT);
    const struct sgsim_object *object = sgsim_vmm_find(handle);
    if (!shareable || !object || flags != 0)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    return sgsim_leave(export(object->owner ? object->owner : object, shareable, type));
}

static CUresult import(CUmemGenericAllocationHandle *handle, const struct description *what, bool is_same)
{
    struct sgsim_object *shared = is_own(what) ? sgsim_handle_find((void *)(uintptr_t)what->key, SGSIM_HANDLE) : NULL;
    if (is_own(what) && !shared)
        return CUDA_ERROR_INVALID_VALUE;
    struct sgsim_object *object = shared;
    if (shared && is_same) {
        object->references++;
    } else {
        object = sgsim_vmm_handle_new(what->kind, (int)what->device, what->size);
        if (!object)
            return CUDA_ERROR_OUT_OF_MEMORY;
        object->owner = shared;
        if (shared)
            shared->mappings++;
    }
    *handle = object->key;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                                CUmemAllocationHandleType type)
{
    struct description what;
    SGSIM_ENTER(cuMemImportFromShareableHandle, SGSIM_NEEDS_INIT);
    if (!handle || !read_shareable(&what, shareable, type, SGSIM_HANDLE))
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    return sgsim_leave(import(handle, &what, type == CU_MEM_HANDLE_TYPE_FABRIC));
}

/* ---- allocations of other processes ------------------------------------------------------------------------------------ */

static CUresult import_block(CUdeviceptr *pointer, const struct description *what, struct sgsim_object **out)
{
    struct sgsim_object *block = sgsim_object_new(SGSIM_IMPORT);
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block->kind = what->kind;
    block->device = (int)what->device;
    block->size = what->size;
    block->flags = what->pid;
    block->u.exported = what->key;
    block->key = block->backing = sgsim_map_backing(block->kind, block->size, false, &block->backing_size);
    if (!block->key || !sgsim_index_insert(&sgsim.memory_index, block)) {
        sgsim_unmap(block->backing, block->backing_size);
        sgsim_object_recycle(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = block->key;
    *out = block;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    SGSIM_ENTER(cuIpcGetMemHandle, SGSIM_NEEDS_CONTEXT);
    const struct sgsim_object *block = sgsim_index_covering(&sgsim.memory_index, (uintptr_t)pointer);
    if (!handle || !block || block->role != SGSIM_LINEAR || block->kind != SGSIM_DEVICE)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    struct description what = describe(block);
    memcpy(handle, &what, sizeof what);
    return sgsim_leave(CUDA_SUCCESS);
}

/* Opened again in the same context it is the same address, with one reference more (cuda.h). */
static CUresult open_ipc(CUdeviceptr *pointer, const struct description *what)
{
    struct sgsim_object *block;
    for (size_t i = 0; i < sgsim.memory_index.count; i++) {
        block = sgsim.memory_index.entries[i];
        if (block->role == SGSIM_IMPORT && block->references && block->owner == sgsim_current() &&
            block->flags == what->pid && block->u.exported == what->key) {
            block->references++;
            *pointer = block->key;
            return CUDA_SUCCESS;
        }
    }
    CUresult error = import_block(pointer, what, &block);
    if (error == CUDA_SUCCESS) {
        block->owner = sgsim_current();
        block->references = 1;
    }
    return error;
}

static CUresult open_handle(CUdeviceptr *pointer, const CUipcMemHandle *handle, unsigned int flags)
{
    struct description what;
    memcpy(&what, handle, sizeof what);
    if (!pointer || (flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) || what.magic != MAGIC ||
        what.role != SGSIM_LINEAR || what.kind != SGSIM_DEVICE || !sgsim_is_device((int)what.device))
        return CUDA_ERROR_INVALID_VALUE;
    return is_own(&what) ? CUDA_ERROR_INVALID_CONTEXT : open_ipc(pointer, &what);
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    SGSIM_ENTER(cuIpcOpenMemHandle, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(open_handle(pointer, &handle, flags));
}

CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    SGSIM_ENTER(cuIpcOpenMemHandle_v2, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(open_handle(pointer, &handle, flags));
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    SGSIM_ENTER(cuIpcCloseMemHandle, SGSIM_NEEDS_CONTEXT);
    struct sgsim_object *block = sgsim_index_exact(&sgsim.memory_index, (uintptr_t)pointer);
    if (!block || block->role != SGSIM_IMPORT || !block->references)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    if (--block->references == 0)
        sgsim_block_drop(block);
    return sgsim_leave(CUDA_SUCCESS);
}

/* ---- pools -------------------------------------------------------------------------------------------------------------- */

CUresult CUDAAPI cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool handle, CUmemAllocationHandleType type,
                                                  unsigned long long flags)
{
    SGSIM_ENTER(cuMemPoolExportToShareableHandle, SGSIM_NEEDS_INIT);
    const struct sgsim_object *pool = sgsim_pool_find(handle);
    if (!shareable || !pool || flags != 0 || type == CU_MEM_HANDLE_TYPE_NONE || pool->u.pool.is_imported ||
        (pool->u.pool.props.handleTypes & type) != type)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    return sgsim_leave(export(pool, shareable, type));
}

CUresult CUDAAPI cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *shareable, CUmemAllocationHandleType type,
                                                    unsigned long long flags)
{
    struct description what;
    SGSIM_ENTER(cuMemPoolImportFromShareableHandle, SGSIM_NEEDS_INIT);
    if (!out || flags != 0 || !read_shareable(&what, shareable, type, SGSIM_POOL))
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)what.device}};
    struct sgsim_object *pool = sgsim_pool_new(&props);
    if (!pool)
        return sgsim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    pool->u.pool.is_imported = true;
    *out = (CUmemoryPool)(void *)pool;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr pointer)
{
    SGSIM_ENTER(cuMemPoolExportPointer, SGSIM_NEEDS_INIT);
    const struct sgsim_object *block = sgsim_index_exact(&sgsim.memory_index, (uintptr_t)pointer);
    if (!data || !block || block->role != SGSIM_POOL_BLOCK)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    struct description what = describe(block);
    memcpy(data, &what, sizeof what);
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool handle, CUmemPoolPtrExportData *data)
{
    struct description what;
    struct sgsim_object *block;
    SGSIM_ENTER(cuMemPoolImportPointer, SGSIM_NEEDS_INIT);
    const struct sgsim_object *pool = sgsim_pool_find(handle);
    if (!pointer || !data || !pool || !pool->u.pool.is_imported)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(&what, data, sizeof what);
    if (what.magic != MAGIC || what.role != SGSIM_POOL_BLOCK || what.kind >= SGSIM_KINDS)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    return sgsim_leave(import_block(pointer, &what, &block));
}
