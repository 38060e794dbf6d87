/*
 * hook_table.c - which of our functions stands for which hook, grown from hooks.def.
 */
#include "real.h"

#include <string.h>

/* Declared without their parameters: here they are only addresses. Kept apart from every header that says more. */
#define SG_HOOK_LIBC(symbol) extern char hook_##symbol[] __asm__(#symbol);
#define SG_HOOK_DRIVER(symbol, base, version, is_ptsz) extern char hook_##symbol[] __asm__(#symbol);
#define SG_HOOK_NVML(symbol) extern char hook_##symbol[] __asm__(#symbol);
#define SG_HOOK_RUNTIME(symbol) extern char hook_##symbol[] __asm__(#symbol);
#include "hooks.def"
#undef SG_HOOK_LIBC
#undef SG_HOOK_DRIVER
#undef SG_HOOK_NVML
#undef SG_HOOK_RUNTIME

sg_function sg_hook_function(enum sg_hook hook)
{
    static char *const addresses[SG_HOOK_COUNT] = {
#define SG_HOOK_LIBC(symbol) hook_##symbol,
#define SG_HOOK_DRIVER(symbol, base, version, is_ptsz) hook_##symbol,
#define SG_HOOK_NVML(symbol) hook_##symbol,
#define SG_HOOK_RUNTIME(symbol) hook_##symbol,
#include "hooks.def"
#undef SG_HOOK_LIBC
#undef SG_HOOK_DRIVER
#undef SG_HOOK_NVML
#undef SG_HOOK_RUNTIME
    };
    sg_function function;
    memcpy(&function, &addresses[hook], sizeof function);
    return function;
}
