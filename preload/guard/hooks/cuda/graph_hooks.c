/*
 * graph_hooks.c - hooks of CUDA graphs: judge the requests of allocation nodes before each upload and launch (graph.h).
 */
#include "hooks/cuda/graph.h"

#include "base/compiler.h"
#include "hooks/cuda/call.h"

/* Hook of an instantiation. Judges growth only if the instantiation also uploads the graph (`is_uploaded`). */
#define INSTANTIATE(name, exec, graph, is_uploaded, ...) \
    struct sg_cuda_call call; \
    sg_cuda_open(&call); \
    uint64_t block = (exec) != NULL && call.is_counted ? sg_graph_block_of(graph) : 0; \
    uint64_t growth = block != 0 && (is_uploaded) ? sg_graph_begin_claim(NULL, block) : 0; \
    if (!sg_cuda_begin_at_open(&call, SG_HOOK_##name, (CUdevice)sg_block_device(block), growth)) \
        return call.answer; \
    CUresult result = SG_DRIVER_CALL(name, __VA_ARGS__); \
    if (result == CUDA_SUCCESS && (exec) != NULL) \
        sg_graph_enter(*(exec), block | ((is_uploaded) && block != 0 ? SG_BLOCK_SETTLED : 0)); \
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

/* Hook of an upload or a launch. Graphs without allocation nodes pass at once. */
#define UPLOAD(name, exec, stream) \
    uint64_t block = sg_graph_find(exec); \
    if (block == 0) { \
        SG_DRIVER_INSIDE(name, exec, stream); \
        return result; \
    } \
    struct sg_cuda_call call; \
    sg_cuda_open(&call); \
    if (!call.is_counted) \
        return SG_DRIVER_CALL(name, exec, stream); \
    uint64_t growth = sg_graph_begin_claim(exec, block); \
    if (!sg_cuda_begin_at_open(&call, SG_HOOK_##name, (CUdevice)sg_block_device(block), growth)) \
        return call.answer; \
    CUresult result = SG_DRIVER_CALL(name, exec, stream); \
    if (result == CUDA_SUCCESS) \
        sg_graph_was_there(exec, block); \
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

SG_EXPORT CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    bool is_ours = sg_load_acquire(&sg_graph_count) != 0 && sg_cuda_is_ours();
    uint64_t block = is_ours ? sg_graph_take_out(hGraphExec) : 0;
    SG_DRIVER_INSIDE(cuGraphExecDestroy, hGraphExec);
    if (block != 0)
        sg_graph_taken_out(hGraphExec, block, result);
    return result;
}

SG_EXPORT CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device)
{
    SG_DRIVER_THEN(sg_graph_memory_refresh(), cuDeviceGraphMemTrim, device);
}
