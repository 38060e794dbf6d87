/*
 * real.c - see real.h.
 */
#include "hooks/real.h"

#include "base/atomics.h"
#include "hooks/loaded.h"
#include "base/elf_symbols.h"
#include "account/thread_record.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

const struct sg_hook_info sg_hook_table[SG_HOOK_COUNT] = {
#define SG_HOOK_LIBC(symbol) {#symbol, #symbol, SG_FAMILY_LIBC, 0, false},
#define SG_HOOK_DRIVER(symbol, base, version, is_ptsz) {#symbol, #base, SG_FAMILY_DRIVER, version, is_ptsz},
#define SG_HOOK_NVML(symbol) {#symbol, #symbol, SG_FAMILY_NVML, 0, false},
#define SG_HOOK_NVML_HIDDEN(symbol) SG_HOOK_NVML(symbol)
#define SG_HOOK_RUNTIME(symbol) {#symbol, #symbol, SG_FAMILY_RUNTIME, 0, false},
#include "hooks/hooks.def"
#undef SG_HOOK_LIBC
#undef SG_HOOK_DRIVER
#undef SG_HOOK_NVML
#undef SG_HOOK_NVML_HIDDEN
#undef SG_HOOK_RUNTIME
};

#define FITS(symbol) _Static_assert(sizeof #symbol <= SG_HOOK_NAME_CAPACITY, "a longer name than there is room for");
#define SG_HOOK_LIBC(symbol) FITS(symbol)
#define SG_HOOK_DRIVER(symbol, base, version, is_ptsz) FITS(symbol)
#define SG_HOOK_NVML(symbol) FITS(symbol)
#define SG_HOOK_NVML_HIDDEN(symbol) FITS(symbol)
#define SG_HOOK_RUNTIME(symbol) FITS(symbol)
#include "hooks/hooks.def"
#undef SG_HOOK_LIBC
#undef SG_HOOK_DRIVER
#undef SG_HOOK_NVML
#undef SG_HOOK_NVML_HIDDEN
#undef SG_HOOK_RUNTIME

#define DRIVER "libcuda.so.1"

sg_function sg_real_address[SG_HOOK_COUNT];
sg_function sg_dlsym_next; /* the libc's dlsym */

static SG_THREAD_LOCAL uint32_t look_up_depth;

bool sg_real_is_looking(void)
{
    return look_up_depth != 0;
}

static sg_function as_function(void *pointer)
{
    sg_function function;
    memcpy(&function, &pointer, sizeof function); /* ISO C has no cast between object and function pointers */
    return function;
}

/* Finds the libc's dlsym, which only a search without the dynamic linker finds: the exported dlsym is this library's
 * own. Before glibc 2.34 it is in libdl.so.2, which a program may also load later. musl's loader is its libc, whose
 * file has another name than programs need it by. */
static void *find_dlsym(void)
{
    void *found = sg_loaded_next("dlsym");
    if (found == NULL)
        found = sg_loaded_anywhere("libdl.so.", "dlsym");
    return found != NULL ? found : sg_loaded_anywhere("ld-musl-", "dlsym");
}

sg_function sg_real_dlsym(void *handle, const char *symbol)
{
    int saved_errno = errno;
    look_up_depth++;
    void *real = NULL;
    if (SG_UNLIKELY(sg_load_acquire(&sg_dlsym_next) == NULL))
        sg_store_release(&sg_dlsym_next, as_function(find_dlsym()));
    if (sg_dlsym_next != NULL)
        real = ((void *(*)(void *, const char *))sg_dlsym_next)(handle, symbol);
    look_up_depth--;
    errno = saved_errno;
    return as_function(real);
}

/* The symbol tables of libcuda.so.1, once it was seen. It stays loaded from then on (sg_real_keep). */
static struct sg_elf_symbols driver_known;
enum { DRIVER_UNSEEN, DRIVER_BEING_NOTED, DRIVER_KNOWN };
static uint32_t driver_state;

