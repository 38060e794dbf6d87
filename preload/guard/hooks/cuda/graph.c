/*
 * graph.c - see graph.h.
 */
#include "hooks/cuda/graph.h"

#include "account/ledger.h"
#include "base/range_map.h"
#include "account/tracker.h"
#include "base/compiler.h"
#include "base/clock.h"
#include "base/syscall.h"
#include "hooks/cuda/lock.h"

#include <linux/futex.h>
#include <sys/mman.h>

/* Executable graphs with allocation nodes. SG_BLOCK_SETTLED: the graph was uploaded or launched before; `pool_after`
 * then has the size of its device's graph pool after that. */
static struct sg_block_table executables, pool_after;
uint32_t sg_graph_count;

static uint64_t charged_bytes[SG_DEVICE_CAPACITY];  /* of each graph pool; under sg_cuda_lock */
static uint32_t charge_changes[SG_DEVICE_CAPACITY]; /* (atomic) number of changes of charged_bytes */
static uint32_t pools_used;                         /* (atomic) one bit for each device that may have a graph pool */
static uint64_t claimed_bytes[SG_DEVICE_CAPACITY]; /* free bytes of a graph pool claimed by calls; under sg_cuda_lock */
static uint32_t claims_ended;                      /* (atomic) futex: counts the claims that have ended */

/* ---- the memory that a graph requests ---------------------------------------------------------------------------- */

struct demand {
    struct sg_range_map *ranges; /* of the nodes whose address the driver gives; NULL: none yet */
    uint64_t bytes;              /* of the other nodes */
    uint32_t device;
};

/* Adds one node. Bytes at a known address count once, however many nodes use the address. */
static void add_bytes(struct demand *demand, uintptr_t address, uint64_t bytes)
{
    if (address != 0 && demand->ranges == NULL) {
        void *fresh =
            sg_sys_mmap(NULL, sizeof *demand->ranges, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        demand->ranges = sg_is_error(fresh) ? NULL : fresh;
    }
    if (address == 0 || demand->ranges == NULL || bytes > UINTPTR_MAX - address ||
        sg_range_map_set(demand->ranges, address, address + bytes, SG_RANGE_COUNTED, 0) != 0)
        demand->bytes += bytes;
}

/* Returns the sum and frees the ranges. Nothing may be added afterwards. */
static uint64_t finish(struct demand *demand)
{
    if (demand->ranges != NULL) {
        demand->bytes += demand->ranges->counted_bytes;
        sg_range_map_destroy(demand->ranges);
        (void)sg_sys_munmap(demand->ranges, sizeof *demand->ranges);
    }
    return demand->bytes;
}

static void add_graph(CUgraph graph, struct demand *demand);

/* Adds an allocation node, or all nodes of a child graph. */
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
    if (params.poolProps.location.id < 0 || params.poolProps.location.id >= SG_DEVICE_CAPACITY)
        return;
    demand->device = (uint32_t)params.poolProps.location.id;
    sg_fetch_or(&pools_used, 1u << demand->device);
}

