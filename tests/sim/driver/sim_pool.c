/*
 * sim_pool.c - memory pools and stream-ordered allocation.
 *
 * Blocks (rounded up to 512 bytes, which is what USED counts) are cut, first fit, from segments that the pool
 * reserves. A new segment is one step (SGSIM_POOL_STEP, 32 MiB), or the block rounded up to 2 MiB where that is
 * larger or a step cannot be had. The ledger books the reserved memory. A freed block's segment stays: only a
 * synchronize (stream, event or context) or cuMemPoolTrimTo gives back, whole segments without a live block, and
 * never so many that less than the release threshold, or what TrimTo is to keep, stays reserved. Resetting a HIGH
 * attribute sets it to the present figure.
 *
 * Where streams are idle, what was freed can be used again at once, by all. Where they are busy
 * (SGSIM_STREAMS=busy), until a synchronize of the stream in which it was freed has seen that done, it can be used
 * again in that stream only, and its segment counts as outstanding to TrimTo.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#include "cuda_sim.h"
#include "sim_faults.h"

#include <string.h>

#define BLOCK_STEP ((size_t)512)

/* Blocks that were freed in a busy stream: by address, `owner` is the segment and `u.stream` the stream. */
static struct sgsim_index freed_index;

struct sgsim_object *sgsim_pool_of_block(const struct sgsim_object *block)
{
    return block->role == SGSIM_POOL_BLOCK ? block->owner->owner : NULL;
}

