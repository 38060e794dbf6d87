/*
 * loaded.h - the objects that the process has loaded by now, and their functions, without the dynamic linker's main
 * lock.
 *
 * dlopen holds that lock while constructors run, and dlsym, dladdr and dlclose wait for it. A constructor that waits
 * for a thread, which makes its first CUDA call meanwhile, must not find that thread waiting for the lock.
 * dl_iterate_phdr takes another lock, which the linker holds only while its list of objects changes. Any thread, not
 * in signal handlers. No memory is allocated.
 *
 * The caller must know that an object stays loaded for as long as its tables are read: it is the caller of the hook,
 * what that needs, or a library that is kept (sg_real_keep).
 */
#ifndef SG_PRELOAD_BASE_LOADED_H
#define SG_PRELOAD_BASE_LOADED_H

#include "base/elf_symbols.h"

struct sg_object {
    uintptr_t bias;
    const ElfW(Dyn) * dynamic;
    unsigned position; /* in the linker's list: the program's own objects first, in the order of its global scope */
};

/* The first object whose file name or DT_SONAME is `name`. */
bool sg_loaded_named(const char *name, struct sg_object *object);

/* The object that an address lies in. */
bool sg_loaded_holding(const void *address, struct sg_object *object);

/* Whether the object comes ahead of this library: the program itself, and what is preloaded ahead of us. */
bool sg_loaded_is_ahead(const struct sg_object *object);

/* The answer of dlsym on a handle of the object: a function of its own or of what it needs, breadth first; never
 * ours. */
void *sg_loaded_find(const struct sg_object *object, const char *symbol);

/* The answer of dlsym(RTLD_NEXT) to us, among objects that the program started with. */
void *sg_loaded_next(const char *symbol);

/* The function in the first object whose file name begins with `prefix` and that has one. */
void *sg_loaded_anywhere(const char *prefix, const char *symbol);

#endif
