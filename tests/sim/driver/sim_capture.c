/*
 * sim_capture.c - stream capture: which stream writes down what graph, and what may not be called beside it.
 *
 * The graph is the `owner` of its stream. What cuda.h calls potentially unsafe (of cuThreadExchangeStreamCaptureMode) are here
 * the synchronisations and cuMemPoolTrimTo: where they are prohibited they fail, and break the captures that prohibit them.
 */
#define _GNU_SOURCE
#include "sim_core.h"

/* The calling thread's mode; its address tells threads apart. */
static __thread CUstreamCaptureMode mode __attribute__((tls_model("initial-exec"))) = CU_STREAM_CAPTURE_MODE_GLOBAL;

struct sgsim_object *sgsim_graph_of_capture(CUstream stream)
{
    const struct sgsim_object *object = sgsim_handle_find(stream, SGSIM_STREAM);
    return object ? object->owner : NULL;
}

static bool prohibits(const struct sgsim_object *stream)
{
    if (stream->role != SGSIM_STREAM || !stream->owner || mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    bool is_own = stream->u.capture.thread == &mode;
    return is_own ? stream->u.capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED
                  : mode == CU_STREAM_CAPTURE_MODE_GLOBAL && stream->u.capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult sgsim_capture_check(void)
{
    CUresult error = CUDA_SUCCESS;
    for (size_t i = 0; i < sgsim.handle_index.count; i++) {
        struct sgsim_object *stream = sgsim.handle_index.entries[i];
        if (prohibits(stream)) {
            stream->u.capture.is_broken = true;
            error = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return error;
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *exchanged)
{
    SGSIM_ENTER(cuThreadExchangeStreamCaptureMode, SGSIM_NEEDS_INIT);
    if (!exchanged || (unsigned int)*exchanged > CU_STREAM_CAPTURE_MODE_RELAXED)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    CUstreamCaptureMode before = mode;
    mode = *exchanged;
    *exchanged = before;
    return sgsim_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode capture_mode)
{
    SGSIM_ENTER(cuStreamBeginCapture_v2, SGSIM_NEEDS_CONTEXT);
    struct sgsim_object *object = sgsim_handle_find(stream, SGSIM_STREAM);
    if (!object || object->owner || (unsigned int)capture_mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    object->owner = sgsim_handle_new(SGSIM_GRAPH);
    object->u.capture.thread = &mode;
    object->u.capture.mode = capture_mode;
    object->u.capture.is_broken = false;
    return sgsim_leave(object->owner ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    SGSIM_ENTER(cuStreamEndCapture, SGSIM_NEEDS_CONTEXT);
    struct sgsim_object *object = sgsim_handle_find(stream, SGSIM_STREAM);
    if (!object || !object->owner || !graph)
        return sgsim_leave(CUDA_ERROR_INVALID_VALUE);
    bool is_broken = object->u.capture.is_broken;
    *graph = is_broken ? NULL : (CUgraph)(void *)object->owner;
    object->owner = NULL;
    return sgsim_leave(is_broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
}

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    CUresult error = status ? sgsim_check_stream(stream) : CUDA_ERROR_INVALID_VALUE;
    if (error == CUDA_SUCCESS)
        *status = sgsim_graph_of_capture(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return error;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    SGSIM_ENTER(cuStreamIsCapturing, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(is_capturing(stream, status));
}

CUresult CUDAAPI cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status)
{
    SGSIM_ENTER(cuStreamIsCapturing_ptsz, SGSIM_NEEDS_CONTEXT);
    return sgsim_leave(is_capturing(stream, status));
}
