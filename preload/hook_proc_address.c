/*
 * hook_proc_address.c - the third door: cuGetProcAddress.
 *
 * The driver is asked first, with the caller's own version and flags; the pointer it returned is then replaced by the hook
 * of exactly that function: right for every version and for the per-thread default stream. Which one it is, is told by
 * comparing with the driver's exports, and where those are other addresses, by the rule the driver goes by: the newest
 * variant that is not newer than the version asked for.
 */
#include "cuda_call.h"

#include "compiler.h"

#include <string.h>

static bool is_variant(unsigned hook, const char *base)
{
    return sg_hook_table[hook].family == SG_FAMILY_DRIVER && strcmp(sg_hook_table[hook].base, base) == 0;
}

static sg_function as_function(void *pointer)
{
    sg_function function;
    memcpy(&function, &pointer, sizeof function);
    return function;
}

/* A driver may also answer with a function of another base: since CUDA 12 cuGraphInstantiate is
 * cuGraphInstantiateWithFlags (cuda.h), and that takes other arguments. */
static bool may_stand_for(unsigned hook, const char *base)
{
    return sg_hook_table[hook].family == SG_FAMILY_DRIVER &&
           strncmp(sg_hook_table[hook].symbol, base, strlen(base)) == 0;
}

static enum sg_hook find_by_address(const char *base, sg_function found)
{
    for (unsigned hook = 0; hook < SG_HOOK_COUNT; hook++)
        if (may_stand_for(hook, base) && sg_real_find((enum sg_hook)hook) == found)
            return (enum sg_hook)hook;
    return SG_HOOK_COUNT;
}

static enum sg_hook find_by_version(const char *base, int version, bool wants_ptsz)
{
    enum sg_hook best = SG_HOOK_COUNT;
    for (unsigned hook = 0; hook < SG_HOOK_COUNT; hook++) {
        const struct sg_hook_info *info = &sg_hook_table[hook];
        if (!is_variant(hook, base) || info->version > version || (info->is_ptsz && !wants_ptsz))
            continue;
        if (best == SG_HOOK_COUNT || info->version > sg_hook_table[best].version ||
            (info->version == sg_hook_table[best].version && info->is_ptsz))
            best = (enum sg_hook)hook;
    }
    return best;
}

/* Puts the hook where the driver's pointer is, if there is one. */
static void replace(const char *base, void **pfn, int version, cuuint64_t flags)
{
    if (!sg_lifecycle_enter() || base == NULL || pfn == NULL || *pfn == NULL)
        return;
    sg_function found = as_function(*pfn);
    enum sg_hook hook = find_by_address(base, found);
    if (hook == SG_HOOK_COUNT)
        hook = find_by_version(base, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
    if (hook == SG_HOOK_COUNT || found == sg_hook_function(hook))
        return;
    if (sg_load_acquire(&sg_real_address[hook]) == NULL)
        sg_store_release(&sg_real_address[hook], found);
    sg_function ours = sg_hook_function(hook);
    memcpy(pfn, &ours, sizeof ours);
}

SG_EXPORT CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    CUresult result = SG_DRIVER_CALL(cuGetProcAddress, symbol, pfn, cudaVersion, flags);
    if (result == CUDA_SUCCESS)
        replace(symbol, pfn, cudaVersion, flags);
    return result;
}

SG_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                               CUdriverProcAddressQueryResult *symbolStatus)
{
    CUresult result = SG_DRIVER_CALL(cuGetProcAddress_v2, symbol, pfn, cudaVersion, flags, symbolStatus);
    if (result == CUDA_SUCCESS)
        replace(symbol, pfn, cudaVersion, flags);
    return result;
}
