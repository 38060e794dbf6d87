/*
 * proc_address.c - the third entry point: cuGetProcAddress.
 *
 * The driver is asked first, with the caller's own version and flags. If the pointer that it returns is a hooked
 * function, the pointer is replaced by the hook of exactly that variant, so it is right for every version and for the
 * per-thread default stream. The variant is found by comparing with the addresses of the driver's exports. If none
 * matches, it is found by the driver's own rule: the newest variant that is not newer than the version asked for. A
 * hook with other arguments would be worse than none. Therefore where hooks.def may not know the variant, the driver's
 * pointer stays, and the record gets an event about it.
 */
#include "hooks/cuda/call.h"

#include "base/compiler.h"
#include "base/text.h"

#include <string.h>

/* CUDA version up to which hooks.def knows the variants of every function (tests/sim/calls/test_hooks.py checks). */
enum { KNOWN_VERSION = 13050 };

/* A variant that a base name stands for from `version` on. */
static const struct variant {
    char base[SG_HOOK_NAME_CAPACITY];
    int version;
    bool is_ptsz;
    enum sg_hook hook;
} variants[] = {
#define SG_HOOK_LIBC(symbol)
#define SG_HOOK_DRIVER(symbol, base, version, is_ptsz) {#base, version, is_ptsz, SG_HOOK_##symbol},
#define SG_HOOK_NVML(symbol)
#define SG_HOOK_NVML_HIDDEN(symbol)
#define SG_HOOK_RUNTIME(symbol)
#define SG_ALSO(base, version, symbol) {#base, version, false, SG_HOOK_##symbol},
#include "hooks/hooks.def"
#undef SG_HOOK_LIBC
#undef SG_HOOK_DRIVER
#undef SG_HOOK_NVML
#undef SG_HOOK_NVML_HIDDEN
#undef SG_HOOK_RUNTIME
};

enum { VARIANT_COUNT = sizeof variants / sizeof variants[0] };

static sg_function as_function(void *pointer)
{
    sg_function function;
    memcpy(&function, &pointer, sizeof function);
    return function;
}

static enum sg_hook find_by_address(const char *base, sg_function found)
{
    for (unsigned i = 0; i < VARIANT_COUNT; i++)
        if (strcmp(variants[i].base, base) == 0 && sg_real_find(variants[i].hook) == found)
            return variants[i].hook;
    return SG_HOOK_COUNT;
}

/* Returns the index of the first variant of a base name, or VARIANT_COUNT if none is hooked. */
static unsigned find_base(const char *base)
{
    unsigned i = 0;
    while (i < VARIANT_COUNT && strcmp(variants[i].base, base) != 0)
        i++;
    return i;
}

/* Returns `version`, or the driver's own version if that is lower: no driver returns a variant newer than itself. */
static int bound_version(int version)
{
    SG_DRIVER(get_version, cuDriverGetVersion);
    int newest = 0;
    bool is_bounded = version > KNOWN_VERSION && get_version != NULL && get_version(&newest) == CUDA_SUCCESS;
    return is_bounded && newest < version ? newest : version;
}

/* Adds an event to the record about a function that is not guarded, once for each base name. `name` is the name under
 * which the driver exports it, or NULL. */
static void note_unknown(unsigned variant, int version, const char *name)
{
    static uint32_t is_noted[VARIANT_COUNT];
    char text_buffer[sizeof((struct sg_event *)NULL)->what];
    uint32_t not_noted = 0;
    if (!sg_cas_u32(&is_noted[variant], &not_noted, 1))
        return;
    struct sg_text text = sg_text_begin(text_buffer, sizeof text_buffer);
    sg_text_add(&text, "not guarded: ");
    sg_text_add(&text, name != NULL ? name : variants[variant].base);
    sg_text_add(&text, " as of CUDA ");
    sg_text_add_number(&text, (uint64_t)(version > 0 ? version : 0));
    sg_text_add(&text, " is newer than this guard");
    sg_segment_attach();
    sg_segment_add_event(text_buffer);
}

static enum sg_hook find_by_version(const char *base, int version, bool wants_ptsz)
{
    const struct variant *best = NULL;
    for (unsigned i = 0; i < VARIANT_COUNT && version <= KNOWN_VERSION; i++) {
        const struct variant *at = &variants[i];
        if (strcmp(at->base, base) != 0 || at->version > version || (at->is_ptsz && !wants_ptsz))
            continue;
        if (best == NULL || at->version > best->version || (at->version == best->version && at->is_ptsz))
            best = at;
    }
    return best != NULL ? best->hook : SG_HOOK_COUNT;
}

/* Replaces the driver's pointer in *pfn by the hook of the same variant, if there is one. */
static void replace(const char *base, void **pfn, int version, cuuint64_t flags)
{
    if (!sg_lifecycle_enter() || base == NULL || pfn == NULL || *pfn == NULL)
        return;
    unsigned variant = find_base(base);
    if (variant == VARIANT_COUNT)
        return;
    sg_function found = as_function(*pfn);
    enum sg_hook hook = find_by_address(base, found);
    const char *name = hook == SG_HOOK_COUNT ? sg_real_driver_name(*pfn) : NULL;
    if (hook == SG_HOOK_COUNT && name == NULL)
        hook =
            find_by_version(base, bound_version(version), (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
    if (hook == SG_HOOK_COUNT)
        note_unknown(variant, version, name);
    if (hook == SG_HOOK_COUNT || found == sg_real_ours(hook))
        return;
    if (sg_load_acquire(&sg_real_address[hook]) == NULL)
        sg_store_release(&sg_real_address[hook], found);
    sg_function ours = sg_real_ours(hook);
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