static enum sgsim_kind kind_of(const CUmemPoolProps *props)
{
    if (props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return SGSIM_MANAGED;
    return props->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? SGSIM_DEVICE : SGSIM_PINNED;
}

static uint64_t larger(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

/* ---- segments ---- */

static struct sgsim_object *segment_new(struct sgsim_object *pool, size_t size)
{
    struct sgsim_pool *state = &pool->u.pool;
    if (state->props.maxSize && (size > state->props.maxSize || state->reserved > state->props.maxSize - size))
        return NULL;
    if (sgsim_charge(pool->kind, pool->device, size) != CUDA_SUCCESS)
        return NULL;
    struct sgsim_object *segment = sgsim_object_new(SGSIM_SEGMENT);
    if (segment)
        segment->key = segment->backing = sgsim_map_backing(pool->kind, size, false, &segment->backing_size);
    if (!segment || !segment->key) {
        if (segment)
            sgsim_object_recycle(segment);
        sgsim_release(pool->kind, pool->device, size);
        return NULL;
    }
    segment->size = segment->charged = size;
    segment->kind = pool->kind;
    segment->device = pool->device;
    segment->owner = pool;
    segment->next = state->segments;
    state->segments = segment;
    state->reserved += size;
    state->reserved_high = larger(state->reserved_high, state->reserved);
    sgsim.pool_reserved += size;
    return segment;
}

static void forget_freed(size_t position)
{
    struct sgsim_object *freed = freed_index.entries[position];
    sgsim_index_remove(&freed_index, freed);
    sgsim_object_recycle(freed);
}

static bool has_freed(const struct sgsim_object *segment)
{
    size_t i = sgsim_index_after(&freed_index, segment->key - 1);
    return i < freed_index.count && freed_index.entries[i]->key < segment->key + segment->size;
}

static void segment_drop(struct sgsim_object **link)
{
    struct sgsim_object *segment = *link;
    while (has_freed(segment))
        forget_freed(sgsim_index_after(&freed_index, segment->key - 1));
    *link = segment->next;
    segment->owner->u.pool.reserved -= segment->size;
    sgsim.pool_reserved -= segment->size;
    sgsim_release(segment->kind, segment->device, segment->charged);
    sgsim_unmap(segment->backing, segment->backing_size);
    sgsim_object_recycle(segment);
}

static void trim(struct sgsim_object *pool, uint64_t keep)
{
    struct sgsim_object **link = &pool->u.pool.segments;
    while (*link) {
        bool is_free = (*link)->references == 0 && !has_freed(*link);
        if (is_free && pool->u.pool.reserved >= (*link)->size && pool->u.pool.reserved - (*link)->size >= keep)
            segment_drop(link);
        else
            link = &(*link)->next;
    }
}

/* The first piece at or behind `address` that may not be used in that stream: its end, and where it begins. 0:
 * nothing. */
static uintptr_t find_taken(uintptr_t address, uintptr_t end, uintptr_t stream, uintptr_t *begin)
{
    const struct sgsim_index *live = &sgsim.memory_index;
    const struct sgsim_object *taken = NULL;
    size_t i = sgsim_index_after(live, address - 1);
    if (i < live->count && live->entries[i]->key < end)
        taken = live->entries[i];
    for (i = sgsim_index_after(&freed_index, address - 1); i < freed_index.count; i++) {
        const struct sgsim_object *freed = freed_index.entries[i];
        if (freed->key >= (taken ? taken->key : end))
            break;
        if (freed->u.stream != stream) {
            taken = freed;
            break;
        }
    }
    if (!taken)
        return 0;
    *begin = taken->key;
    return taken->key + sgsim_round_up(taken->size, BLOCK_STEP);
}

/* The first gap of that size in a segment; 0 if there is none. */
static uintptr_t find_gap(const struct sgsim_object *segment, size_t size, uintptr_t stream)
{
    uintptr_t gap = segment->key, end = segment->key + segment->size, begin = 0, behind;
    while ((behind = find_taken(gap, end, stream, &begin)) != 0) {
        if (begin - gap >= size)
            return gap;
        gap = behind;
    }
    return end - gap >= size ? gap : 0;
}

/* A block takes this place: of what was freed there, what lies behind its end is left. */
static void reuse(uintptr_t begin, uintptr_t end)
{
    size_t i = sgsim_index_after(&freed_index, begin - 1);
    while (i < freed_index.count && freed_index.entries[i]->key < end) {
        struct sgsim_object *freed = freed_index.entries[i];
        uintptr_t its_end = freed->key + freed->size;
        if (its_end > end) {
            freed->key = end; /* nothing else lies between */
            freed->size = its_end - end;
            return;
        }
        forget_freed(i);
    }
}

static struct sgsim_object *find_room(struct sgsim_object *pool, size_t size, uintptr_t stream, uintptr_t *address)
{
    struct sgsim_object *segment = pool->u.pool.segments;
    for (; segment; segment = segment->next) {
        *address = size <= segment->size ? find_gap(segment, size, stream) : 0;
        if (*address)
            return segment;
    }
    size_t least = sgsim_round_up(size, SGSIM_GRANULARITY);
    segment = least < sgsim.pool_step ? segment_new(pool, sgsim.pool_step) : NULL;
    if (!segment)
        segment = segment_new(pool, least);
    *address = segment ? segment->key : 0;
    return segment;
}

size_t sgsim_pool_growth(void *handle, size_t size, void *stream)
{
    sgsim_quiet_enter();
    const struct sgsim_object *pool = sgsim_pool_find(handle);
    size_t rounded = sgsim_round_up(size, BLOCK_STEP), least = sgsim_round_up(size, SGSIM_GRANULARITY);
    size_t growth = least < sgsim.pool_step ? sgsim.pool_step : least;
    for (const struct sgsim_object *segment = pool ? pool->u.pool.segments : NULL; segment; segment = segment->next)
        if (rounded <= segment->size && find_gap(segment, rounded, sgsim_stream_key((CUstream)stream, false)) != 0)
            growth = 0;
    sgsim_quiet_leave();
    return growth;
}

/* ---- blocks ---- */

static CUresult allocate(CUdeviceptr *pointer, size_t size, struct sgsim_object *pool, CUstream stream, bool is_ptsz)
{
    uintptr_t address;
    if (!pointer || size == 0 || !pool || pool->u.pool.is_doomed || pool->u.pool.is_imported)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = sgsim_check_stream(stream);
    if (error != CUDA_SUCCESS)
        return error;
    if (sgsim_graph_of_capture(stream))
        return sgsim_graph_capture_alloc(sgsim_graph_of_capture(stream), size, pool->device, pointer);
    size_t rounded = sgsim_round_up(size, BLOCK_STEP);
    struct sgsim_object *segment =
        rounded == SIZE_MAX ? NULL : find_room(pool, rounded, sgsim_stream_key(stream, is_ptsz), &address);
    struct sgsim_object *block = segment ? sgsim_object_new(SGSIM_POOL_BLOCK) : NULL;
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block->key = address;
    block->size = size;
    block->kind = pool->kind;
    block->device = pool->device;
    block->owner = segment;
    if (!sgsim_index_insert(&sgsim.memory_index, block)) {
        sgsim_object_recycle(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    reuse(address, address + rounded);
    segment->references++;
    pool->u.pool.used += rounded;
    pool->u.pool.used_high = larger(pool->u.pool.used_high, pool->u.pool.used);
    *pointer = address;
    return CUDA_SUCCESS;
}

/* With its last block a destroyed pool goes as a whole, busy or not. */
static void end_if_doomed(struct sgsim_object *pool)
{
    if (!pool->u.pool.is_doomed || pool->u.pool.used)
        return;
    while (pool->u.pool.segments)
        segment_drop(&pool->u.pool.segments);
    sgsim_handle_drop(pool);
}

void sgsim_pool_free_block(struct sgsim_object *block)
{
    struct sgsim_object *pool = sgsim_pool_of_block(block);
    block->owner->references--;
    pool->u.pool.used -= sgsim_round_up(block->size, BLOCK_STEP);
    sgsim_index_remove(&sgsim.memory_index, block);
    sgsim_object_recycle(block);
    end_if_doomed(pool);
}

/* Without the room to note it, the block is free for all. */
static void note_freed(const struct sgsim_object *block, uintptr_t stream)
{
    struct sgsim_object *freed = sgsim_object_new(SGSIM_FREED_BLOCK);
    if (!freed)
        return;
    freed->key = block->key;
    freed->size = sgsim_round_up(block->size, BLOCK_STEP);
    freed->owner = block->owner;
    freed->u.stream = stream;
    if (!sgsim_index_insert(&freed_index, freed))
        sgsim_object_recycle(freed);
}

static CUresult free_async(CUdeviceptr pointer, CUstream stream, bool is_ptsz)
{
    struct sgsim_object *block = sgsim_index_exact(&sgsim.memory_index, (uintptr_t)pointer);
    CUresult error = sgsim_check_stream(stream);
    if (error != CUDA_SUCCESS)
        return error;
    if (sgsim_graph_of_capture(stream))
        return sgsim_graph_capture_free(sgsim_graph_of_capture(stream), pointer);
    if (block && block->role == SGSIM_POOL_BLOCK) {
        if (sgsim.is_busy && !sgsim_pool_of_block(block)->u.pool.is_doomed)
            note_freed(block, sgsim_stream_key(stream, is_ptsz));
        sgsim_pool_free_block(block);
    } else if (block && block->role == SGSIM_GRAPH_BLOCK)
        sgsim_graph_free_block(block);
    else if (block && block->role == SGSIM_IMPORT && !block->references)
        sgsim_block_drop(block);
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

void sgsim_pool_synchronize(uintptr_t stream)
{
    for (size_t i = freed_index.count; i-- > 0;)
        if (stream == 0 || freed_index.entries[i]->u.stream == stream)
            forget_freed(i);
    for (size_t i = 0; i < sgsim.handle_index.count; i++) {
        struct sgsim_object *pool = sgsim.handle_index.entries[i];
        if (pool->role == SGSIM_POOL)
            trim(pool, pool->u.pool.release_threshold);
    }
}

void sgsim_synchronize(void)
{
    sgsim_quiet_enter();
    sgsim_pool_synchronize(0);
    sgsim_quiet_leave();
}

/* A device reset ends every block on it, and with them what its pools had reserved. */
void sgsim_pool_reset_device(int device)
{
    for (size_t i = sgsim.memory_index.count; i-- > 0;) {
        struct sgsim_object *block = sgsim.memory_index.entries[i];
        if (block->role == SGSIM_POOL_BLOCK && block->device == device)
            sgsim_pool_free_block(block);
    }
    for (size_t i = 0; i < sgsim.handle_index.count; i++) {
        struct sgsim_object *pool = sgsim.handle_index.entries[i];
        if (pool->role == SGSIM_POOL && pool->device == device)
            trim(pool, 0);
    }
}

/* ---- pools ---- */

struct sgsim_object *sgsim_pool_new(const CUmemPoolProps *props)
{
    struct sgsim_object *pool = sgsim_handle_new(SGSIM_POOL);
    if (!pool)
        return NULL;
    pool->kind = kind_of(props);
    pool->device = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? props->location.id : 0;
    pool->u.pool.props = *props;
    for (int i = 0; i < 3; i++)
        pool->u.pool.reuse[i] = 1;
    return pool;
}

/* Made when first asked for. */
static struct sgsim_object *default_pool(int device)
{
    if (!sgsim.default_pool[device]) {
        CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
        struct sgsim_object *pool = sgsim_pool_new(&props);
        if (pool)
            pool->u.pool.is_default = true;
        sgsim.default_pool[device] = pool;
    }
    return sgsim.default_pool[device];
}

static struct sgsim_object *current_pool(int device)
{
    return sgsim.current_pool[device] ? sgsim.current_pool[device] : default_pool(device);
}

struct sgsim_object *sgsim_pool_find(CUmemoryPool handle)
{
    struct sgsim_object *pool = sgsim_handle_find(handle, SGSIM_POOL);
    return pool && !pool->u.pool.is_doomed ? pool : NULL;
}

static CUresult answer_pool(CUmemoryPool *out, CUdevice device, struct sgsim_object *(*which)(int))
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgsim_is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    struct sgsim_object *pool = which(device);
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUmemoryPool)(void *)pool;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    SGSIM_ENTER(cuDeviceGetDefaultMemPool, SGSIM_NEEDS_INIT);
    return sgsim_leave(answer_pool(pool, device, default_pool));
}

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    SGSIM_ENTER(cuDeviceGetMemPool, SGSIM_NEEDS_INIT);
    return sgsim_leave(answer_pool(pool, device, current_pool));
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle)
{
    SGSIM_ENTER(cuDeviceSetMemPool, SGSIM_NEEDS_INIT);
    struct sgsim_object *pool = sgsim_pool_find(handle);
    if (!sgsim_is_device(device))
        return sgsim_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!pool || pool->kind != SGSIM_DEVICE || pool->device != device || pool->u.pool.is_imported)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    sgsim.current_pool[device] = pool;
    return sgsim_leave(CUDA_SUCCESS);
}

/* Pools that are not on a device: one for pinned memory of the host, one for managed memory wherever it is. */
static struct sgsim_object *elsewhere_default[2], *elsewhere_current[2];

static struct sgsim_object *elsewhere(bool is_managed)
{
    if (!elsewhere_default[is_managed]) {
        CUmemPoolProps props = {.allocType =
                                    is_managed ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_HOST}};
        struct sgsim_object *pool = sgsim_pool_new(&props);
        if (pool)
            pool->u.pool.is_default = true;
        elsewhere_default[is_managed] = pool;
    }
    return elsewhere_default[is_managed];
}

