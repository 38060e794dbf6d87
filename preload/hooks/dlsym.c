/*
 * dlsym.c - the second entry point: dlsym. Beside it dlopen, whose RTLD_DEEPBIND would lead past every entry point, and
 * dlclose, before which the libraries are kept that we hold addresses of.
 *
 * The exported dlsym is a few instructions of assembly (entry_points.S): it asks sg_dlsym_filter, and where that has no
 * answer it jumps to the libc's dlsym with the caller's return address in place, because RTLD_NEXT and RTLD_DEFAULT
 * depend on it.
 */
#include "hooks/dlsym.h"

#include "base/atomics.h"
#include "base/compiler.h"
#include "base/options.h"
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

/* Only whole names count: a prefix test would also catch cudnn, cublas and curl. */
static enum sg_hook find_hook(const char *name)
{
    for (unsigned hook = 0; hook < SG_HOOK_COUNT; hook++)
        if (sg_hook_table[hook].family != SG_FAMILY_LIBC && strcmp(sg_hook_table[hook].symbol, name) == 0)
            return (enum sg_hook)hook;
    return SG_HOOK_COUNT;
}

/* What all our names but the libc's begin with: cu, cuda or nvml. Almost everything that is asked for ends here. */
static bool is_worth_a_look(const char *name)
{
    return (name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v');
}

/* The libc's own entry points. */
static enum sg_hook find_door(const char *name)
{
    static const enum sg_hook door[] = {SG_HOOK_dlsym, SG_HOOK_dlopen, SG_HOOK_dlmopen, SG_HOOK_dlclose};
    for (size_t i = 0; name[0] == 'd' && name[1] == 'l' && i < SG_ARRAY_LENGTH(door); i++)
        if (strcmp(name, sg_hook_table[door[i]].symbol) == 0)
            return door[i];
    return SG_HOOK_COUNT;
}

/* The answer "not there", with the dlerror() that belongs to it. */
static void *absent(const char *name)
{
    void *libc = SG_REAL(dlopen)("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (libc != NULL)
        (void)sg_real_dlsym(libc, name);
    return SG_DLSYM_ABSENT;
}

/* Our exports stand in the global scope even where no CUDA is: a probe must not take them for a driver. */
static void *answer_global(enum sg_hook hook, const char *name)
{
    sg_function real =
        sg_hook_table[hook].family == SG_FAMILY_DRIVER ? sg_real_find(hook) : sg_real_dlsym(RTLD_NEXT, name);
    return real != NULL ? as_pointer(sg_real_ours(hook)) : absent(name);
}

/* Whether that is what lies behind the hook. Another library may have a function of the same name that wraps it: were
 * both led through the hook, the wrapper would call itself. Or it is the driver of another namespace (dlmopen), which
 * is not ours to ask. Programs close NVML and go on with what they found there. */
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
    enum sg_hook door = find_door(name);
    if (door != SG_HOOK_COUNT && sg_real_dlsym(handle, name) == sg_real_find(door))
        return as_pointer(sg_real_ours(door)); /* who asks the libc for it goes by what it gave */
    if (!is_worth_a_look(name))
        return NULL;
    enum sg_hook hook = find_hook(name);
    if (hook == SG_HOOK_COUNT)
        return NULL;
    sg_function found = sg_real_dlsym(handle, name);
    if (found == NULL)
        return NULL; /* the jump repeats the look-up and leaves its error */
    if (found == sg_real_ours(hook))
        return answer_global(hook, name);
    if (sg_hook_table[hook].family == SG_FAMILY_RUNTIME)
        return as_pointer(sg_runtime_thunk(hook, found));
    return is_real(hook, found) ? as_pointer(sg_real_ours(hook)) : NULL;
}

/* A library opened RTLD_DEEPBIND takes its functions of its own dependencies first: of the libc, the driver, not of
 * us. */
static int judge_mode(int mode)
{
    if ((mode & RTLD_DEEPBIND) == 0)
        return mode;
    if (!sg_options_are_read())
        sg_options_read(environ); /* another library's constructor is ahead of ours */
    return sg_options.is_disabled || sg_options.deepbind_kept ? mode : mode & ~RTLD_DEEPBIND;
}

struct sg_dlopen_answer sg_dlopen_filter(const char *file, int mode)
{
    (void)file;
    return (struct sg_dlopen_answer){sg_real_find(SG_HOOK_dlopen), (uint32_t)judge_mode(mode)};
}

/* In another namespace than the program's there is no preload to come first. */
struct sg_dlopen_answer sg_dlmopen_filter(long space, const char *file, int mode)
{
    (void)file;
    return (struct sg_dlopen_answer){sg_real_find(SG_HOOK_dlmopen),
                                     (uint32_t)(space == LM_ID_BASE ? judge_mode(mode) : mode)};
}

SG_EXPORT int dlclose(void *handle)
{
    if (!sg_options.is_disabled)
        sg_real_keep();
    return SG_REAL(dlclose)(handle);
}
