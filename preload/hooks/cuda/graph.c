/*
 * graph.c - the memory of CUDA graphs.
 *
 * Allocation nodes take nothing while a graph is made; memory comes when it is uploaded or launched, out of a store that
 * each device keeps for its graphs and that shrinks only when it is trimmed. So an executable graph is entered with what
 * its allocation nodes ask for together; before an upload or a launch that sum is judged as far as the store does not
 * hold it; after the call the store counts by the driver's own counter (cuDeviceGetGraphMemAttribute). Nodes that use the
 * same memory one after the other have the same address (CUDA C++ Programming Guide, "Graph Memory Nodes"), and an address counts
 * once. Graphs without
 * such nodes, the usual ones, are not entered: their launch costs one load, or one look-up where others have some.
 *
 * Graphs are of one device as a rule; one with nodes on several is judged on that of one of them, and counts on each.
 */
#include "hooks/cuda/call.h"

#include "base/compiler.h"
#include "base/syscall.h"
#include "hooks/cuda/lock.h"

#include <linux/futex.h>
#include <sys/mman.h>

/* Executable graphs with memory of their own. SG_BLOCK_SETTLED: it has been there once. Then `behind` has what its device's
 * store held after it. */
static struct sg_table executables, behind;
static uint32_t executable_count; /* (atomic) ever entered: until then nothing needs to be looked up */

static uint64_t store_bytes[SG_DEVICE_ROOM];   /* as charged; under sg_vmm_lock */
static uint32_t store_changes[SG_DEVICE_ROOM]; /* (atomic) how often that changed */
static uint32_t stores_used;                   /* (atomic) a bit for each device that may have such a store */
static uint64_t counted_on[SG_DEVICE_ROOM];    /* of the room of a store, by the calls under way; under sg_vmm_lock */
static uint32_t calls_over;                    /* (atomic) futex: counts those that are over */

/* ---- what a graph asks for ---------------------------------------------------------------------------------------- */

struct demand {
    struct sg_ranges *places; /* of the nodes whose address the driver tells; NULL: none yet */
    uint64_t bytes;           /* of the others */
    uint32_t device;
};

