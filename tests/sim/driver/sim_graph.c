/*
 * sim_graph.c - graphs of the simulated driver, for the memory they take: allocation, free, child and empty nodes.
 *
 * A node gets its address when it is made: one that comes behind a free node of the same graph gets the address of what
 * that frees, if it is large enough, and their memory is the same. A device has one store of memory for graphs. An upload
 * or a launch makes it as large as what is in use there and all addresses of the graph's allocation nodes together that
 * are not allocated yet, each rounded up to 2 MiB; it shrinks by cuDeviceGraphMemTrim only, to what is in use. In use is what a launch allocated and neither the graph itself nor anybody
 * since has freed. The ledger books the store as device memory.
 */
#define _GNU_SOURCE
#include "sim_core.h"

#include <string.h>
#include <sys/mman.h>

static uint64_t reserved[SGSIM_MAX_DEVICES], used[SGSIM_MAX_DEVICES];

/* A graph's nodes hang on its `next`; of a node `flags` is the type, `size` and `backing` what it allocates or frees and
 * where, and `backing` of a child node its graph. An executable graph's `owner` is its graph. */
static struct sgsim_object *find_graph(CUgraph handle)
{
    return sgsim_handle_find(handle, SGSIM_GRAPH);
}

static struct sgsim_object *add_node(struct sgsim_object *graph, CUgraphNodeType type, const CUgraphNode *dependencies,
                                     size_t count, CUgraphNode *out)
{
    struct sgsim_object *node = count <= SGSIM_DEPENDENCIES ? sgsim_handle_new(SGSIM_GRAPH_NODE) : NULL;
    if (!node)
        return NULL;
    for (size_t i = 0; i < count; i++)
        node->u.node.on[i] = sgsim_handle_find(dependencies[i], SGSIM_GRAPH_NODE);
    node->u.node.count = count;
    node->flags = type;
    node->owner = graph;
    node->next = graph->next;
    graph->next = node;
    *out = (CUgraphNode)(void *)node;
    return node;
}