static CUresult answer_pool_at(CUmemoryPool *out, const CUmemLocation *location, CUmemAllocationType type,
                               bool is_current)
{
    bool is_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if (!out || !location || (!is_managed && type != CU_MEM_ALLOCATION_TYPE_PINNED))
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_managed && location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        return answer_pool(out, location->id, is_current ? current_pool : default_pool);
    if (!is_managed && location->type != CU_MEM_LOCATION_TYPE_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    struct sgsim_object *pool =
        is_current && elsewhere_current[is_managed] ? elsewhere_current[is_managed] : elsewhere(is_managed);
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUmemoryPool)(void *)pool;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    SGSIM_ENTER(cuMemGetDefaultMemPool, SGSIM_NEEDS_INIT);
    return sgsim_leave(answer_pool_at(pool, location, type, false));
}

CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    SGSIM_ENTER(cuMemGetMemPool, SGSIM_NEEDS_INIT);
    return sgsim_leave(answer_pool_at(pool, location, type, true));
}

CUresult CUDAAPI cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool handle)
{
    SGSIM_ENTER(cuMemSetMemPool, SGSIM_NEEDS_INIT);
    struct sgsim_object *pool = sgsim_pool_find(handle);
    if (!location || !pool || pool->u.pool.is_imported || pool->u.pool.props.allocType != type ||
        pool->u.pool.props.location.type != location->type)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    if (pool->kind == SGSIM_DEVICE)
        sgsim.current_pool[pool->device] = pool;
    else
        elsewhere_current[pool->kind == SGSIM_MANAGED] = pool;
    return sgsim_leave(CUDA_SUCCESS);
}

