/*
 * dlsym.c - the second entry point: dlsym and dlvsym, and the hooks of dlopen and dlclose.
 *
 * A program that asks a handle of the libc for free shall get this library's: foreign-function interfaces look all of
 * their functions up so. The libc looks first. Where it finds the function that the hook calls next, the hook is the
 * answer; what another library defines stays that library's. So the answer is what a linked call would reach, but for
 * three kinds of callers. RTLD_NEXT stays the libc's, which passes over this library only for those behind it; but no
 * name of CUDA is found so where there is no CUDA.
 * UCX, which patches the code that it finds, gets the libc's functions. And an object behind this library that itself
 * wraps the libc gets the libc's functions, for a hook may call that object, and would call itself through it.
 *
 * dlopen with RTLD_DEEPBIND would lead a library past every entry point, so the flag is removed. Before a dlclose, the
 * libraries whose addresses are kept are pinned.
 *
 * The exported dlsym is a few instructions of assembly (entry_points.S). It asks sg_dlsym_filter. If the filter has no
 * answer, it jumps to the libc's dlsym with the caller's return address in place, because RTLD_NEXT and RTLD_DEFAULT
 * depend on that address. dlvsym is the same.
 */
#include "hooks/dlsym.h"
#include "hooks/lifecycle.h"
#include "hooks/runtime.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "base/elf_symbols.h"
#include "hooks/loaded.h"
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

static sg_function as_function(void *pointer)
{
    sg_function function;
    memcpy(&function, &pointer, sizeof function);
    return function;
}

/* The libc's answer, for this library as the caller: to dlsym, or to dlvsym if `version` is not NULL. It is the same
 * for each caller that gives a handle. */
static inline void *ask_libc(sg_function next, void *handle, const char *name, const char *version)
{
    return version == NULL ? ((__typeof__(&dlsym))next)(handle, name)
                           : ((__typeof__(&dlvsym))next)(handle, name, version);
}

/* ---- names of CUDA ----------------------------------------------------------------------------------------------- */

/* Only whole names are compared: a prefix test would also catch names of cudnn, cublas and curl. */
static enum sg_hook find_hook(const char *name)
{
    for (unsigned hook = 0; hook < SG_HOOK_COUNT; hook++)
        if (sg_hook_table[hook].family != SG_FAMILY_LIBC && strcmp(sg_hook_table[hook].symbol, name) == 0)
            return (enum sg_hook)hook;
    return SG_HOOK_COUNT;
}

