/*
 * elf_symbols.h - finds functions of loaded objects without the dynamic linker: without a lock, without allocation, and
 * without changing the program's dlerror().
 *
 * Only two kinds of objects are searched here: the kernel's vDSO, and objects loaded when the program started. Those
 * are never unloaded, so their tables may be read at any time. Any thread, before set-up, in signal handlers. loaded.h
 * searches objects that were loaded later.
 */
#ifndef SG_PRELOAD_BASE_ELF_SYMBOLS_H
#define SG_PRELOAD_BASE_ELF_SYMBOLS_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* The tables of one object. */
struct sg_elf_symbols {
    uintptr_t bias; /* base of the object's addresses */
    const ElfW(Sym) * symbol;
    const char *strings;
    const ElfW(Half) * version;   /* of each symbol; NULL: the object has no versions */
    const uint32_t *gnu_hash;     /* at least one of the two hash tables is not NULL */
    const ElfW(Word) * sysv_hash; /* used only for the number of symbols */
    bool is_any_version;          /* find also symbols that have only non-default versions */
};

/* Finds the tables by the object's dynamic section. `bias` is the base of its addresses. False: a table is missing. */
bool sg_elf_symbols_open(struct sg_elf_symbols *symbols, uintptr_t bias, const ElfW(Dyn) * dynamic);

/* Whether the object defines `name`, in its default version. *address becomes NULL if the symbol is no function, or if
 * the dynamic linker must choose the function (STT_GNU_IFUNC). */
bool sg_elf_symbols_find(const struct sg_elf_symbols *symbols, const char *name, void **address);

/* The function that dlsym(RTLD_NEXT, name) would return to this library, if an object after ours up to the libc defines
 * it; else NULL. */
void *sg_elf_symbols_next(const char *name);

/* As sg_elf_symbols_next, but without the libc. */
void *sg_elf_symbols_between(const char *name);

/* Whether `is_it` holds of an object after ours and before the libc; `data` is passed to it. */
bool sg_elf_symbols_any_between(bool (*is_it)(const struct sg_elf_symbols *, const void *), const void *data);

/* Finds which object defines the global `name`, which this library exports too: an object loaded before this library
 * (its function becomes *address), or this library. SG_ORDER_UNKNOWN: only dlsym could find that out. */
enum sg_order { SG_ORDER_OURS, SG_ORDER_BEFORE, SG_ORDER_UNKNOWN };
enum sg_order sg_elf_symbols_before(const char *name, void **address);

/* The variable that the dynamic linker binds `name` to: the program's copy of a variable of the libc, if the program
 * has one. NULL: no object up to the libc defines a variable of that name. */
const void *sg_elf_symbols_variable(const char *name);

/* A function of the vDSO; NULL if there is no vDSO or no such function. Keeps errno. */
void *sg_elf_symbols_vdso(const char *name);

#endif