CUresult CUDAAPI cuGraphCreate(CUgraph *out, unsigned int flags)
{
    SGSIM_ENTER(cuGraphCreate, SGSIM_NEEDS_INIT);
    struct sgsim_object *graph = out && flags == 0 ? sgsim_handle_new(SGSIM_GRAPH) : NULL;
    if (!graph)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    *out = (CUgraph)(void *)graph;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphDestroy(CUgraph handle)
{
    SGSIM_ENTER(cuGraphDestroy, SGSIM_NEEDS_INIT);
    struct sgsim_object *graph = find_graph(handle);
    if (!graph)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    while (graph->next) {
        struct sgsim_object *node = graph->next;
        graph->next = node->next;
        sgsim_handle_drop(node);
    }
    sgsim_handle_drop(graph);
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode *out, CUgraph handle, const CUgraphNode *dependencies, size_t count)
{
    SGSIM_ENTER(cuGraphAddEmptyNode, SGSIM_NEEDS_INIT);
    struct sgsim_object *graph = find_graph(handle);
    bool is_made = out && graph && add_node(graph, CU_GRAPH_NODE_TYPE_EMPTY, dependencies, count, out);
    return sgsim_leave(is_made ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph handle, const CUgraphNode *dependencies,
                                          size_t count, CUgraph child_handle)
{
    SGSIM_ENTER(cuGraphAddChildGraphNode, SGSIM_NEEDS_INIT);
    struct sgsim_object *graph = find_graph(handle), *child = find_graph(child_handle);
    struct sgsim_object *node =
        out && graph && child ? add_node(graph, CU_GRAPH_NODE_TYPE_GRAPH, dependencies, count, out) : NULL;
    if (!node)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    node->backing = (uintptr_t)child;
    return sgsim_leave(CUDA_SUCCESS);
}

static bool is_behind(const struct sgsim_object *node, const struct sgsim_object *other)
{
    if (node == other)
        return true;
    for (size_t i = 0; node && i < node->u.node.count; i++)
        if (is_behind(node->u.node.on[i], other))
            return true;
    return false;
}

static size_t span_at(const struct sgsim_object *graph, uintptr_t address)
{
    size_t span = 0;
    for (const struct sgsim_object *node = graph->next; node; node = node->next)
        if (node->flags == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->backing == address && node->size > span)
            span = node->size;
    return sgsim_round_up(span, SGSIM_GRANULARITY);
}

/* Whether that free node comes before the new one, and nothing has taken its address since. */
static bool is_free_for(const struct sgsim_object *freed, const struct sgsim_object *fresh)
{
    bool is_free = freed->flags == CU_GRAPH_NODE_TYPE_MEM_FREE && is_behind(fresh, freed);
    for (const struct sgsim_object *node = fresh->next; is_free && node; node = node->next)
        is_free =
            node->flags != CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->backing != freed->backing || !is_behind(node, freed);
    return is_free;
}

/* The address is fixed here; no memory is behind it before a launch. */
static struct sgsim_object *add_alloc(struct sgsim_object *graph, size_t size, int device,
                                      const CUgraphNode *dependencies, size_t count, CUgraphNode *out)
{
    struct sgsim_object *node = add_node(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, dependencies, count, out);
    if (!node)
        return NULL;
    for (const struct sgsim_object *other = node->next; other && !node->backing; other = other->next)
        if (is_free_for(other, node) && span_at(graph, other->backing) >= size)
            node->backing = other->backing;
    if (!node->backing)
        node->backing = sgsim_map(sgsim_round_up(size, SGSIM_GRANULARITY), PROT_NONE, 0);
    node->size = size;
    node->device = device;
    return node->backing ? node : NULL;
}

CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph handle, const CUgraphNode *dependencies, size_t count,
                                        CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    SGSIM_ENTER(cuGraphAddMemAllocNode, SGSIM_NEEDS_CONTEXT);
    struct sgsim_object *graph = find_graph(handle);
    if (!out || !graph || !params || params->bytesize == 0 || !sgsim_is_device(params->poolProps.location.id) ||
        params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    struct sgsim_object *node =
        add_alloc(graph, params->bytesize, params->poolProps.location.id, dependencies, count, out);
    if (!node)
        return sgsim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    params->dptr = node->backing;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph handle, const CUgraphNode *dependencies, size_t count,
                                       CUdeviceptr pointer)
{
    SGSIM_ENTER(cuGraphAddMemFreeNode, SGSIM_NEEDS_CONTEXT);
    struct sgsim_object *graph = find_graph(handle);
    struct sgsim_object *node =
        out && graph ? add_node(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, dependencies, count, out) : NULL;
    if (!node)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    node->backing = (uintptr_t)pointer;
    return sgsim_leave(CUDA_SUCCESS);
}

/* ---- captured nodes (sim_capture.c): each comes behind the one before ---- */

CUresult sgsim_graph_capture_alloc(struct sgsim_object *graph, size_t size, int device, CUdeviceptr *pointer)
{
    CUgraphNode handle;
    CUgraphNode last = (CUgraphNode)(void *)graph->next;
    const struct sgsim_object *node = add_alloc(graph, size, device, &last, last != NULL, &handle);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = node->backing;
    return CUDA_SUCCESS;
}

CUresult sgsim_graph_capture_free(struct sgsim_object *graph, CUdeviceptr pointer)
{
    CUgraphNode handle;
    CUgraphNode last = (CUgraphNode)(void *)graph->next;
    struct sgsim_object *node = add_node(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, &last, last != NULL, &handle);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->backing = (uintptr_t)pointer;
    return CUDA_SUCCESS;
}

/* ---- questions ---- */

CUresult CUDAAPI cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    SGSIM_ENTER(cuGraphGetNodes, SGSIM_NEEDS_INIT);
    const struct sgsim_object *graph = find_graph(handle);
    size_t room = nodes && count ? *count : 0, found = 0;
    if (!graph || !count)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    for (struct sgsim_object *node = graph->next; node; node = node->next, found++) {
        if (found < room)
            nodes[found] = (CUgraphNode)(void *)node;
    }
    *count = nodes && found > room ? room : found;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type)
{
    SGSIM_ENTER(cuGraphNodeGetType, SGSIM_NEEDS_INIT);
    const struct sgsim_object *node = sgsim_handle_find(handle, SGSIM_GRAPH_NODE);
    if (!node || !type)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    *type = (CUgraphNodeType)node->flags;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph *graph)
{
    SGSIM_ENTER(cuGraphChildGraphNodeGetGraph, SGSIM_NEEDS_INIT);
    const struct sgsim_object *node = sgsim_handle_find(handle, SGSIM_GRAPH_NODE);
    if (!node || node->flags != CU_GRAPH_NODE_TYPE_GRAPH || !graph)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    *graph = (CUgraph)node->backing;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    SGSIM_ENTER(cuGraphMemAllocNodeGetParams, SGSIM_NEEDS_INIT);
    const struct sgsim_object *node = sgsim_handle_find(handle, SGSIM_GRAPH_NODE);
    if (!node || node->flags != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !params)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    memset(params, 0, sizeof *params);
    params->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    params->poolProps.location.id = node->device;
    params->bytesize = node->size;
    params->dptr = node->backing;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    SGSIM_ENTER(cuDeviceGetGraphMemAttribute, SGSIM_NEEDS_INIT);
    bool is_used = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT;
    if (!sgsim_is_device(device))
        return sgsim_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!value || (!is_used && attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT))
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    *(cuuint64_t *)value = is_used ? used[device] : reserved[device];
    return sgsim_leave(CUDA_SUCCESS);
}