static bool find_driver(struct sg_elf_symbols *symbols)
{
    if (sg_load_acquire(&driver_state) == DRIVER_KNOWN) {
        *symbols = driver_known;
        return true;
    }
    struct sg_object object;
    if (!sg_loaded_named(DRIVER, &object) || !sg_elf_symbols_open(symbols, object.bias, object.dynamic))
        return false;
    uint32_t unseen = DRIVER_UNSEEN;
    if (sg_cas_u32(&driver_state, &unseen, DRIVER_BEING_NOTED)) {
        driver_known = *symbols;
        sg_store_release(&driver_state, (uint32_t)DRIVER_KNOWN);
    }
    return true;
}

sg_function sg_real_driver(const char *symbol)
{
    struct sg_elf_symbols symbols;
    void *address = NULL;
    if (find_driver(&symbols))
        (void)sg_elf_symbols_find(&symbols, symbol, &address);
    return as_function(address);
}

/* One more than the highest index. GNU's hash table does not store it: it is found at the end of the last chain. */
static uint32_t symbol_count(const struct sg_elf_symbols *symbols)
{
    if (symbols->gnu_hash == NULL)
        return symbols->sysv_hash[1];
    const uint32_t *header = symbols->gnu_hash;
    uint32_t buckets = header[0], first = header[1], words = header[2], last = 0;
    const uint32_t *bucket = (const uint32_t *)((const uintptr_t *)&header[4] + words), *chain = &bucket[buckets];
    for (uint32_t i = 0; i < buckets; i++)
        last = bucket[i] > last ? bucket[i] : last;
    while (last >= first && (chain[last - first] & 1) == 0)
        last++;
    return last + 1;
}

/* The name of the function at that address, or NULL. Visits every symbol. */
static const char *name_of(const struct sg_elf_symbols *symbols, const void *address)
{
    uint32_t count = symbol_count(symbols);
    for (uint32_t index = 1; index < count; index++) {
        const ElfW(Sym) *symbol = &symbols->symbol[index];
        if (symbol->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC &&
            symbols->bias + symbol->st_value == (uintptr_t)address)
            return symbols->strings + symbol->st_name;
    }
    return NULL;
}