static void add_graph(CUgraph graph, struct demand *demand)
{
    SG_DRIVER(get_nodes, cuGraphGetNodes);
    size_t count = 0;
    if (get_nodes == NULL || get_nodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    size_t bytes = count * sizeof(void *), capacity = count;
    CUgraphNode *nodes = sg_sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (sg_is_error(nodes)) {
        sg_ledger_count_fault();
        return;
    }
    if (get_nodes(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count && i < capacity; i++)
            add_node(nodes[i], demand);
    (void)sg_sys_munmap(nodes, bytes);
}

/* ---- the graph pools --------------------------------------------------------------------------------------------- */

/* Queries an attribute of a device's graph pool, in bytes. False: the driver gives none. */
static bool get_attribute(uint32_t device, CUgraphMem_attribute attribute, uint64_t *bytes)
{
    SG_DRIVER(get, cuDeviceGetGraphMemAttribute);
    cuuint64_t value = 0;
    if (get == NULL || get((CUdevice)device, attribute, &value) != CUDA_SUCCESS)
        return false;
    *bytes = value;
    return true;
}

/* The lock is not held during the query. If another thread has changed the charge meanwhile, the query is repeated. */
static void refresh_pool(uint32_t device)
{
    enum { TRIES = 3 }; /* the next call refreshes too */
    uint64_t now, *charged = &charged_bytes[device];
    bool is_newest = false;
    for (unsigned i = 0; i < TRIES && !is_newest; i++) {
        struct sg_lock_state lock;
        uint32_t seen = sg_load_acquire(&charge_changes[device]); /* pairs with the release below */
        if (!get_attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now))
            return;
        sg_lock_acquire(&sg_cuda_lock, &lock);
        is_newest = seen == charge_changes[device];
        if (is_newest && now != *charged) {
            if (now > *charged)
                sg_ledger_charge(SG_DOMAIN_DEVICE, now - *charged);
            else
                sg_ledger_release(SG_DOMAIN_DEVICE, *charged - now);
            sg_ledger_charge_device(device, (int64_t)(now - *charged));
            *charged = now;
            sg_store_release(&charge_changes[device], seen + 1);
        }
        sg_lock_release(&sg_cuda_lock, &lock);
    }
}

void sg_graph_memory_refresh(void)
{
    uint32_t used = sg_load_acquire(&pools_used);
    for (uint32_t device = 0; used != 0 && device < SG_DEVICE_CAPACITY; device++)
        if ((used & 1u << device) != 0)
            refresh_pool(device);
}

/* The growth of the graph pool by a launch, at most. A first launch can take less than the sum of all nodes. A later
 * launch takes at most what the pool has lost since the last one. A launch that is still running may use up to the
 * graph's size of the used bytes; the next launch uses the same memory, so these bytes count as free. */
static uint64_t growth_of(CUgraphExec exec, uint64_t block)
{
    uint64_t reserved, used, size = sg_block_size(block);
    bool was_launched = (block & SG_BLOCK_SETTLED) != 0;
    if (!get_attribute(sg_block_device(block), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) ||
        !get_attribute(sg_block_device(block), CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used))
        return was_launched ? 0 : size;
    if (was_launched)
        used -= used < size ? used : size;
    uint64_t spare = reserved > used ? reserved - used : 0, growth = size > spare ? size - spare : 0;
    uint64_t pool_then = was_launched ? sg_block_table_find(&pool_after, (uintptr_t)exec) : 0;
    if (pool_then == 0)
        return growth;
    uint64_t lost = sg_block_size(pool_then) > reserved ? sg_block_size(pool_then) - reserved : 0;
    return growth < lost ? growth : lost;
}

uint64_t sg_graph_begin_claim(CUgraphExec exec, uint64_t block)
{
    const struct timespec step = {0, 100000000};
    uint64_t deadline = sg_clock_ns(CLOCK_MONOTONIC) + UINT64_C(3000000000);
    uint64_t *claimed = &claimed_bytes[sg_block_device(block)];
    for (;;) {
        struct sg_lock_state lock;
        /* pairs with the add in sg_graph_end_claim: the query below is no older */
        uint32_t seen = sg_load_acquire(&claims_ended);
        uint64_t growth = growth_of(exec, block);
        bool reuses_own = (block & SG_BLOCK_SETTLED) != 0 && growth == 0; /* the memory of its last launch */
        uint64_t claim = reuses_own ? 0 : sg_block_size(block) - growth;
        sg_lock_acquire(&sg_cuda_lock, &lock);
        bool is_late = sg_clock_ns(CLOCK_MONOTONIC) >= deadline;
        bool may_go = claim == 0 || (*claimed == 0 && seen == sg_load(&claims_ended));
        if (claim != 0 && (may_go || is_late)) {
            *claimed += claim;
            sg_self.open.headroom_bytes = claim;
            sg_self.open.headroom_device = sg_block_device(block);
            sg_thread_hold_cancel();
        }
        sg_lock_release(&sg_cuda_lock, &lock);
        if (may_go || is_late)
            return may_go ? growth : sg_block_size(block);
        (void)sg_sys_futex(&claims_ended, FUTEX_WAIT_PRIVATE, seen, &step);
    }
}

void sg_graph_end_claim(void)
{
    struct sg_lock_state lock;
    uint64_t claim = sg_self.open.headroom_bytes;
    if (SG_LIKELY(claim == 0))
        return;
    sg_lock_acquire(&sg_cuda_lock, &lock);
    claimed_bytes[sg_self.open.headroom_device] -= claim;
    sg_self.open.headroom_bytes = 0;
    sg_fetch_add(&claims_ended, 1u);
    sg_thread_let_cancel();
    sg_lock_release(&sg_cuda_lock, &lock);
    (void)sg_sys_futex(&claims_ended, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL);
}

void sg_graph_was_there(CUgraphExec exec, uint64_t block)
{
    uint64_t reserved;
    uint32_t device = sg_block_device(block);
    if ((block & SG_BLOCK_SETTLED) == 0)
        (void)sg_block_table_mark(&executables, (uintptr_t)exec, block, SG_BLOCK_SETTLED);
    if (get_attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) && reserved != 0 &&
        sg_block_table_insert(&pool_after, (uintptr_t)exec, sg_block(reserved, SG_DOMAIN_DEVICE, device), NULL) != 0)
        sg_ledger_count_fault();
}

/* ---- executable graphs ------------------------------------------------------------------------------------------- */

uint64_t sg_graph_block_of(CUgraph graph)
{
    struct demand demand = {NULL, 0, 0};
    if (graph == NULL)
        return 0;
    add_graph(graph, &demand);
    uint64_t bytes = finish(&demand);
    return bytes == 0 ? 0 : sg_block(bytes, SG_DOMAIN_DEVICE, demand.device);
}

void sg_graph_enter(CUgraphExec exec, uint64_t block)
{
    if (block == 0 && sg_load_acquire(&sg_graph_count) == 0)
        return;
    (void)sg_block_table_remove(&executables, (uintptr_t)exec); /* of a graph that ended with its context */
    (void)sg_block_table_remove(&pool_after, (uintptr_t)exec);
    if (block == 0)
        return;
    sg_fetch_add(&sg_graph_count, 1u);
    if (sg_block_table_insert(&executables, (uintptr_t)exec, block, NULL) != 0)
        sg_ledger_count_fault();
}

uint64_t sg_graph_look_up(CUgraphExec exec)
{
    return sg_block_table_find(&executables, (uintptr_t)exec);
}

uint64_t sg_graph_take_out(CUgraphExec exec)
{
    return sg_block_table_remove(&executables, (uintptr_t)exec);
}

void sg_graph_taken_out(CUgraphExec exec, uint64_t block, CUresult result)
{
    if (!sg_cuda_is_gone(result) && sg_block_table_insert(&executables, (uintptr_t)exec, block, NULL) != 0)
        sg_ledger_count_fault();
    if (result == CUDA_SUCCESS)
        (void)sg_block_table_remove(&pool_after, (uintptr_t)exec);
    sg_graph_memory_refresh();
}
