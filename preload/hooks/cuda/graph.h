/*
 * graph.h - the memory of CUDA graphs, as the ledger has it.
 *
 * Allocation nodes take nothing while a graph is made; memory comes when it is uploaded or launched, out of a store
 * that each device keeps for its graphs and that shrinks only when it is trimmed. So an executable graph is entered
 * with what its allocation nodes ask for together; before an upload or a launch that sum is judged as far as the store
 * does not hold it; after the call the store counts by the driver's own counter (cuDeviceGetGraphMemAttribute). Nodes
 * that use the same memory one after the other have the same address (CUDA C++ Programming Guide, "Graph Memory
 * Nodes"), and an address counts once. Graphs
 * without such nodes, the usual ones, are not entered: their launch costs one load, or one look-up where others have
 * some.
 *
 * Graphs are of one device as a rule; one with nodes on several is judged on that of one of them, and counts on each.
 *
 * Any thread; under sg_vmm_lock inside, but for the questions.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_GRAPH_H
#define SG_PRELOAD_HOOKS_CUDA_GRAPH_H

#include "base/atomics.h"
#include "hooks/cuda/driver.h"

/* What the allocation nodes of a graph ask for, as a table value (account/tracker.h). 0: it takes no memory of its own,
 * or is not for us to look at. */
uint64_t sg_graph_block_of(CUgraph graph);

/* Enters an executable graph that was made of such a graph. `block` with SG_BLOCK_SETTLED: it has been uploaded, too. */
void sg_graph_enter(CUgraphExec exec, uint64_t block);

/* How many executable graphs were ever entered. (atomic) Until then nothing needs to be looked up. */
extern SG_INTERNAL uint32_t sg_graph_count;
uint64_t sg_graph_look_up(CUgraphExec exec);

/* The entry of an executable graph, or 0. */
static inline uint64_t sg_graph_find(CUgraphExec exec)
{
    return sg_load_acquire(&sg_graph_count) == 0 ? 0 : sg_graph_look_up(exec);
}

/* What an upload or a launch makes the store grow. The room of a store goes to one open call at a time: who counts on
 * what another call counts on waits until that is over, and asks the store anew. After three seconds it is judged by
 * all that it needs. */
uint64_t sg_graph_begin_claim(CUgraphExec exec, uint64_t block);

/* The open call counts on no room of a store any more. */
void sg_graph_end_claim(void);

/* After a successful upload or launch. */
void sg_graph_was_there(CUgraphExec exec, uint64_t block);

/* Before an executable graph is destroyed, its entry; and after, where there was one. The store keeps what the graph
 * had, until the store is trimmed. */
uint64_t sg_graph_take_out(CUgraphExec exec);
void sg_graph_taken_out(CUgraphExec exec, uint64_t block, CUresult result);

/* Brings the ledger in step with what the devices hold for graphs; asks the driver once for each. */
void sg_graph_memory_refresh(void);

#endif
