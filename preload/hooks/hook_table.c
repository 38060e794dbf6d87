/*
 * hook_table.c - which of our functions stands for which hook, grown from hooks.def.
 */
#include "hooks/real.h"

#include <string.h>

/* Declared without their parameters: here they are only addresses. Kept apart from every header that says more. */
#define SG_HOOK_LIBC(symbol) extern char hook_##symbol[] __asm__(#symbol);
#define SG_HOOK_DRIVER(symbol, base, version, is_ptsz) extern char hook_##symbol[] __asm__(#symbol);
#define SG_HOOK_NVML(symbol) extern char hook_##symbol[] __asm__(#symbol);
#define SG_HOOK_RUNTIME(symbol) extern char hook_##symbol[] __asm__(#symbol);
#include "hooks/hooks.def"
#undef SG_HOOK_LIBC
#undef SG_HOOK_DRIVER
#undef SG_HOOK_NVML
#undef SG_HOOK_RUNTIME

/* A switch, for a table of addresses would have to be relocated at the start of every program. */
sg_function sg_hook_function(enum sg_hook hook)
{
    char *address = NULL;
    switch (hook) {
#define SG_ANSWER(symbol) \
    case SG_HOOK_##symbol: \
        address = hook_##symbol; \
        break;
#define SG_HOOK_LIBC(symbol) SG_ANSWER(symbol)
#define SG_HOOK_DRIVER(symbol, base, version, is_ptsz) SG_ANSWER(symbol)
#define SG_HOOK_NVML(symbol) SG_ANSWER(symbol)
#define SG_HOOK_RUNTIME(symbol) SG_ANSWER(symbol)
#include "hooks/hooks.def"
#undef SG_HOOK_LIBC
#undef SG_HOOK_DRIVER
#undef SG_HOOK_NVML
#undef SG_HOOK_RUNTIME
    case SG_HOOK_COUNT:
        break;
    }
    sg_function function;
    memcpy(&function, &address, sizeof function);
    return function;
}
