/*
 * graph.h - accounting of memory that CUDA graphs allocate.
 *
 * Allocation nodes take no memory while a graph is built. Memory is taken when the graph is uploaded or launched, from
 * the graph pool of the device. That pool shrinks only when it is trimmed. Hence three steps:
 *   - An executable graph is entered with the sum of what its allocation nodes request.
 *   - Before an upload or a launch, admission judges the part of that sum that the graph pool does not hold.
 *   - After the call, the pool is charged by the driver's own counter (cuDeviceGetGraphMemAttribute).
 * Nodes that use the same memory one after the other have the same address (CUDA C++ Programming Guide, "Graph Memory
 * Nodes"), and an address counts once. Graphs without allocation nodes, the usual ones, are not entered. A launch of
 * such a graph costs one load, or one look-up if the program has other graphs with allocation nodes.
 *
 * A graph is usually on one device. A graph with nodes on several devices is judged on one of them and charged on each.
 *
 * `block` is a table value (account/tracker.h). Any thread; functions take sg_cuda_lock where needed, and release it
 * while they query the driver.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_GRAPH_H
#define SG_PRELOAD_HOOKS_CUDA_GRAPH_H

#include "base/atomics.h"
#include "hooks/cuda/driver.h"

/* The sum that the allocation nodes of a graph request, as a table value. 0: the graph allocates nothing, or its nodes
 * cannot be read. */
uint64_t sg_graph_block_of(CUgraph graph);

/* Enters an executable graph with the sum of its source graph. SG_BLOCK_SETTLED in `block`: it is already uploaded. */
void sg_graph_enter(CUgraphExec exec, uint64_t block);

/* (atomic) The number of executable graphs ever entered. While it is 0, sg_graph_find needs no look-up. */
extern SG_INTERNAL uint32_t sg_graph_count;

/* The entry of an executable graph, or 0. Call sg_graph_find, which is cheaper. */
uint64_t sg_graph_look_up(CUgraphExec exec);

/* The entry of an executable graph, or 0. */
static inline uint64_t sg_graph_find(CUgraphExec exec)
{
    return sg_load_acquire(&sg_graph_count) == 0 ? 0 : sg_graph_look_up(exec);
}

/* Returns the bytes by which an upload or a launch grows the graph pool, and claims the pool's free memory for this
 * open call. One call at a time holds the claim: two calls that counted on the same free memory would grow the pool
 * unjudged. Other calls wait until the claim ends and query the pool again. After 3 s a waiting call gets its full size
 * as the answer, so that admission judges all of it. sg_graph_end_claim must follow; sg_cuda_close does that. */
uint64_t sg_graph_begin_claim(CUgraphExec exec, uint64_t block);

/* Ends this thread's claim on the free memory of a graph pool, if it has one, and wakes the waiting calls. */
void sg_graph_end_claim(void);

/* After a successful upload or launch: marks the graph as uploaded and notes what its pool now holds. */
void sg_graph_was_there(CUgraphExec exec, uint64_t block);

/* The two halves of cuGraphExecDestroy. sg_graph_take_out removes and returns the entry before the real call (0: none).
 * sg_graph_taken_out follows if there was an entry, and enters it again if the real call failed. The graph pool keeps
 * the graph's memory until the pool is trimmed. */
uint64_t sg_graph_take_out(CUgraphExec exec);
void sg_graph_taken_out(CUgraphExec exec, uint64_t block, CUresult result);

/* Charges the ledger with the current size of every graph pool. Queries the driver once per device that has one. */
void sg_graph_memory_refresh(void);

#endif