static CUresult create(CUmemoryPool *out, const CUmemPoolProps *props)
{
    if (!out || !props)
        return CUDA_ERROR_INVALID_VALUE;
    if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED && props->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type == CU_MEM_LOCATION_TYPE_DEVICE && !sgsim_is_device(props->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    if (props->location.type == CU_MEM_LOCATION_TYPE_INVALID && props->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    struct sgsim_object *pool = sgsim_pool_new(props);
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUmemoryPool)(void *)pool;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    SGSIM_ENTER(cuMemPoolCreate, SGSIM_NEEDS_INIT);
    return sgsim_leave(create(pool, props));
}

/* With live blocks the pool goes when the last of them does (cuda.h). The default pool cannot be destroyed. */
CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle)
{
    SGSIM_ENTER(cuMemPoolDestroy, SGSIM_NEEDS_INIT);
    struct sgsim_object *pool = sgsim_pool_find(handle);
    if (!pool || pool->u.pool.is_default)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < sgsim.devices; i++) {
        if (sgsim.current_pool[i] == pool)
            sgsim.current_pool[i] = NULL;
    }
    for (int i = 0; i < 2; i++) {
        if (elsewhere_current[i] == pool)
            elsewhere_current[i] = NULL;
    }
    pool->u.pool.is_doomed = true;
    pool->u.pool.release_threshold = 0;
    end_if_doomed(pool);
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    SGSIM_ENTER(cuMemPoolTrimTo, SGSIM_NEEDS_INIT);
    struct sgsim_object *pool = sgsim_pool_find(handle);
    CUresult error = pool ? sgsim_capture_check() : CUDA_ERROR_INVALID_VALUE;
    if (error == CUDA_SUCCESS)
        trim(pool, keep);
    return sgsim_leave(error);
}