/* ---- the store ---- */

static void shrink(int device, uint64_t keep)
{
    sgsim_release(SGSIM_DEVICE, device, reserved[device] - keep);
    reserved[device] = keep;
}

void sgsim_graph_free_block(struct sgsim_object *block)
{
    used[block->device] -= sgsim_round_up(block->size, SGSIM_GRANULARITY);
    sgsim_index_remove(&sgsim.memory_index, block);
    sgsim_object_recycle(block);
}

void sgsim_graph_reset_device(int device)
{
    for (size_t i = sgsim.memory_index.count; i-- > 0;) {
        struct sgsim_object *block = sgsim.memory_index.entries[i];
        if (block->role == SGSIM_GRAPH_BLOCK && block->device == device)
            sgsim_graph_free_block(block);
    }
    shrink(device, 0);
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device)
{
    SGSIM_ENTER(cuDeviceGraphMemTrim, SGSIM_NEEDS_INIT);
    if (!sgsim_is_device(device))
        return sgsim_leave(CUDA_ERROR_INVALID_DEVICE);
    shrink(device, used[device]);
    return sgsim_leave(CUDA_SUCCESS);
}

/* ---- executable graphs ---- */

static bool is_first_at_its_address(const struct sgsim_object *node)
{
    const struct sgsim_object *older = node->next; /* the newest comes first */
    while (older && (older->flags != CU_GRAPH_NODE_TYPE_MEM_ALLOC || older->backing != node->backing))
        older = older->next;
    return older == NULL;
}

static uint64_t bytes_on(const struct sgsim_object *graph, int device)
{
    uint64_t sum = 0;
    for (const struct sgsim_object *node = graph->next; node; node = node->next) {
        if (node->flags == CU_GRAPH_NODE_TYPE_GRAPH)
            sum += bytes_on((const struct sgsim_object *)node->backing, device);
        else if (node->flags == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->device == device &&
                 is_first_at_its_address(node) && !sgsim_index_exact(&sgsim.memory_index, node->backing))
            sum += span_at(graph, node->backing);
    }
    return sum;
}

static CUresult upload(const struct sgsim_object *exec)
{
    for (int device = 0; device < sgsim.devices; device++) {
        uint64_t needed = bytes_on(exec->owner, device) + used[device];
        if (needed <= reserved[device])
            continue;
        CUresult error = sgsim_charge(SGSIM_DEVICE, device, needed - reserved[device]);
        if (error != CUDA_SUCCESS)
            return error;
        reserved[device] = needed;
    }
    return CUDA_SUCCESS;
}

static bool is_freed_in(const struct sgsim_object *graph, uintptr_t address)
{
    int taken = 0;
    for (const struct sgsim_object *node = graph->next; node; node = node->next)
        if (node->backing == address)
            taken += (node->flags == CU_GRAPH_NODE_TYPE_MEM_ALLOC) - (node->flags == CU_GRAPH_NODE_TYPE_MEM_FREE);
    return taken <= 0;
}

