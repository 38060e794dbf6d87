/*
 * graph.c - see graph.h.
 */
#include "hooks/cuda/graph.h"

#include "account/ledger.h"
#include "base/range_map.h"
#include "account/tracker.h"
#include "base/compiler.h"
#include "base/syscall.h"
#include "hooks/cuda/lock.h"

#include <linux/futex.h>
#include <sys/mman.h>

/* Executable graphs with memory of their own. SG_BLOCK_SETTLED: it has been there once. Then `behind` has what its
 * device's store held after it. */
static struct sg_block_table executables, behind;
uint32_t sg_graph_count;

static uint64_t store_bytes[SG_DEVICE_CAPACITY];   /* as charged; under sg_vmm_lock */
static uint32_t store_changes[SG_DEVICE_CAPACITY]; /* (atomic) how often that changed */
static uint32_t stores_used;                       /* (atomic) a bit for each device that may have such a store */
static uint64_t counted_on[SG_DEVICE_CAPACITY]; /* of the room of a store, by the calls under way; under sg_vmm_lock */
static uint32_t calls_over;                     /* (atomic) futex: counts those that are over */

/* ---- what a graph asks for --------------------------------------------------------------------------------------- */

struct demand {
    struct sg_range_map *places; /* of the nodes whose address the driver tells; NULL: none yet */
    uint64_t bytes;              /* of the others */
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
        sg_range_map_set(demand->places, address, address + bytes, SG_RANGE_COUNTED, 0) != 0)
        demand->bytes += bytes;
}

/* All of it; no more can be added. */
static uint64_t finish(struct demand *demand)
{
    if (demand->places != NULL) {
        demand->bytes += demand->places->counted_bytes;
        sg_range_map_destroy(demand->places);
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
    if (params.poolProps.location.id < 0 || params.poolProps.location.id >= SG_DEVICE_CAPACITY)
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

/* ---- the stores -------------------------------------------------------------------------------------------------- */

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
    for (uint32_t device = 0; used != 0 && device < SG_DEVICE_CAPACITY; device++)
        if ((used & 1u << device) != 0)
            refresh_store(device);
}

/* What a launch makes the store grow. What a first one takes can be less than all nodes together; a later one takes
 * what the store has lost since, at most. Up to its own size of what is in use may be its own, of a launch still
 * running: the next one uses the same. */
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
    uint64_t then = has_been_there ? sg_block_table_find(&behind, (uintptr_t)exec) : 0;
    if (then == 0)
        return growth;
    uint64_t lost = sg_block_size(then) > reserved ? sg_block_size(then) - reserved : 0;
    return growth < lost ? growth : lost;
}

uint64_t sg_graph_begin_claim(CUgraphExec exec, uint64_t block)
{
    const struct timespec step = {0, 100000000};
    uint64_t deadline = sg_clock_ns(CLOCK_MONOTONIC) + UINT64_C(3000000000);
    uint64_t *others = &counted_on[sg_block_device(block)];
    for (;;) {
        struct sg_lock_state lock;
        uint32_t seen = sg_load_acquire(&calls_over); /* pairs with the add in end_claim: what follows is no older */
        uint64_t growth = growth_of(exec, block);
        bool is_its_own = (block & SG_BLOCK_SETTLED) != 0 && growth == 0; /* what it had before */
        uint64_t room = is_its_own ? 0 : sg_block_size(block) - growth;
        sg_lock_acquire(&sg_vmm_lock, &lock);
        bool is_late = sg_clock_ns(CLOCK_MONOTONIC) >= deadline;
        bool is_mine = room == 0 || (*others == 0 && seen == sg_load(&calls_over));
        if (room != 0 && (is_mine || is_late)) {
            *others += room;
            sg_self.open.headroom_bytes = room;
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
    uint64_t room = sg_self.open.headroom_bytes;
    if (SG_LIKELY(room == 0))
        return;
    sg_lock_acquire(&sg_vmm_lock, &lock);
    counted_on[sg_self.open.room_device] -= room;
    sg_self.open.headroom_bytes = 0;
    sg_fetch_add(&calls_over, 1u);
    sg_thread_let_cancel();
    sg_lock_release(&sg_vmm_lock, &lock);
    (void)sg_sys_futex(&calls_over, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL);
}

void sg_graph_was_there(CUgraphExec exec, uint64_t block)
{
    uint64_t reserved;
    uint32_t device = sg_block_device(block);
    if ((block & SG_BLOCK_SETTLED) == 0)
        (void)sg_block_table_mark(&executables, (uintptr_t)exec, block, SG_BLOCK_SETTLED);
    if (get_attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) && reserved != 0 &&
        sg_block_table_insert(&behind, (uintptr_t)exec, sg_block(reserved, SG_DOMAIN_DEVICE, device), NULL) != 0)
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
    (void)sg_block_table_remove(&executables, (uintptr_t)exec); /* of one that went with its context */
    (void)sg_block_table_remove(&behind, (uintptr_t)exec);
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
        (void)sg_block_table_remove(&behind, (uintptr_t)exec);
    sg_graph_memory_refresh();
}
