/*
 * real.h - what lies behind each hook.
 *
 * Addresses are looked up once and kept. A look-up leaves errno alone. A dlsym that succeeds takes back the error
 * that dlerror() was to tell, and waits for constructors that other threads are in. So the functions of the libc
 * (elf_symbols.h), of the driver and of NVML (loaded.h) are found without dlsym, each when it is first needed.
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
#define SG_HOOK_RUNTIME(symbol) SG_HOOK_##symbol,
#include "hooks/hooks.def"
#undef SG_HOOK_LIBC
#undef SG_HOOK_DRIVER
#undef SG_HOOK_NVML
#undef SG_HOOK_RUNTIME
    SG_HOOK_COUNT
};

/* Any function; converted back to its own type before it is called. */
typedef void (*sg_function)(void);

enum sg_family { SG_FAMILY_LIBC, SG_FAMILY_DRIVER, SG_FAMILY_NVML, SG_FAMILY_RUNTIME };

/* Names lie in the table itself: a pointer to each would be for the dynamic linker to set, at the start of every
 * program. */
enum { SG_HOOK_NAME_CAPACITY = 40 };

struct sg_hook_info {
    char symbol[SG_HOOK_NAME_CAPACITY];
    char base[SG_HOOK_NAME_CAPACITY]; /* the name people know it by: no version suffix */
    enum sg_family family;
    int version;
    bool is_ptsz;
};

extern const struct sg_hook_info sg_hook_table[SG_HOOK_COUNT];
extern sg_function sg_real_address[SG_HOOK_COUNT];
extern sg_function sg_dlsym_next;

/* The real function behind a hook, or NULL if there is none (a CUDA function without a driver, one of NVML without
 * NVML). */
sg_function sg_real_look_up(enum sg_hook hook);

/* Set-up. Where only dlsym can tell, everything of the libc is looked up now, before the program could be between its
 * dlopen and its dlerror. */
void sg_real_begin(void);

static inline sg_function sg_real_find(enum sg_hook hook)
{
    sg_function real = sg_load_acquire(&sg_real_address[hook]);
    return SG_LIKELY(real != NULL) ? real : sg_real_look_up(hook);
}

#define SG_REAL(name) ((__typeof__(&name))sg_real_find(SG_HOOK_##name))

/* The function that everybody calls by a hook's name: `ours`, or that of an object before us. */
sg_function sg_real_first(enum sg_hook hook, sg_function ours);
#define SG_FIRST(name) ((__typeof__(&name))sg_real_first(SG_HOOK_##name, (sg_function)(name)))

/* The function `name` of an object behind us that lies before the libc, or NULL. Kept in *known. */
sg_function sg_real_unless_libcs(const char *name, sg_function *known);

/* A function of the driver that we do not hook, or NULL. */
sg_function sg_real_driver(const char *symbol);

/* The same, looked up until it is found and then kept in *known. */
sg_function sg_real_driver_once(sg_function *known, const char *symbol);

/* The name under which the driver exports the function at that address, or NULL. */
const char *sg_real_driver_name(const void *address);

/* Keeps the library of a function whose address is kept. Takes the dynamic linker's lock: for dlsym and dlclose. */
void sg_real_pin(sg_function function);

/* Before the program closes anything: keeps the driver and NVML, whose addresses were found without that lock. */
void sg_real_keep(void);

/* Another function of the library that `function` is in, or of one that this needs; or NULL. */
sg_function sg_real_beside(sg_function function, const char *symbol);

/* The libc's dlsym, and look-ups through it that keep errno. */
sg_function sg_real_dlsym(void *handle, const char *symbol);

/* Whether this thread is inside a look-up: the heap then serves from the boot buffer. */
bool sg_real_is_looking(void);

/* The function that this library exports for a hook, by its own table of symbols. So no table here names all hooks. */
sg_function sg_real_ours(enum sg_hook hook);

#endif