/* What a launch allocates and does not free is a block from then on. Allocated already: it is the same one. */
static CUresult run(const struct sgsim_object *graph)
{
    for (const struct sgsim_object *node = graph->next; node; node = node->next) {
        if (node->flags == CU_GRAPH_NODE_TYPE_GRAPH) {
            CUresult error = run((const struct sgsim_object *)node->backing);
            if (error != CUDA_SUCCESS)
                return error;
        }
        if (node->flags != CU_GRAPH_NODE_TYPE_MEM_ALLOC || is_freed_in(graph, node->backing) ||
            sgsim_index_exact(&sgsim.memory_index, node->backing))
            continue;
        struct sgsim_object *block = sgsim_object_new(SGSIM_GRAPH_BLOCK);
        if (!block)
            return CUDA_ERROR_OUT_OF_MEMORY;
        block->key = node->backing;
        block->size = node->size;
        block->kind = SGSIM_DEVICE;
        block->device = node->device;
        if (!sgsim_index_insert(&sgsim.memory_index, block))
            return CUDA_ERROR_OUT_OF_MEMORY;
        used[block->device] += sgsim_round_up(block->size, SGSIM_GRANULARITY);
    }
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *out, CUgraph handle, bool is_uploaded)
{
    struct sgsim_object *graph = find_graph(handle);
    if (!out || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    struct sgsim_object *exec = sgsim_handle_new(SGSIM_GRAPH_EXEC);
    if (!exec)
        return CUDA_ERROR_OUT_OF_MEMORY;
    exec->owner = graph;
    CUresult error = is_uploaded ? upload(exec) : CUDA_SUCCESS;
    if (error == CUDA_SUCCESS)
        *out = (CUgraphExec)(void *)exec;
    else
        sgsim_handle_drop(exec);
    return error;
}

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t room)
{
    SGSIM_ENTER(cuGraphInstantiate, SGSIM_NEEDS_CONTEXT);
    (void)error_node;
    (void)log;
    (void)room;
    return sgsim_leave(instantiate(exec, graph, false));
}

CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                                       size_t room)
{
    SGSIM_ENTER(cuGraphInstantiate_v2, SGSIM_NEEDS_CONTEXT);
    (void)error_node;
    (void)log;
    (void)room;
    return sgsim_leave(instantiate(exec, graph, false));
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    SGSIM_ENTER(cuGraphInstantiateWithFlags, SGSIM_NEEDS_CONTEXT);
    (void)flags;
    return sgsim_leave(instantiate(exec, graph, false));
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    SGSIM_ENTER(cuGraphInstantiateWithParams, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(params ? instantiate(exec, graph, params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
                              : CUDA_ERROR_INVALID_VALUE);
}

CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    SGSIM_ENTER(cuGraphInstantiateWithParams_ptsz, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(params ? instantiate(exec, graph, params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
                              : CUDA_ERROR_INVALID_VALUE);
}

static CUresult upload_and_run(CUgraphExec handle, CUstream stream, bool is_run)
{
    const struct sgsim_object *exec = sgsim_handle_find(handle, SGSIM_GRAPH_EXEC);
    CUresult error = sgsim_check_stream(stream);
    if (error != CUDA_SUCCESS)
        return error;
    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    error = upload(exec);
    return error == CUDA_SUCCESS && is_run ? run(exec->owner) : error;
}

CUresult CUDAAPI cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    SGSIM_ENTER(cuGraphUpload, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(upload_and_run(exec, stream, false));
}

CUresult CUDAAPI cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    SGSIM_ENTER(cuGraphUpload_ptsz, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(upload_and_run(exec, stream, false));
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    SGSIM_ENTER(cuGraphLaunch, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(upload_and_run(exec, stream, true));
}

CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    SGSIM_ENTER(cuGraphLaunch_ptsz, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(upload_and_run(exec, stream, true));
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle)
{
    SGSIM_ENTER(cuGraphExecDestroy, SGSIM_NEEDS_INIT);
    struct sgsim_object *exec = sgsim_handle_find(handle, SGSIM_GRAPH_EXEC);
    if (!exec)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    sgsim_handle_drop(exec);
    return sgsim_leave(CUDA_SUCCESS);
}
