/*
 * driver.h - calling the driver: the functions behind our hooks, and those that we do not hook.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_DRIVER_H
#define SG_PRELOAD_HOOKS_CUDA_DRIVER_H

/* The header's own switch for declaring all variants of a function side by side instead of renaming them. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "account/thread_record.h"
#include "base/compiler.h"
#include "hooks/real.h"

/* Declares `pointer`: the driver's function `name`, which we do not hook, or NULL. Looked up once for each place. */
#define SG_DRIVER(pointer, name) \
    static sg_function pointer##_known; \
    __typeof__(&name) pointer = (__typeof__(&name))sg_real_driver_once(&pointer##_known, #name)

/* Calls `real`, or answers as a machine without a driver does. */
#define SG_DRIVER_CALL(name, ...) (SG_REAL(name) != NULL ? SG_REAL(name)(__VA_ARGS__) : CUDA_ERROR_NOT_INITIALIZED)

/* Before the real call; what sg_self.layers is to be again behind it. Where no call is open, this is one. */
static SG_INLINE uint32_t sg_cuda_go_inside(void)
{
    uint32_t outside = sg_self.layers;
    if ((outside & SG_LAYER_CALL) == 0)
        sg_self.open.mark = SG_MARK_HERE();
    sg_self.layers = outside | SG_LAYER_CALL | SG_LAYER_CUDA;
    return outside;
}

/* Declares `result`: what the real function answers. What the driver calls of its own exports meanwhile does not count. */
#define SG_DRIVER_INSIDE(name, ...) \
    uint32_t layers = sg_cuda_go_inside(); \
    CUresult result = SG_DRIVER_CALL(name, __VA_ARGS__); \
    sg_self.layers = layers

/* What a free answers when there is nothing to free any more, because it did so or the driver is shutting down. */
static inline bool sg_cuda_is_gone(CUresult result)
{
    return result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED;
}

#endif
