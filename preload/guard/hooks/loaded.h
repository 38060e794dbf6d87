/*
 * loaded.h - the objects loaded now, and their functions, without the dynamic linker's main lock.
 *
 * dlopen holds that lock while constructors run, and dlsym, dladdr and dlclose wait for it. A constructor may wait for
 * a thread that makes its first CUDA call meanwhile. If that thread waited for the lock, both would wait for ever.
 * dl_iterate_phdr takes another lock, which the linker holds only while its list of objects changes. Any thread, not in
 * signal handlers. No memory is allocated.
 *
 * An object's tables are read without keeping it loaded. The caller must pass only objects that stay loaded: the caller
 * of the hook, an object that this caller needs, or a library kept by sg_real_keep.
 */
#ifndef SG_PRELOAD_HOOKS_LOADED_H
#define SG_PRELOAD_HOOKS_LOADED_H

#include "base/elf_symbols.h"

struct sg_object {
    uintptr_t bias; /* base of the object's addresses */
    const ElfW(Dyn) * dynamic;
    const char *path;  /* empty: the program */
    unsigned position; /* in the linker's list, which begins with the program's start-up objects in symbol order */
};

/* Finds the first object whose file name or DT_SONAME is `name`. False: there is none. */
bool sg_loaded_named(const char *name, struct sg_object *object);

/* Finds the object that contains an address. False: there is none. */
bool sg_loaded_holding(const void *address, struct sg_object *object);

/* Whether the object comes before this library in symbol order: the program itself, or a library preloaded before. */
bool sg_loaded_is_ahead(const struct sg_object *object);

/* The function that dlsym would return for a handle of the object, or NULL. Searches the object and then the objects it
 * needs, breadth first, at most 256; never this library. */
void *sg_loaded_find(const struct sg_object *object, const char *symbol);

/* The function that dlsym(RTLD_NEXT) would return to this library among the objects that the program started with, or
 * NULL. */
void *sg_loaded_next(const char *symbol);

/* The function of that name in the first object that has one and whose file name begins with `prefix`, or NULL. */
void *sg_loaded_anywhere(const char *prefix, const char *symbol);

#endif
