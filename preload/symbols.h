/*
 * symbols.h - functions of loaded objects, found without the dynamic linker: no lock, no memory, and dlerror() keeps what it
 * was to tell.
 *
 * Looked through are the kernel's vDSO and objects that were there when the program began; those are never unloaded, so
 * their tables may be read at any time. Any thread, before set-up, in signal handlers.
 */
#ifndef SG_SYMBOLS_H
#define SG_SYMBOLS_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* The tables of one object. */
struct sg_symbols {
    uintptr_t bias; /* what its addresses are relative to */
    const ElfW(Sym) * symbol;
    const char *strings;
    const ElfW(Half) * version;   /* of each symbol; NULL: it has none */
    const uint32_t *gnu_hash;     /* one of these two is there */
    const ElfW(Word) * sysv_hash; /* here only the number of symbols counts */
};

/* False: not what can be read here. */
bool sg_symbols_open(struct sg_symbols *symbols, uintptr_t bias, const ElfW(Dyn) * dynamic);

/* Whether the object defines `name`, in its default version. *address is NULL if that is something other than a function,
 * or one that the dynamic linker must choose (STT_GNU_IFUNC). */
bool sg_symbols_find(const struct sg_symbols *symbols, const char *name, void **address);

/* What dlsym(RTLD_NEXT, name) gives us, as far as it lies behind us, up to and in the libc; else NULL. */
void *sg_symbols_next(const char *name);

/* A function of the vDSO, or NULL. */
void *sg_symbols_vdso(const char *name);

#endif
