/*
 * real.c - see real.h.
 */
#include "real.h"

#include "atomics.h"
#include "symbols.h"
#include "thread.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

const struct sg_hook_info sg_hook_table[SG_HOOK_COUNT] = {
#define SG_HOOK_LIBC(symbol) {#symbol, #symbol, SG_FAMILY_LIBC, 0, false},
#define SG_HOOK_DRIVER(symbol, base, version, is_ptsz) {#symbol, #base, SG_FAMILY_DRIVER, version, is_ptsz},
#define SG_HOOK_NVML(symbol) {#symbol, #symbol, SG_FAMILY_NVML, 0, false},
#define SG_HOOK_RUNTIME(symbol) {#symbol, #symbol, SG_FAMILY_RUNTIME, 0, false},
#include "hooks.def"
#undef SG_HOOK_LIBC
#undef SG_HOOK_DRIVER
#undef SG_HOOK_NVML
#undef SG_HOOK_RUNTIME
};

#define FITS(symbol) _Static_assert(sizeof #symbol <= SG_HOOK_NAME_ROOM, "a longer name than there is room for");
#define SG_HOOK_LIBC(symbol) FITS(symbol)
#define SG_HOOK_DRIVER(symbol, base, version, is_ptsz) FITS(symbol)
#define SG_HOOK_NVML(symbol) FITS(symbol)
#define SG_HOOK_RUNTIME(symbol) FITS(symbol)
#include "hooks.def"
#undef SG_HOOK_LIBC
#undef SG_HOOK_DRIVER
#undef SG_HOOK_NVML
#undef SG_HOOK_RUNTIME

sg_function sg_real_address[SG_HOOK_COUNT];
sg_function sg_dlsym_next; /* the libc's dlsym, where dlsym.S jumps to */

static SG_THREAD_LOCAL uint32_t looking;

bool sg_real_is_looking(void)
{
    return looking != 0;
}

void sg_real_serve_from_boot(bool is_on)
{
    looking += is_on ? 1u : UINT32_MAX;
}

static sg_function as_function(void *pointer)
{
    sg_function function;
    memcpy(&function, &pointer, sizeof function); /* ISO C has no cast between the two */
    return function;
}

/* Our own dlsym is the exported one, so the libc's is asked for by version. */
static void *find_dlsym(void)
{
    void *found = sg_symbols_next("dlsym");
    return found != NULL ? found : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
}

sg_function sg_real_dlsym(void *handle, const char *symbol)
{
    int saved_errno = errno;
    looking++;
    void *real = NULL;
    if (SG_UNLIKELY(sg_load_acquire(&sg_dlsym_next) == NULL))
        sg_store_release(&sg_dlsym_next, as_function(find_dlsym()));
    if (sg_dlsym_next != NULL)
        real = ((void *(*)(void *, const char *))sg_dlsym_next)(handle, symbol);
    looking--;
    errno = saved_errno;
    return as_function(real);
}

void *sg_real_driver_handle(void)
{
    static void *handle;
    void *known = sg_load_acquire(&handle);
    if (known == NULL) {
        int saved_errno = errno;
        known = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
        errno = saved_errno;
        if (known != NULL)
            sg_store_release(&handle, known);
    }
    return known;
}

sg_function sg_real_driver(const char *symbol)
{
    void *handle = sg_real_driver_handle();
    return handle != NULL ? sg_real_dlsym(handle, symbol) : NULL;
}

sg_function sg_real_driver_once(sg_function *known, const char *symbol)
{
    sg_function function = sg_load_acquire(known);
    if (SG_UNLIKELY(function == NULL)) {
        function = sg_real_driver(symbol);
        sg_store_release(known, function);
    }
    return function;
}

static void *library_of(sg_function function, int flags)
{
    Dl_info info;
    void *address;
    memcpy(&address, &function, sizeof address);
    bool is_found = address != NULL && dladdr(address, &info) != 0 && info.dli_fname != NULL;
    return is_found ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | flags) : NULL;
}

void sg_real_pin(sg_function function)
{
    int saved_errno = errno;
    (void)library_of(function, RTLD_NODELETE);
    errno = saved_errno;
}

sg_function sg_real_beside(sg_function function, const char *symbol)
{
    int saved_errno = errno;
    void *handle = library_of(function, 0);
    sg_function found = handle != NULL ? sg_real_dlsym(handle, symbol) : NULL;
    if (handle != NULL)
        (void)dlclose(handle);
    errno = saved_errno;
    return found;
}

/* What a caller of our export would have bound to without us; or, out of a plugin that was opened RTLD_LOCAL, what is
 * loaded under the name that everybody uses. */
static sg_function find_nvml(const char *symbol)
{
    int saved_errno = errno;
    sg_function function = sg_real_dlsym(RTLD_NEXT, symbol);
    void *handle = function == NULL ? dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (handle != NULL)
        function = sg_real_dlsym(handle, symbol);
    sg_real_pin(function);
    if (handle != NULL)
        (void)dlclose(handle);
    errno = saved_errno;
    return function;
}

sg_function sg_real_look_up(enum sg_hook hook)
{
    sg_function real = NULL;
    switch (sg_hook_table[hook].family) {
    case SG_FAMILY_LIBC:
        real = as_function(sg_symbols_next(sg_hook_table[hook].symbol));
        if (real == NULL)
            real = sg_real_dlsym(RTLD_NEXT, sg_hook_table[hook].symbol);
        break;
    case SG_FAMILY_DRIVER:
        real = sg_real_driver(sg_hook_table[hook].symbol);
        break;
    case SG_FAMILY_NVML:
        real = find_nvml(sg_hook_table[hook].symbol);
        break;
    case SG_FAMILY_RUNTIME: /* depends on the caller: hook_runtime.c */
        break;
    }
    if (real != NULL)
        sg_store_release(&sg_real_address[hook], real);
    return real;
}

void sg_real_begin(void)
{
    if (sg_symbols_next("dlsym") != NULL)
        return;
    for (unsigned hook = 0; hook < SG_HOOK_COUNT; hook++)
        if (sg_hook_table[hook].family == SG_FAMILY_LIBC)
            (void)sg_real_find((enum sg_hook)hook);
}