const char *sg_real_driver_name(const void *address)
{
    struct sg_elf_symbols symbols;
    return find_driver(&symbols) ? name_of(&symbols, address) : NULL;
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

/* Opens the library that contains `function`, which is loaded already, with more flags. Returns its handle, or NULL. */
static void *library_of(sg_function function, int flags)
{
    struct sg_object object;
    void *address;
    memcpy(&address, &function, sizeof address);
    bool is_found = address != NULL && sg_loaded_holding(address, &object) && object.path[0] != '\0';
    return is_found ? SG_REAL(dlopen)(object.path, RTLD_LAZY | RTLD_NOLOAD | flags) : NULL;
}

void sg_real_pin(sg_function function)
{
    int saved_errno = errno;
    (void)library_of(function, RTLD_NODELETE);
    errno = saved_errno;
}

sg_function sg_real_beside(sg_function function, const char *symbol)
{
    struct sg_object object;
    void *address, *found = NULL;
    memcpy(&address, &function, sizeof address);
    if (address != NULL && sg_loaded_holding(address, &object))
        found = sg_loaded_find(&object, symbol);
    return as_function(found);
}

/* Finds the NVML function that a caller of the export would have bound to without this library. A plugin opened
 * RTLD_LOCAL may have loaded NVML outside the global scope; then NVML is found by its usual file name. */
static sg_function find_nvml(const char *symbol)
{
    struct sg_object object;
    void *found = sg_loaded_next(symbol);
    if (found == NULL && sg_loaded_named("libnvidia-ml.so.1", &object))
        found = sg_loaded_find(&object, symbol);
    return as_function(found);
}

void sg_real_keep(void)
{
    static uint32_t is_driver_kept;
    static sg_function kept[SG_HOOK_COUNT];
    int saved_errno = errno;
    if (sg_load_acquire(&is_driver_kept) == 0 && sg_load_acquire(&driver_state) == DRIVER_KNOWN &&
        SG_REAL(dlopen)(DRIVER, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != NULL)
        sg_store_release(&is_driver_kept, 1u);
    for (unsigned hook = 0; hook < SG_HOOK_COUNT; hook++) {
        sg_function real =
            sg_hook_table[hook].family == SG_FAMILY_NVML ? sg_load_acquire(&sg_real_address[hook]) : NULL;
        if (real != NULL && sg_load_acquire(&kept[hook]) != real) {
            sg_real_pin(real);
            sg_store_release(&kept[hook], real);
        }
    }
    errno = saved_errno;
}

sg_function sg_real_look_up(enum sg_hook hook)
{
    sg_function real = NULL;
    switch (sg_hook_table[hook].family) {
    case SG_FAMILY_LIBC:
        real = as_function(sg_elf_symbols_next(sg_hook_table[hook].symbol));
        if (real == NULL)
            real = sg_real_dlsym(RTLD_NEXT, sg_hook_table[hook].symbol);
        if (real == NULL && sg_load_acquire(&sg_dlsym_next) == NULL) /* before glibc 2.34, without libdl.so.2 */
            real = as_function(sg_loaded_next(sg_hook_table[hook].symbol));
        break;
    case SG_FAMILY_DRIVER:
        real = sg_real_driver(sg_hook_table[hook].symbol);
        break;
    case SG_FAMILY_NVML:
        real = find_nvml(sg_hook_table[hook].symbol);
        break;
    case SG_FAMILY_RUNTIME: /* the function depends on the caller (runtime.c) */
        break;
    }
    if (real != NULL)
        sg_store_release(&sg_real_address[hook], real);
    return real;
}

sg_function sg_real_ours(enum sg_hook hook)
{
    extern const char __ehdr_start[] SG_INTERNAL; /* set by the linker: the start of this library */
    static void *known[SG_HOOK_COUNT];
    struct sg_elf_symbols symbols;
    void *address = sg_load_relaxed(&known[hook]);
    if (SG_LIKELY(address != NULL))
        return as_function(address);
    if (sg_elf_symbols_open(&symbols, (uintptr_t)__ehdr_start, _DYNAMIC))
        (void)sg_elf_symbols_find(&symbols, sg_hook_table[hook].symbol, &address);
    sg_store_relaxed(&known[hook], address);
    return as_function(address);
}

sg_function sg_real_first(enum sg_hook hook, sg_function ours)
{
    static sg_function known[SG_HOOK_COUNT];
    sg_function first = sg_load_acquire(&known[hook]);
    if (SG_LIKELY(first != NULL))
        return first;
    void *address;
    const char *name = sg_hook_table[hook].symbol;
    enum sg_order order = sg_elf_symbols_before(name, &address);
    first = order == SG_ORDER_UNKNOWN ? sg_real_dlsym(RTLD_DEFAULT, name) : as_function(address);
    if (first == NULL)
        first = ours;
    sg_store_release(&known[hook], first);
    return first;
}

sg_function sg_real_unless_libcs(const char *name, sg_function *known)
{
    sg_function found = sg_load_acquire(known);
    if (found == NULL) {
        found = as_function(sg_elf_symbols_between(name));
        sg_store_release(known, found != NULL ? found : sg_real_begin); /* sg_real_begin stands for "there is none" */
    }
    return found != sg_real_begin ? found : NULL;
}

void sg_real_begin(void)
{
    if (sg_elf_symbols_next("dlsym") != NULL)
        return;
    for (unsigned hook = 0; hook < SG_HOOK_COUNT; hook++)
        if (sg_hook_table[hook].family == SG_FAMILY_LIBC)
            (void)sg_real_find((enum sg_hook)hook);
    (void)sg_real_first(SG_HOOK_realloc, NULL);
    (void)sg_real_first(SG_HOOK_free, NULL);
}