static void add_bytes(struct demand *demand, uintptr_t address, uint64_t bytes)
{
    if (address != 0 && demand->places == NULL) {
        void *fresh =
            sg_sys_mmap(NULL, sizeof *demand->places, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        demand->places = sg_is_error(fresh) ? NULL : fresh;
    }
    if (address == 0 || demand->places == NULL || bytes > UINTPTR_MAX - address ||
        sg_ranges_set(demand->places, address, address + bytes, SG_RANGE_COUNTED, 0) != 0)
        demand->bytes += bytes;
}

/* All of it; no more can be added. */
static uint64_t finish(struct demand *demand)
{
    if (demand->places != NULL) {
        demand->bytes += demand->places->counted_bytes;
        sg_ranges_destroy(demand->places);
        (void)sg_sys_munmap(demand->places, sizeof *demand->places);
    }
    return demand->bytes;
}

static void add_graph(CUgraph graph, struct demand *demand);

static void add_node(CUgraphNode node, struct demand *demand)
{
    SG_DRIVER(get_type, cuGraphNodeGetType);
    SG_DRIVER(get_params, cuGraphMemAllocNodeGetParams);
    SG_DRIVER(get_child, cuGraphChildGraphNodeGetGraph);
    CUgraphNodeType type;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {0};
    CUgraph child = NULL;
    if (get_type == NULL || get_type(node, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && get_child != NULL && get_child(node, &child) == CUDA_SUCCESS)
        add_graph(child, demand);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || get_params == NULL || get_params(node, &params) != CUDA_SUCCESS)
        return;
    add_bytes(demand, params.dptr, params.bytesize);
    if (params.poolProps.location.id < 0 || params.poolProps.location.id >= SG_DEVICE_ROOM)
        return;
    demand->device = (uint32_t)params.poolProps.location.id;
    sg_fetch_or(&stores_used, 1u << demand->device);
}

static void add_graph(CUgraph graph, struct demand *demand)
{
    SG_DRIVER(get_nodes, cuGraphGetNodes);
    size_t count = 0;
    if (get_nodes == NULL || get_nodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    size_t room = count * sizeof(void *), most = count;
    CUgraphNode *nodes = sg_sys_mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (sg_is_error(nodes)) {
        sg_ledger_count_fault();
        return;
    }
    if (get_nodes(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count && i < most; i++)
            add_node(nodes[i], demand);
    (void)sg_sys_munmap(nodes, room);
}

/* ---- the stores --------------------------------------------------------------------------------------------------- */

static bool get_attribute(uint32_t device, CUgraphMem_attribute attribute, uint64_t *bytes)
{
    SG_DRIVER(get, cuDeviceGetGraphMemAttribute);
    cuuint64_t value = 0;
    if (get == NULL || get((CUdevice)device, attribute, &value) != CUDA_SUCCESS)
        return false;
    *bytes = value;
    return true;
}

/* The lock is not held while the driver is asked; who was overtaken by a change asks again. */
static void refresh_store(uint32_t device)
{
    enum { TRIES = 3 }; /* the next call refreshes too */
    uint64_t now, *charged = &store_bytes[device];
    bool is_newest = false;
    for (unsigned i = 0; i < TRIES && !is_newest; i++) {
        struct sg_lock_state lock;
        uint32_t seen = sg_load_acquire(&store_changes[device]); /* pairs with the release below */
        if (!get_attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now))
            return;
        sg_lock_acquire(&sg_vmm_lock, &lock);
        is_newest = seen == store_changes[device];
        if (is_newest && now != *charged) {
            if (now > *charged)
                sg_ledger_charge(SG_DOMAIN_DEVICE, now - *charged);
            else
                sg_ledger_release(SG_DOMAIN_DEVICE, *charged - now);
            sg_ledger_charge_device(device, (int64_t)(now - *charged));
            *charged = now;
            sg_store_release(&store_changes[device], seen + 1);
        }
        sg_lock_release(&sg_vmm_lock, &lock);
    }
}

void sg_graph_memory_refresh(void)
{
    uint32_t used = sg_load_acquire(&stores_used);
    for (uint32_t device = 0; used != 0 && device < SG_DEVICE_ROOM; device++)
        if ((used & 1u << device) != 0)
            refresh_store(device);
}

/* What a launch makes the store grow. What a first one takes can be less than all nodes together; a later one takes what the
 * store has lost since, at most. Up to its own size of what is in use may be its own, of a launch still running: the next one
 * uses the same. */
static uint64_t growth_of(CUgraphExec exec, uint64_t block)
{
    uint64_t reserved, used, size = sg_block_size(block);
    bool has_been_there = (block & SG_BLOCK_SETTLED) != 0;
    if (!get_attribute(sg_block_device(block), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) ||
        !get_attribute(sg_block_device(block), CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used))
        return has_been_there ? 0 : size;
    if (has_been_there)
        used -= used < size ? used : size;
    uint64_t spare = reserved > used ? reserved - used : 0, growth = size > spare ? size - spare : 0;
    uint64_t then = has_been_there ? sg_table_find(&behind, (uintptr_t)exec) : 0;
    if (then == 0)
        return growth;
    uint64_t lost = sg_block_size(then) > reserved ? sg_block_size(then) - reserved : 0;
    return growth < lost ? growth : lost;
}

/*
 * The room of a store goes to one open call at a time: who counts on what another call counts on waits until that is
 * over, and asks the store anew. After three seconds it is judged by all that it needs. Answers what the store
 * grows.
 */
static uint64_t begin_claim(CUgraphExec exec, uint64_t block)
{
    const struct timespec step = {0, 100000000};
    uint64_t deadline = sg_sys_clock_ns(CLOCK_MONOTONIC) + UINT64_C(3000000000);
    uint64_t *others = &counted_on[sg_block_device(block)];
    for (;;) {
        struct sg_lock_state lock;
        uint32_t seen = sg_load_acquire(&calls_over); /* pairs with the add in end_claim: what follows is no older */
        uint64_t growth = growth_of(exec, block);
        bool is_its_own = (block & SG_BLOCK_SETTLED) != 0 && growth == 0; /* what it had before */
        uint64_t room = is_its_own ? 0 : sg_block_size(block) - growth;
        sg_lock_acquire(&sg_vmm_lock, &lock);
        bool is_late = sg_sys_clock_ns(CLOCK_MONOTONIC) >= deadline;
        bool is_mine = room == 0 || (*others == 0 && seen == sg_load(&calls_over));
        if (room != 0 && (is_mine || is_late)) {
            *others += room;
            sg_self.open.room_bytes = room;
            sg_self.open.room_device = sg_block_device(block);
            sg_thread_hold_cancel();
        }
        sg_lock_release(&sg_vmm_lock, &lock);
        if (is_mine || is_late)
            return is_mine ? growth : sg_block_size(block);
        (void)sg_sys_futex(&calls_over, FUTEX_WAIT_PRIVATE, seen, &step);
    }
}

void sg_graph_end_claim(void)
{
    struct sg_lock_state lock;
    uint64_t room = sg_self.open.room_bytes;
    if (SG_LIKELY(room == 0))
        return;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    counted_on[sg_self.open.room_device] -= room;
    sg_self.open.room_bytes = 0;
    sg_fetch_add(&calls_over, 1u);
    sg_thread_let_cancel();
    sg_lock_release(&sg_vmm_lock, &lock);
    (void)sg_sys_futex(&calls_over, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL);
}

/* After a successful upload or launch. */
static void note_store(CUgraphExec exec, uint64_t block)
{
    uint64_t reserved;
    uint32_t device = sg_block_device(block);
    if (get_attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) && reserved != 0 &&
        sg_table_insert(&behind, (uintptr_t)exec, sg_block(reserved, SG_DOMAIN_DEVICE, device), NULL) != 0)
        sg_ledger_count_fault();
}

/* ---- executable graphs -------------------------------------------------------------------------------------------- */

/* 0: takes no memory of its own, or is not for us to look at. */
static uint64_t block_of(CUgraph graph)
{
    struct demand demand = {NULL, 0, 0};
    if (graph == NULL)
        return 0;
    add_graph(graph, &demand);
    uint64_t bytes = finish(&demand);
    return bytes == 0 ? 0 : sg_block(bytes, SG_DOMAIN_DEVICE, demand.device);
}

static void enter(CUgraphExec exec, uint64_t block)
{
    if (block == 0 && sg_load_acquire(&executable_count) == 0)
        return;
    (void)sg_table_remove(&executables, (uintptr_t)exec); /* of one that went with its context */
    (void)sg_table_remove(&behind, (uintptr_t)exec);
    if (block == 0)
        return;
    sg_fetch_add(&executable_count, 1u);
    if (sg_table_insert(&executables, (uintptr_t)exec, block, NULL) != 0)
        sg_ledger_count_fault();
}

#define INSTANTIATE(name, exec, graph, is_uploaded, ...) \
    struct sg_cuda_call call; \
    sg_cuda_open(&call); \
    uint64_t block = (exec) != NULL && call.is_counted ? block_of(graph) : 0; \
    uint64_t growth = block != 0 && (is_uploaded) ? begin_claim(NULL, block) : 0; \
    if (!sg_cuda_begin_at_open(&call, SG_HOOK_##name, (CUdevice)sg_block_device(block), growth)) \
        return call.answer; \
    CUresult result = SG_DRIVER_CALL(name, __VA_ARGS__); \
    if (result == CUDA_SUCCESS && (exec) != NULL) \
        enter(*(exec), block | ((is_uploaded) && block != 0 ? SG_BLOCK_SETTLED : 0)); \
    sg_graph_memory_refresh(); \
    sg_cuda_end(&call, result == CUDA_SUCCESS ? growth : 0); \
    return result

SG_EXPORT CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                                              char *logBuffer, size_t bufferSize)
{
    INSTANTIATE(cuGraphInstantiate, phGraphExec, hGraph, false, phGraphExec, hGraph, phErrorNode, logBuffer,
                bufferSize);
}

SG_EXPORT CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                                                 char *logBuffer, size_t bufferSize)
{
    INSTANTIATE(cuGraphInstantiate_v2, phGraphExec, hGraph, false, phGraphExec, hGraph, phErrorNode, logBuffer,
                bufferSize);
}

SG_EXPORT CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                                       unsigned long long flags)
{
    INSTANTIATE(cuGraphInstantiateWithFlags, phGraphExec, hGraph, false, phGraphExec, hGraph, flags);
}

