/*
 * call.h - the steps that every allocating CUDA driver call shares: open the call, ask admission, call the driver,
 * record the block, end the call.
 *
 *     struct sg_cuda_call call;
 *     if (!sg_cuda_begin(&call, SG_HOOK_cuMemAlloc_v2, SG_DOMAIN_DEVICE, bytes))
 *         return call.answer;
 *     CUresult result = SG_REAL(cuMemAlloc_v2)(dptr, bytes);
 *     ... sg_cuda_record(...) if it succeeded ...
 *     sg_cuda_end(&call, bytes or 0);
 *
 * A refusal at the driver API makes the real runtime return cudaErrorMemoryAllocation by its own rules. Calls that
 * would fail anyway (no driver, no context, bad arguments) are not judged, so that the program gets the driver's own
 * error.
 *
 * A struct sg_cuda_call belongs to one thread. All functions: any thread, not from signal handlers.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_CALL_H
#define SG_PRELOAD_HOOKS_CUDA_CALL_H

#include "admit/admission.h"
#include "hooks/measure/self_check.h"
#include "base/atomics.h"
#include "hooks/cuda/blocks.h"
#include "hooks/cuda/context_end.h"
#include "hooks/cuda/device.h"
#include "hooks/cuda/driver.h"
#include "account/tracker.h"
#include "account/ledger.h"
#include "hooks/lifecycle.h"
#include "hooks/open_call.h"
#include "hooks/real.h"
#include "shared/segment.h"
#include "account/thread_record.h"

struct sg_cuda_call {
    struct sg_request request;
    uint32_t device;
    uint32_t context;     /* slot of the current context (context_end.h) */
    uint64_t ends_before; /* sg_context_ends when the call began */
    uint32_t layers;      /* sg_self.layers before the call, to be restored */
    bool is_counted;      /* false: called from inside another hook, or the guard is disabled */
    bool is_placed;       /* device and context are known; false: no context was current when the call began */
    bool is_tentative;    /* sg_cuda_ask returns before its thorough check: the request may be served in another way */
    bool is_measured;     /* what the driver takes for it is measured (self_check.h) */
    CUresult answer;      /* returned to the program on refusal: OUT_OF_MEMORY, or the error of a dead context */
};

/* True if the program made this call, false if the driver or another hook did: the driver may call its own exports, and
 * such a call must not count twice. Call it in the hook itself or inlined there. The hook's stack frame shows whether
 * the program left an earlier open call by longjmp (open_call.h). */
static SG_INLINE bool sg_cuda_is_ours(void)
{
    return sg_lifecycle_enter() &&
           (SG_LIKELY((sg_self.layers & SG_LAYER_CALL) == 0) || sg_open_call_was_left(SG_FRAME_END()));
}

/* True once the program has called cuInit. Before cuInit the driver reads no argument, so no hook may read one either:
 * a wild pointer that the driver ignores would crash the hook. */
bool sg_cuda_has_begun(void);

/* Marks this thread as inside an open call, if the program made the call. Must come first, in the hook itself or
 * inlined there. The macros sg_cuda_begin* open the call, and close it on refusal. sg_cuda_end closes it otherwise. */
static SG_INLINE void sg_cuda_open(struct sg_cuda_call *call)
{
    call->is_counted = sg_cuda_is_ours();
    call->layers = sg_self.layers;
    if (SG_UNLIKELY(!call->is_counted))
        return;
    sg_self.open.mark = SG_MARK_HERE();
    sg_self.layers |= SG_LAYER_CALL;
}

/* Ends the open call without settling a request: gives up its pool, turn and query, and restores the layers. */
static inline void sg_cuda_close(const struct sg_cuda_call *call)
{
    if (SG_UNLIKELY(!call->is_counted))
        return;
    sg_open_call_end();
    sg_self.layers = call->layers;
}

/* Body of a hook that allocates nothing: calls the driver and runs the statement `then` if the call succeeded. */
#define SG_DRIVER_THEN(then, name, ...) \
    if (!sg_cuda_is_ours()) \
        return SG_DRIVER_CALL(name, __VA_ARGS__); \
    SG_DRIVER_INSIDE(name, __VA_ARGS__); \
    if (result == CUDA_SUCCESS) \
        then; \
    return result