/* All hooked names but the libc's begin with cu, cuda or nvml. */
static bool may_be_hooked(const char *name)
{
    return (name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v');
}

/* Returns the answer "not there", and leaves the dlerror() that belongs to it. */
static struct sg_dlsym_answer absent(const char *name)
{
    void *libc = SG_REAL(dlopen)("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (libc != NULL)
        (void)sg_real_dlsym(libc, name);
    return (struct sg_dlsym_answer){NULL, NULL};
}

static struct sg_dlsym_answer answer(sg_function function)
{
    return (struct sg_dlsym_answer){as_pointer(function), NULL};
}

static struct sg_dlsym_answer pass_to(sg_function next)
{
    return (struct sg_dlsym_answer){NULL, next};
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
static struct sg_dlsym_answer answer_global(enum sg_hook hook, const char *name)
{
    sg_function real =
        sg_hook_table[hook].family == SG_FAMILY_DRIVER ? sg_real_find(hook) : sg_real_dlsym(RTLD_NEXT, name);
    return real != NULL ? answer(find_ours(hook)) : absent(name);
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

/* Whether RTLD_NEXT leads this caller past the hook: its object comes before this library, and none of those has the
 * name. dlvsym then passes over this library all the same, because the exports have no versions. */
static bool passes_over_us(const char *name, const void *caller)
{
    struct sg_object object;
    void *address;
    return sg_loaded_holding(caller, &object) && sg_loaded_is_ahead(&object) &&
           sg_elf_symbols_before(name, &address) == SG_ORDER_OURS;
}

/* The libc answers RTLD_NEXT itself, by the address that the program calls from. Only where that leads to an export of
 * this library, the answer may have to be "not there". */
static SG_APART struct sg_dlsym_answer answer_cuda(sg_function next, void *handle, const char *name,
                                                   const char *version, const void *caller)
{
    enum sg_hook hook = find_hook(name);
    if (hook != SG_HOOK_COUNT && handle == RTLD_NEXT) {
        bool is_export = version == NULL && sg_real_ours(hook) != NULL;
        return is_export && passes_over_us(name, caller) ? answer_global(hook, name) : pass_to(next);
    }
    sg_function found = hook != SG_HOOK_COUNT ? as_function(ask_libc(next, handle, name, version)) : NULL;
    if (found == NULL)
        return pass_to(next); /* the libc repeats the look-up and leaves its error */
    if (found == find_ours(hook))
        return answer_global(hook, name);
    if (sg_hook_table[hook].family == SG_FAMILY_RUNTIME)
        return answer(sg_runtime_thunk(hook, found));
    return is_real(hook, found) ? answer(find_ours(hook)) : pass_to(next);
}

/* ---- names of the libc ------------------------------------------------------------------------------------------- */

/* The hooks of the libc by their names, each in the first free slot from that of its hash on. Almost every name that a
 * program looks up is not hooked and ends at an empty slot: a look-up takes 800 instructions, and to compare all names
 * would take as many. Filled by the first look-up, for no start shall pay for it. */
enum { LIBC_COUNT = SG_HOOK_cuGetProcAddress, SLOTS = 256, NOT_FILLED = 0, BEING_FILLED, FILLED };
_Static_assert((unsigned)LIBC_COUNT < UINT8_MAX, "a slot is a byte");
static uint8_t slot[SLOTS]; /* the number of a hook and 1; 0: none */
static uint32_t slots_state;

/* By the first four bytes, the last three and the length: of a name of three bytes and more. With these factors no two
 * names of hooks.def have one slot. */
static inline size_t slot_of(const char *name, size_t length)
{
    uint32_t first, last;
    memcpy(&first, name, sizeof first);
    memcpy(&last, name + length - 3, sizeof last); /* with the 0 behind it, in whose place comes the length */
    last ^= (uint32_t)length << 24;
    return (first * 0x6094eafd + last * 0xd22789ab) / (UINT32_MAX / SLOTS + 1);
}

static SG_COLD void fill_slots(void)
{
    uint32_t state = NOT_FILLED;
    if (!sg_cas_u32(&slots_state, &state, BEING_FILLED))
        return;
    for (unsigned hook = 0; hook < LIBC_COUNT; hook++) {
        size_t at = slot_of(sg_hook_table[hook].symbol, strlen(sg_hook_table[hook].symbol));
        while (slot[at] != 0)
            at = (at + 1) % SLOTS;
        slot[at] = (uint8_t)(hook + 1);
    }
    sg_store_release(&slots_state, (uint32_t)FILLED); /* pairs with find_libc_hook */
}

static SG_COLD enum sg_hook find_one_by_one(const char *name)
{
    for (unsigned hook = 0; hook < LIBC_COUNT; hook++)
        if (strcmp(sg_hook_table[hook].symbol, name) == 0)
            return (enum sg_hook)hook;
    return SG_HOOK_COUNT;
}

static inline enum sg_hook find_libc_hook(const char *name)
{
    size_t length = strlen(name);
    if (length < 3)
        return SG_HOOK_COUNT;
    if (SG_UNLIKELY(sg_load_acquire(&slots_state) != FILLED)) { /* another thread may be at it */
        fill_slots();
        return find_one_by_one(name);
    }
    for (size_t at = slot_of(name, length); slot[at] != 0; at = (at + 1) % SLOTS)
        if (strcmp(sg_hook_table[slot[at] - 1].symbol, name) == 0)
            return (enum sg_hook)(slot[at] - 1);
    return SG_HOOK_COUNT;
}

/* Whether the object has a function that a hook calls in place of the libc's; *data: only if that is its base. */
static bool wraps_libc(const struct sg_elf_symbols *symbols, const void *data)
{
    const uintptr_t *bias = data;
    struct sg_elf_symbols any = *symbols;
    any.is_any_version = true;
    for (unsigned hook = 0; (bias == NULL || *bias == any.bias) && hook < LIBC_COUNT; hook++) {
        void *address;
        if (sg_elf_symbols_find(&any, sg_hook_table[hook].symbol, &address))
            return true;
    }
    return false;
}

enum { UNKNOWN, NOBODY_WRAPS, SOMEBODY_WRAPS };
static uint32_t wraps_state;

static SG_COLD bool is_wrapper(const void *caller)
{
    struct sg_object object;
    if (sg_load_relaxed(&wraps_state) == UNKNOWN)
        sg_store_relaxed(&wraps_state, sg_elf_symbols_any_between(wraps_libc, NULL) ? SOMEBODY_WRAPS : NOBODY_WRAPS);
    return sg_load_relaxed(&wraps_state) == SOMEBODY_WRAPS && sg_loaded_holding(caller, &object) &&
           sg_elf_symbols_any_between(wraps_libc, &object.bias);
}

/* Whether an object that hooks call asks for the functions that it wraps. Such an object is rare. */
static inline bool is_next_asking(const void *caller)
{
    return sg_load_relaxed(&wraps_state) != NOBODY_WRAPS && is_wrapper(caller);
}

/* The last caller that was not UCX, for to find a caller's object takes longer than to look up. Interfaces look up at
 * one place. Forgotten when an object may have gone. */
static const void *known_other;

static SG_COLD bool is_of_ucx(const void *caller)
{
    struct sg_object object;
    if (!sg_loaded_holding(caller, &object))
        return false;
    const char *slash = strrchr(object.path, '/');
    const char *file = slash != NULL ? slash + 1 : object.path;
    return strncmp(file, "libucm.so", sizeof "libucm.so" - 1) == 0;
}

static inline bool is_ucx(const void *caller)
{
    if (SG_LIKELY(caller == sg_load_relaxed(&known_other)))
        return false;
    if (is_of_ucx(caller))
        return true;
    sg_store_relaxed(&known_other, caller);
    return false;
}

/* Whether the caller writes a jump over the code that it finds. UCX does so with these, to learn of each mapping, and
 * calls the kernel itself instead. It must find the libc's functions, which the hooks call: it would cut off a hook. */
static inline bool is_patched(enum sg_hook hook, const void *caller)
{
    static const uint8_t patched[] = {SG_HOOK_mmap, SG_HOOK_munmap, SG_HOOK_mremap, SG_HOOK_madvise,
                                      SG_HOOK_brk,  SG_HOOK_sbrk,   SG_HOOK_shmat,  SG_HOOK_shmdt};
    return memchr(patched, (int)hook, sizeof patched) != NULL && is_ucx(caller);
}

/* Whether a look-up found what the hook calls next, for a caller that neither is called by the hook nor patches it. */
static inline bool is_hooks(enum sg_hook hook, const void *found, const void *caller)
{
    return found != NULL && as_pointer(sg_real_find(hook)) == found && !is_next_asking(caller) &&
           !is_patched(hook, caller);
}

/* Where a handle has no such name, dlerror() tells already, and the libc need not be asked again. */
struct sg_dlsym_answer sg_dlsym_filter(void *handle, const char *name, const char *unused, const void *caller)
{
    (void)unused;
    if (SG_UNLIKELY(sg_load_acquire(&sg_dlsym_next) == NULL))
        (void)sg_real_dlsym(RTLD_NEXT, "dlsym");
    sg_function next = sg_dlsym_next;
    if (SG_UNLIKELY(next == NULL || name == NULL || sg_options.is_disabled))
        return pass_to(next);
    if (may_be_hooked(name))
        return answer_cuda(next, handle, name, NULL, caller);
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT)
        return pass_to(next); /* the libc finds the exports */
    enum sg_hook hook = find_libc_hook(name);
    if (hook == SG_HOOK_COUNT)
        return pass_to(next);
    void *found = ask_libc(next, handle, name, NULL);
    return is_hooks(hook, found, caller) ? answer(sg_real_ours(hook)) : answer(as_function(found));
}

struct sg_dlsym_answer sg_dlsym_filter_version(void *handle, const char *name, const char *version, const void *caller)
{
    sg_function next = sg_real_find(SG_HOOK_dlvsym);
    if (next == NULL || name == NULL || version == NULL || sg_options.is_disabled)
        return pass_to(next);
    if (may_be_hooked(name))
        return answer_cuda(next, handle, name, version, caller);
    enum sg_hook hook = find_libc_hook(name);
    if (hook == SG_HOOK_COUNT || (handle == RTLD_NEXT && !passes_over_us(name, caller)))
        return pass_to(next);
    void *found = ask_libc(next, handle, name, version);
    if (is_hooks(hook, found, caller))
        return answer(sg_real_ours(hook));
    return handle == RTLD_DEFAULT || handle == RTLD_NEXT ? pass_to(next) : answer(as_function(found));
}

/* ---- dlopen and dlclose ------------------------------------------------------------------------------------------ */

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
    int result = SG_REAL(dlclose)(handle);
    sg_store_relaxed(&known_other, (const void *)NULL);
    return result;
}