#define IS_UPLOADED(params) ((params) != NULL && ((params)->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0)

SG_EXPORT CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                                        CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    INSTANTIATE(cuGraphInstantiateWithParams, phGraphExec, hGraph, IS_UPLOADED(instantiateParams), phGraphExec, hGraph,
                instantiateParams);
}

SG_EXPORT CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec, CUgraph hGraph,
                                                             CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    INSTANTIATE(cuGraphInstantiateWithParams_ptsz, phGraphExec, hGraph, IS_UPLOADED(instantiateParams), phGraphExec,
                hGraph, instantiateParams);
}

#define UPLOAD(name, exec, stream) \
    uint64_t block = sg_load_acquire(&executable_count) == 0 ? 0 : sg_table_find(&executables, (uintptr_t)(exec)); \
    if (block == 0) { \
        SG_DRIVER_INSIDE(name, exec, stream); \
        return result; \
    } \
    struct sg_cuda_call call; \
    sg_cuda_open(&call); \
    if (!call.is_counted) \
        return SG_DRIVER_CALL(name, exec, stream); \
    uint64_t growth = begin_claim(exec, block); \
    if (!sg_cuda_begin_at_open(&call, SG_HOOK_##name, (CUdevice)sg_block_device(block), growth)) \
        return call.answer; \
    CUresult result = SG_DRIVER_CALL(name, exec, stream); \
    if (result == CUDA_SUCCESS && (block & SG_BLOCK_SETTLED) == 0) \
        (void)sg_table_mark(&executables, (uintptr_t)(exec), block, SG_BLOCK_SETTLED); \
    if (result == CUDA_SUCCESS) \
        note_store(exec, block); \
    sg_graph_memory_refresh(); \
    sg_cuda_end(&call, result == CUDA_SUCCESS ? growth : 0); \
    return result

SG_EXPORT CUresult CUDAAPI cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
    UPLOAD(cuGraphUpload, hGraphExec, hStream);
}

SG_EXPORT CUresult CUDAAPI cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    UPLOAD(cuGraphUpload_ptsz, hGraphExec, hStream);
}

SG_EXPORT CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
    UPLOAD(cuGraphLaunch, hGraphExec, hStream);
}

SG_EXPORT CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    UPLOAD(cuGraphLaunch_ptsz, hGraphExec, hStream);
}

/* The store keeps what the graph had, until it is trimmed. */
SG_EXPORT CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    bool is_ours = sg_load_acquire(&executable_count) != 0 && sg_cuda_is_ours();
    uint64_t block = is_ours ? sg_table_remove(&executables, (uintptr_t)hGraphExec) : 0;
    SG_DRIVER_INSIDE(cuGraphExecDestroy, hGraphExec);
    if (block == 0)
        return result;
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED &&
        sg_table_insert(&executables, (uintptr_t)hGraphExec, block, NULL) != 0)
        sg_ledger_count_fault();
    if (result == CUDA_SUCCESS)
        (void)sg_table_remove(&behind, (uintptr_t)hGraphExec);
    sg_graph_memory_refresh();
    return result;
}

SG_EXPORT CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device)
{
    SG_DRIVER_THEN(sg_graph_memory_refresh(), cuDeviceGraphMemTrim, device);
}