/* Asks admission for `growth_bytes` of `domain` on the current device. True: make the real call; sg_cuda_end must
 * follow. False: return call->answer; the call is closed. The refusal is already recorded and reported, unless the
 * context is dead: then call->answer is the context's error. 0 bytes are always admitted. Callers pass 0 where the
 * driver is documented to answer with an error. */
bool sg_cuda_begin_open(struct sg_cuda_call *call, enum sg_hook hook, enum sg_domain domain, uint64_t growth_bytes);

/* As sg_cuda_begin_open, for device memory of `device`, whichever device is current. */
bool sg_cuda_begin_at_open(struct sg_cuda_call *call, enum sg_hook hook, CUdevice device, uint64_t growth_bytes);

/* As sg_cuda_begin_open, for the creation of a context on `device`: no context need be current. Not judged on a device
 * with memory of its own, or on a number that the driver does not know as a device. */
bool sg_cuda_begin_on_open(struct sg_cuda_call *call, enum sg_hook hook, CUdevice device, uint64_t growth_bytes);

/* The same steps one by one, for an open call whose device is known. sg_cuda_prepare does all but ask admission. The
 * caller asks, and then calls sg_cuda_go_on if the request is granted, sg_cuda_close otherwise. */
void sg_cuda_prepare(struct sg_cuda_call *call, enum sg_hook hook, enum sg_domain domain, uint32_t device);
void sg_cuda_go_on(void);

/* These names also open the call. Use them in the hook itself or inlined there. */
#define sg_cuda_begin(call, ...) (sg_cuda_open(call), sg_cuda_begin_open(call, __VA_ARGS__))
#define sg_cuda_begin_at(call, ...) (sg_cuda_open(call), sg_cuda_begin_at_open(call, __VA_ARGS__))
#define sg_cuda_begin_on(call, ...) (sg_cuda_open(call), sg_cuda_begin_on_open(call, __VA_ARGS__))

/* Asks admission for call->request. For a discrete card the driver's figures are read first. Before a refusal the
 * context is checked once for a sticky error. True: granted. False with request.is_short: the call is tentative, and
 * the request does not fit so far. False otherwise: refused, or the context is dead (call->answer). */
bool sg_cuda_ask(struct sg_cuda_call *call);

/* The thorough check before a refusal: tests the context for a sticky error and reads again what all pools have
 * reserved. False: the context is dead, and call->answer is its error. */
bool sg_cuda_scan(struct sg_cuda_call *call);

/* Right after the real call, before its block is counted: ends the measurement of what the driver took. */
void sg_cuda_measure(struct sg_cuda_call *call, CUresult result);

/* After the real call: true if it succeeded. A call that began without a context can succeed only because another
 * thread has created one since; the block then belongs to that context, and `call` is completed with it. Calls
 * sg_cuda_measure. */
bool sg_cuda_took(struct sg_cuda_call *call, CUresult result);

/* Records a successful allocation: enters `key` (address or handle) into `table` and charges `bytes` to the ledger.
 * `caller` is the return address of the program's call. */
void sg_cuda_record(const struct sg_cuda_call *call, struct sg_block_table *table, uint64_t key, uint64_t bytes,
                    const void *caller);

/* Settles the request and closes the call. `kept_bytes` is what the call has taken; 0 if it failed. */
void sg_cuda_end(struct sg_cuda_call *call, uint64_t kept_bytes);

/* The two halves of a free that the program makes. sg_cuda_take_out removes the entry of `key` before the real call and
 * returns it (0: unknown): the driver may give the address to another thread before the real free returns.
 * sg_cuda_given_back releases the block, or enters it again if the free failed, and returns `result`. `ends_before` is
 * sg_context_ends before the free. Both measure what a large free gives back. */
uint64_t sg_cuda_take_out(struct sg_block_table *table, uint64_t key);
CUresult sg_cuda_given_back(struct sg_block_table *table, uint64_t key, uint64_t block, uint64_t ends_before,
                            CUresult result);

/* The whole body of a free's hook. */
#define SG_GIVE_BACK(name, table, key, ...) \
    uint64_t ends_before = sg_load_acquire(&sg_context_ends); \
    uint64_t block = sg_cuda_is_ours() ? sg_cuda_take_out(table, key) : 0; \
    SG_DRIVER_INSIDE(name, __VA_ARGS__); \
    return sg_cuda_given_back(table, key, block, ends_before, result)

#endif
