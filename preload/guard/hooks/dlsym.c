/*
 * dlsym.c - the second entry point: dlsym, and the hooks of dlopen and dlclose.
 *
 * dlopen with RTLD_DEEPBIND would lead a library past every entry point, so the flag is removed. Before a dlclose, the
 * libraries whose addresses are kept are pinned.
 *
 * The exported dlsym is a few instructions of assembly (entry_points.S). It asks sg_dlsym_filter. If the filter has no
 * answer, it jumps to the libc's dlsym with the caller's return address in place, because RTLD_NEXT and RTLD_DEFAULT
 * depend on that address.
 */
#include "hooks/dlsym.h"
#include "hooks/lifecycle.h"
#include "hooks/runtime.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "base/options.h"
#include "hooks/cuda/nvml.h"
#include "hooks/real.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

static void *as_pointer(sg_function function)
{
    void *pointer;
    memcpy(&pointer, &function, sizeof pointer);
    return pointer;
}

/* Only whole names are compared: a prefix test would also catch names of cudnn, cublas and curl. */
static enum sg_hook find_hook(const char *name)
{
    for (unsigned hook = 0; hook < SG_HOOK_COUNT; hook++)
        if (sg_hook_table[hook].family != SG_FAMILY_LIBC && strcmp(sg_hook_table[hook].symbol, name) == 0)
            return (enum sg_hook)hook;
    return SG_HOOK_COUNT;
}

/* All hooked names but the libc's begin with cu, cuda or nvml. Almost every look-up ends at this test. */
static bool may_be_hooked(const char *name)
{
    return (name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v');
}

/* Finds the hook of one of the libc's own entry points. */
static enum sg_hook find_entry_point(const char *name)
{
    static const enum sg_hook entry_point[] = {SG_HOOK_dlsym, SG_HOOK_dlopen, SG_HOOK_dlmopen, SG_HOOK_dlclose};
    for (size_t i = 0; name[0] == 'd' && name[1] == 'l' && i < SG_ARRAY_LENGTH(entry_point); i++)
        if (strcmp(name, sg_hook_table[entry_point[i]].symbol) == 0)
            return entry_point[i];
    return SG_HOOK_COUNT;
}

/* Returns the answer "not there", and leaves the dlerror() that belongs to it. */
static void *absent(const char *name)
{
    void *libc = SG_REAL(dlopen)("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (libc != NULL)
        (void)sg_real_dlsym(libc, name);
    return SG_DLSYM_ABSENT;
}

/* This library's function for a hook: its export, or one that is not exported. */
static sg_function find_ours(enum sg_hook hook)
{
#define SG_HOOK_LIBC(symbol)
#define SG_HOOK_DRIVER(symbol, base, version, is_ptsz)
#define SG_HOOK_NVML(symbol)
#define SG_HOOK_NVML_HIDDEN(symbol) \
    if (hook == SG_HOOK_##symbol) \
        return (sg_function)sg_nvml_##symbol;
#define SG_HOOK_RUNTIME(symbol)
#include "hooks/hooks.def"
#undef SG_HOOK_LIBC
#undef SG_HOOK_DRIVER
#undef SG_HOOK_NVML
#undef SG_HOOK_NVML_HIDDEN
#undef SG_HOOK_RUNTIME
    return sg_real_ours(hook);
}

/* Answers a look-up that found this library's export. The exports stand in the global scope even where CUDA is not
 * installed; a program that probes for a driver must not take them for one. */
static void *answer_global(enum sg_hook hook, const char *name)
{
    sg_function real =
        sg_hook_table[hook].family == SG_FAMILY_DRIVER ? sg_real_find(hook) : sg_real_dlsym(RTLD_NEXT, name);
    return real != NULL ? as_pointer(find_ours(hook)) : absent(name);
}

/* Returns whether `found` is the real function of the hook. It may also be a function of another library that wraps the
 * real one: if both were led through the hook, the wrapper would call itself. Or it is the driver of another namespace
 * (dlmopen), which this library cannot ask. Programs may close NVML and go on with what they found there, so its
 * library is pinned. */
static bool is_real(enum sg_hook hook, sg_function found)
{
    if (sg_hook_table[hook].family == SG_FAMILY_DRIVER)
        return sg_real_driver(sg_hook_table[hook].symbol) == found;
    sg_function known = sg_load_acquire(&sg_real_address[hook]);
    if (known == NULL) {
        sg_real_pin(found);
        sg_store_release(&sg_real_address[hook], found);
    }
    return known == NULL || known == found;
}

void *sg_dlsym_filter(void *handle, const char *name)
{
    if (sg_load_acquire(&sg_dlsym_next) == NULL)
        (void)sg_real_dlsym(RTLD_NEXT, "dlsym");
    if (name == NULL || handle == RTLD_NEXT || sg_options.is_disabled)
        return NULL;
    enum sg_hook entry_point = find_entry_point(name);
    if (entry_point != SG_HOOK_COUNT && sg_real_dlsym(handle, name) == sg_real_find(entry_point))
        return as_pointer(sg_real_ours(entry_point)); /* asking the libc by handle must not lead past it */
    if (!may_be_hooked(name))
        return NULL;
    enum sg_hook hook = find_hook(name);
    if (hook == SG_HOOK_COUNT)
        return NULL;
    sg_function found = sg_real_dlsym(handle, name);
    if (found == NULL)
        return NULL; /* the libc repeats the look-up and leaves its error */
    if (found == find_ours(hook))
        return answer_global(hook, name);
    if (sg_hook_table[hook].family == SG_FAMILY_RUNTIME)
        return as_pointer(sg_runtime_thunk(hook, found));
    return is_real(hook, found) ? as_pointer(find_ours(hook)) : NULL;
}

/* Returns the mode without RTLD_DEEPBIND, unless an option keeps it. A library opened RTLD_DEEPBIND binds to the
 * functions of its own dependencies first: to the libc and the driver, not to the hooks. */
static int allowed_mode(int mode)
{
    if ((mode & RTLD_DEEPBIND) == 0)
        return mode;
    if (!sg_options_are_read())
        sg_lifecycle_read_options(); /* the constructor of another library runs before ours */
    return sg_options.is_disabled || sg_options.deepbind_kept ? mode : mode & ~RTLD_DEEPBIND;
}

struct sg_dlopen_answer sg_dlsym_filter_dlopen(const char *file, int mode)
{
    (void)file;
    return (struct sg_dlopen_answer){sg_real_find(SG_HOOK_dlopen), (uint32_t)allowed_mode(mode)};
}

/* A namespace other than the program's has no preloaded library that could come first, so the mode stays there. */
struct sg_dlopen_answer sg_dlsym_filter_dlmopen(long space, const char *file, int mode)
{
    (void)file;
    return (struct sg_dlopen_answer){sg_real_find(SG_HOOK_dlmopen),
                                     (uint32_t)(space == LM_ID_BASE ? allowed_mode(mode) : mode)};
}

SG_EXPORT int dlclose(void *handle)
{
    if (!sg_options.is_disabled)
        sg_real_keep();
    return SG_REAL(dlclose)(handle);
}
