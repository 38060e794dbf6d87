/*
 * call.h - one allocating CUDA driver call: guard, ask, call, record. Written once for all of them.
 *
 *     struct sg_cuda_call call;
 *     if (!sg_cuda_begin(&call, SG_HOOK_cuMemAlloc_v2, SG_DOMAIN_DEVICE, bytes))
 *         return call.answer;
 *     CUresult result = SG_REAL(cuMemAlloc_v2)(dptr, bytes);
 *     ... sg_cuda_record(...) if it succeeded ...
 *     sg_cuda_end(&call, bytes or 0);
 *
 * Refusing inside the driver call makes the real runtime return cudaErrorMemoryAllocation by its own rules. What would
 * fail anyway (no driver, no context, bad arguments) is not judged: the driver gives its own answer.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_CALL_H
#define SG_PRELOAD_HOOKS_CUDA_CALL_H

#include "admit/admission.h"
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
    uint32_t context;     /* slot of the current one: context_end.h */
    uint64_t ends_before; /* contexts that had ended */
    uint32_t layers;      /* to be restored */
    bool is_counted;      /* false: from inside another hook, or disabled */
    bool is_placed;       /* device and context are known; false: there was no context when it began */
    bool is_tentative;    /* sg_cuda_ask comes back before it looks closer: the request may be served in another way */
    bool has_headroom;    /* what is asked for need not grow anything: no page cache goes for it */
    CUresult answer;      /* to the program if it is refused: out of memory, or what else the driver has to tell it */
};

/* Whether the call comes from the program: a driver may call its own exports, and counts then once only. In the hook
 * itself, or inlined there, for the hook's frame tells whether the call that the thread is marked to be in was left. */
static SG_INLINE bool sg_cuda_is_ours(void)
{
    return sg_lifecycle_enter() &&
           (SG_LIKELY((sg_self.layers & SG_LAYER_CALL) == 0) || sg_open_call_was_left(SG_FRAME_END()));
}

/* Whether the program has called cuInit. Before that the driver looks at no argument, and so may nobody here. */
bool sg_cuda_has_begun(void);

/* Opens a call, if it is the program's: first of all, in the hook itself or inlined there. sg_cuda_begin* does, and
 * closes it where the call is refused; sg_cuda_end closes it. */
static SG_INLINE void sg_cuda_open(struct sg_cuda_call *call)
{
    call->is_counted = sg_cuda_is_ours();
    call->layers = sg_self.layers;
    if (SG_UNLIKELY(!call->is_counted))
        return;
    sg_self.open.mark = SG_MARK_HERE();
    sg_self.layers |= SG_LAYER_CALL;
}

static inline void sg_cuda_close(const struct sg_cuda_call *call)
{
    if (SG_UNLIKELY(!call->is_counted))
        return;
    sg_open_call_end();
    sg_self.layers = call->layers;
}

/* A hook that takes nothing: makes the call, and if that succeeded does `then`. */
#define SG_DRIVER_THEN(then, name, ...) \
    if (!sg_cuda_is_ours()) \
        return SG_DRIVER_CALL(name, __VA_ARGS__); \
    SG_DRIVER_INSIDE(name, __VA_ARGS__); \
    if (result == CUDA_SUCCESS) \
        then; \
    return result

/* False: refused, recorded and said, unless the context is dead, of which call->answer tells. True: make the call;
 * sg_cuda_end must follow. `growth_bytes` is what is asked of the machine; 0 is always admitted: so callers pass it for
 * what the driver is documented to answer with an error. */
bool sg_cuda_begin_open(struct sg_cuda_call *call, enum sg_hook hook, enum sg_domain domain, uint64_t growth_bytes);

/* The same for device memory of `device`, whichever device is the current one. */
bool sg_cuda_begin_at_open(struct sg_cuda_call *call, enum sg_hook hook, CUdevice device, uint64_t growth_bytes);

/* The same for a context on `device`, which needs none yet. What the driver does not know as a device of its own
 * is not judged. */
bool sg_cuda_begin_on_open(struct sg_cuda_call *call, enum sg_hook hook, CUdevice device, uint64_t growth_bytes);

/* The same of an open call in parts, on a device that is known, whatever is current: all but the question. When it
 * is granted sg_cuda_go_on must follow, else sg_cuda_close. */
void sg_cuda_prepare(struct sg_cuda_call *call, enum sg_hook hook, enum sg_domain domain, uint32_t device);
void sg_cuda_go_on(void);

/* By these names, in the hook itself or inlined there: they open the call. */
#define sg_cuda_begin(call, ...) (sg_cuda_open(call), sg_cuda_begin_open(call, __VA_ARGS__))
#define sg_cuda_begin_at(call, ...) (sg_cuda_open(call), sg_cuda_begin_at_open(call, __VA_ARGS__))
#define sg_cuda_begin_on(call, ...) (sg_cuda_open(call), sg_cuda_begin_on_open(call, __VA_ARGS__))

/* Asks for what call->request says, with a fresh look at the device if it has a pool of its own. Before it refuses,
 * the driver is asked once whether the context still lives. False with request.is_short: is_tentative, and it does
 * not fit so far. */
bool sg_cuda_ask(struct sg_cuda_call *call);

/* Finds out all that a refusal needs. False: the context is dead, and call->answer is the error. */
bool sg_cuda_look_closely(struct sg_cuda_call *call);

/* Behind the call: whether it took what it asked for. Where it began without a context, another thread has made one
 * since, or made it anew: what it took lies there. */
bool sg_cuda_took(struct sg_cuda_call *call, CUresult result);

/* The call succeeded and gave `key`: enters it, charges `bytes`. `caller`: where the program's call returns to. */
void sg_cuda_record(const struct sg_cuda_call *call, struct sg_block_table *table, uint64_t key, uint64_t bytes,
                    const void *caller);

/* After the call; `kept_bytes` is what it took, 0 if it failed. */
void sg_cuda_end(struct sg_cuda_call *call, uint64_t kept_bytes);

/* Frees, if they are the program's: take the entry out before the real call, put it back if that fails, else release
 * it. */
uint64_t sg_cuda_take_out(struct sg_block_table *table, uint64_t key);
CUresult sg_cuda_given_back(struct sg_block_table *table, uint64_t key, uint64_t block, uint64_t ends_before,
                            CUresult result);

/* The hook of a free as a whole. */
#define SG_GIVE_BACK(name, table, key, ...) \
    uint64_t ends_before = sg_load_acquire(&sg_context_ends); \
    uint64_t block = sg_cuda_is_ours() ? sg_cuda_take_out(table, key) : 0; \
    SG_DRIVER_INSIDE(name, __VA_ARGS__); \
    return sg_cuda_given_back(table, key, block, ends_before, result)

#endif
