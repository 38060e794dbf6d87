/*
 * driver.h - calling the CUDA driver: the real functions behind the hooks, and functions that are not hooked.
 */
#ifndef SG_PRELOAD_HOOKS_CUDA_DRIVER_H
#define SG_PRELOAD_HOOKS_CUDA_DRIVER_H

/* cuda.h's own switch: declares all variants of a function (name, name_v2, name_ptsz) instead of renaming them. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "account/thread_record.h"
#include "base/compiler.h"
#include "hooks/real.h"

/* Declares `pointer` as the driver's function `name`, which is not hooked; NULL if the driver lacks it. Each place that
 * uses this macro looks the function up until it is found. */
#define SG_DRIVER(pointer, name) \
    static sg_function pointer##_known; \
    __typeof__(&name) pointer = (__typeof__(&name))sg_real_driver_once(&pointer##_known, #name)

/* Calls the real function `name`. Gives NOT_INITIALIZED, the answer of a machine without a driver, if it is missing. */
#define SG_DRIVER_CALL(name, ...) (SG_REAL(name) != NULL ? SG_REAL(name)(__VA_ARGS__) : CUDA_ERROR_NOT_INITIALIZED)

/* Marks this thread as inside the driver, and opens a call if none is open. Returns the former sg_self.layers, which
 * the caller restores after the real call. */
static SG_INLINE uint32_t sg_cuda_go_inside(void)
{
    uint32_t outside = sg_self.layers;
    if ((outside & SG_LAYER_CALL) == 0)
        sg_self.open.mark = SG_MARK_HERE();
    sg_self.layers = outside | SG_LAYER_CALL | SG_LAYER_CUDA;
    return outside;
}

/* Calls the real function and declares `result`, its answer. Calls that the driver makes meanwhile to its own exports
 * are not counted. */
#define SG_DRIVER_INSIDE(name, ...) \
    uint32_t layers = sg_cuda_go_inside(); \
    CUresult result = SG_DRIVER_CALL(name, __VA_ARGS__); \
    sg_self.layers = layers

/* True if a free with this result leaves nothing allocated: it succeeded, or the driver is shutting down. */
static inline bool sg_cuda_is_gone(CUresult result)
{
    return result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED;
}

#endif
