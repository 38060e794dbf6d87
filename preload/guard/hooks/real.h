/*
 * real.h - the real function behind each hook.
 *
 * Addresses are looked up once and kept. A look-up leaves errno alone. dlsym has side effects: a successful call clears
 * the error that dlerror() was to return, and it waits for constructors that other threads run. Therefore the functions
 * of the libc (elf_symbols.h), of the driver and of NVML (loaded.h) are found without dlsym, each when it is first
 * needed.
 *
 * Unless noted, any thread may call these functions.
 */
#ifndef SG_PRELOAD_HOOKS_REAL_H
#define SG_PRELOAD_HOOKS_REAL_H

#include "base/atomics.h"

#include <stdbool.h>
#include <stddef.h>

enum sg_hook {
#define SG_HOOK_LIBC(symbol) SG_HOOK_##symbol,
#define SG_HOOK_DRIVER(symbol, base, version, is_ptsz) SG_HOOK_##symbol,
#define SG_HOOK_NVML(symbol) SG_HOOK_##symbol,
#define SG_HOOK_NVML_HIDDEN(symbol) SG_HOOK_##symbol,
#define SG_HOOK_RUNTIME(symbol) SG_HOOK_##symbol,
#include "hooks/hooks.def"
#undef SG_HOOK_LIBC
#undef SG_HOOK_DRIVER
#undef SG_HOOK_NVML
#undef SG_HOOK_NVML_HIDDEN
#undef SG_HOOK_RUNTIME
    SG_HOOK_COUNT
};

/* Any function. Convert it back to its own type before the call. */
typedef void (*sg_function)(void);

enum sg_family { SG_FAMILY_LIBC, SG_FAMILY_DRIVER, SG_FAMILY_NVML, SG_FAMILY_RUNTIME };

/* Bytes of a name in the table. The names lie in the table itself: the dynamic linker would have to relocate pointers
 * to them at the start of every program. */
enum { SG_HOOK_NAME_CAPACITY = 40 };

struct sg_hook_info {
    char symbol[SG_HOOK_NAME_CAPACITY];
    char base[SG_HOOK_NAME_CAPACITY]; /* the documented name, without version suffix */
    enum sg_family family;
    int version;
    bool is_ptsz;
};

extern const struct sg_hook_info sg_hook_table[SG_HOOK_COUNT];
extern sg_function sg_real_address[SG_HOOK_COUNT];
extern sg_function sg_dlsym_next;

/* Looks up the real function behind a hook. Returns NULL if there is none: a CUDA function without a driver, or an NVML
 * function without NVML. */
sg_function sg_real_look_up(enum sg_hook hook);

/* Set-up. If only dlsym can find the libc's functions, looks all of them up now. Later the program might be between its
 * dlopen and its dlerror, and would lose its error. */
void sg_real_begin(void);

/* Returns the real function behind a hook, or NULL as sg_real_look_up does. */
static inline sg_function sg_real_find(enum sg_hook hook)
{
    sg_function real = sg_load_acquire(&sg_real_address[hook]);
    return SG_LIKELY(real != NULL) ? real : sg_real_look_up(hook);
}

#define SG_REAL(name) ((__typeof__(&name))sg_real_find(SG_HOOK_##name))

/* Returns the function that calls by a hook's name reach: `ours`, or that of an object loaded before this library. */
sg_function sg_real_first(enum sg_hook hook, sg_function ours);
#define SG_FIRST(name) ((__typeof__(&name))sg_real_first(SG_HOOK_##name, (sg_function)(name)))

/* Returns the function `name` of an object that is loaded after this library and before the libc, or NULL. Keeps the
 * answer in *known. */
sg_function sg_real_unless_libcs(const char *name, sg_function *known);

/* Returns a function of the driver that is not hooked, or NULL. */
sg_function sg_real_driver(const char *symbol);

/* Does the same, and keeps the address in *known once it is found. */
sg_function sg_real_driver_once(sg_function *known, const char *symbol);

/* Returns the name under which the driver exports the function at this address, or NULL. */
const char *sg_real_driver_name(const void *address);

/* Keeps the library of `function` loaded for good, since its address is kept. Takes the dynamic linker's lock, so call
 * it only from the hooks of dlsym and dlclose. */
void sg_real_pin(sg_function function);

/* Keeps the driver and NVML loaded for good. Their addresses were found without the dynamic linker's lock, so the hook
 * of dlclose calls this before the program can close them. */
void sg_real_keep(void);

/* Returns the function `symbol` of the library that contains `function`, or of a library that this one needs, or
 * NULL. */
sg_function sg_real_beside(sg_function function, const char *symbol);

/* Calls the libc's dlsym and keeps errno. The thread counts as inside a look-up meanwhile. */
sg_function sg_real_dlsym(void *handle, const char *symbol);

/* Returns whether this thread is inside a look-up. The heap then serves it from the bootstrap allocator. */
bool sg_real_is_looking(void);

/* Returns the function that this library exports for a hook, found in its own symbol table. Therefore no table in the
 * source has to name all hooks. */
sg_function sg_real_ours(enum sg_hook hook);

#endif
