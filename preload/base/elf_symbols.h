/*
 * elf_symbols.h - functions of loaded objects, found without the dynamic linker: no lock, no memory, and dlerror()
 * keeps what it was to tell.
 *
 * The library itself looks through the kernel's vDSO and objects that were there when the program began; those are
 * never unloaded, so their tables may be read at any time. Any thread, before set-up, in signal handlers. loaded.h
 * looks through others.
 */
#ifndef SG_PRELOAD_BASE_ELF_SYMBOLS_H
#define SG_PRELOAD_BASE_ELF_SYMBOLS_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* The tables of one object. */
struct sg_elf_symbols {
    uintptr_t bias; /* what its addresses are relative to */
    const ElfW(Sym) * symbol;
    const char *strings;
    const ElfW(Half) * version;   /* of each symbol; NULL: it has none */
    const uint32_t *gnu_hash;     /* one of these two is there */
    const ElfW(Word) * sysv_hash; /* here only the number of symbols counts */
    bool is_any_version;          /* also one that only those get who ask for it by name */
};

/* False: not what can be read here. */
bool sg_elf_symbols_open(struct sg_elf_symbols *symbols, uintptr_t bias, const ElfW(Dyn) * dynamic);

/* Whether the object defines `name`, in its default version. *address is NULL if that is something other than a
 * function, or one that the dynamic linker must choose (STT_GNU_IFUNC). */
bool sg_elf_symbols_find(const struct sg_elf_symbols *symbols, const char *name, void **address);

/* The name of the function at that address, or NULL. Looks at every symbol. */
const char *sg_elf_symbols_name(const struct sg_elf_symbols *symbols, const void *address);

/* What dlsym(RTLD_NEXT, name) gives us, as far as it lies behind us, up to and in the libc; else NULL. */
void *sg_elf_symbols_next(const char *name);

/* The same of objects that lie before the libc. */
void *sg_elf_symbols_between(const char *name);

/* Finds out who defines the global `name`, which we export: an object before us (its function is *address), or we;
 * unknown where only dlsym can tell. */
enum sg_order { SG_ORDER_OURS, SG_ORDER_BEFORE, SG_ORDER_UNKNOWN };
enum sg_order sg_elf_symbols_before(const char *name, void **address);

/* A function of the vDSO, or NULL. */
void *sg_elf_symbols_vdso(const char *name);

#endif