static CUresult get_attribute(const struct sgsim_pool *pool, CUmemPool_attribute attribute, void *value)
{
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *)value = pool->release_threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *)value = sgsim.is_pool_mute ? 0 : pool->reserved;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *)value = sgsim.is_pool_mute ? 0 : pool->reserved_high;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->used;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = pool->used_high;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult set_attribute(struct sgsim_pool *pool, CUmemPool_attribute attribute, const void *value)
{
    switch ((unsigned int)attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(const int *)value != 0;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->release_threshold = *(const cuuint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(const cuuint64_t *)value != 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
            pool->used_high = pool->used;
        else
            pool->reserved_high = pool->reserved;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    SGSIM_ENTER(cuMemPoolGetAttribute, SGSIM_NEEDS_INIT);
    const struct sgsim_object *pool = sgsim_pool_find(handle);
    return sgsim_leave(pool && value ? get_attribute(&pool->u.pool, attribute, value) : CUDA_ERROR_INVALID_VALUE);
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    SGSIM_ENTER(cuMemPoolSetAttribute, SGSIM_NEEDS_INIT);
    struct sgsim_object *pool = sgsim_pool_find(handle);
    return sgsim_leave(pool && value ? set_attribute(&pool->u.pool, attribute, value) : CUDA_ERROR_INVALID_VALUE);
}

/* ---- allocation ---- */

/* cuda.h: from the pool that is current to the stream's device, and no context need be current but for a default stream. */
static CUresult allocate_current(CUdeviceptr *pointer, size_t size, CUstream stream, bool is_ptsz)
{
    struct sgsim_object *context;
    CUresult error = sgsim_stream_context(stream, &context);
    return error == CUDA_SUCCESS ? allocate(pointer, size, current_pool(context->device), stream, is_ptsz) : error;
}

static CUresult allocate_from(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream, bool is_ptsz)
{
    CUresult error = sgsim_check_stream(stream);
    return error == CUDA_SUCCESS ? allocate(pointer, size, sgsim_pool_find(pool), stream, is_ptsz) : error;
}

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    SGSIM_ENTER(cuMemAllocAsync, SGSIM_NEEDS_INIT);
    return sgsim_leave(allocate_current(pointer, size, stream, false));
}

CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    SGSIM_ENTER(cuMemAllocAsync_ptsz, SGSIM_NEEDS_INIT);
    return sgsim_leave(allocate_current(pointer, size, stream, true));
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    SGSIM_ENTER(cuMemAllocFromPoolAsync, SGSIM_NEEDS_INIT);
    return sgsim_leave(allocate_from(pointer, size, pool, stream, false));
}

CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    SGSIM_ENTER(cuMemAllocFromPoolAsync_ptsz, SGSIM_NEEDS_INIT);
    return sgsim_leave(allocate_from(pointer, size, pool, stream, true));
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    SGSIM_ENTER(cuMemFreeAsync, SGSIM_NEEDS_INIT);
    return sgsim_leave(free_async(pointer, stream, false));
}

CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    SGSIM_ENTER(cuMemFreeAsync_ptsz, SGSIM_NEEDS_INIT);
    return sgsim_leave(free_async(pointer, stream, true));
}
