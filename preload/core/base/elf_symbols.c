/*
 * elf_symbols.c - see elf_symbols.h. The format is that of the System V ABI ("Dynamic Linking") with GNU's hash table
 * (DT_GNU_HASH) and symbol versions (LSB, "Symbol Versioning").
 */
#include "base/elf_symbols.h"

#include <errno.h>
#include <gnu/lib-names.h>
#include <stddef.h>
#include <sys/auxv.h>

#define VERSION_HIDDEN 0x8000 /* not the default version: found only by name and this version */

/* The address of a table. glibc replaces offsets in dynamic sections by addresses, but not in the vDSO's. */
static const void *table_at(uintptr_t bias, uintptr_t value)
{
    return (const void *)(value < bias ? bias + value : value);
}

bool sg_elf_symbols_open(struct sg_elf_symbols *symbols, uintptr_t bias, const ElfW(Dyn) * dynamic)
{
    *symbols = (struct sg_elf_symbols){.bias = bias};
    for (const ElfW(Dyn) *entry = dynamic; entry->d_tag != DT_NULL; entry++) {
        uintptr_t value = entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB)
            symbols->symbol = table_at(bias, value);
        else if (entry->d_tag == DT_STRTAB)
            symbols->strings = table_at(bias, value);
        else if (entry->d_tag == DT_VERSYM)
            symbols->version = table_at(bias, value);
        else if (entry->d_tag == DT_GNU_HASH)
            symbols->gnu_hash = table_at(bias, value);
        else if (entry->d_tag == DT_HASH)
            symbols->sysv_hash = table_at(bias, value);
    }
    return symbols->symbol != NULL && symbols->strings != NULL &&
           (symbols->gnu_hash != NULL || symbols->sysv_hash != NULL);
}

/* As strcmp. A sanitizer replaces strcmp and looks for the real one by this search, so strcmp must not be called
 * here. */
static bool is_same(const char *a, const char *b)
{
    while (*a != '\0' && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

static bool is_symbol(const struct sg_elf_symbols *symbols, uint32_t index, const char *name)
{
    const ElfW(Sym) *symbol = &symbols->symbol[index];
    bool is_version = symbols->version == NULL || symbols->is_any_version || symbols->version[index] < VERSION_HIDDEN;
    return symbol->st_shndx != SHN_UNDEF && is_version && is_same(symbols->strings + symbol->st_name, name);
}

static uint32_t hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (; *name != '\0'; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* The index of a symbol; 0, which no defined symbol has, if there is none. */
static uint32_t find_by_hash(const struct sg_elf_symbols *symbols, const char *name)
{
    enum { WORD_BITS = 8 * sizeof(uintptr_t) };
    const uint32_t *header = symbols->gnu_hash;
    uint32_t buckets = header[0], first = header[1], words = header[2], shift = header[3];
    const uintptr_t *bloom = (const uintptr_t *)&header[4];
    const uint32_t *bucket = (const uint32_t *)&bloom[words], *chain = &bucket[buckets];
    uint32_t hash = hash_of(name);
    uintptr_t word = bloom[hash / WORD_BITS & (words - 1)];
    if ((word >> hash % WORD_BITS & word >> (hash >> shift) % WORD_BITS & 1) == 0)
        return 0;
    uint32_t index = bucket[hash % buckets];
    if (index == 0)
        return 0;
    for (;; index++) {
        uint32_t entry = chain[index - first];
        if ((entry | 1) == (hash | 1) && is_symbol(symbols, index, name))
            return index;
        if ((entry & 1) != 0)
            return 0;
    }
}

/* Linear search, for objects without GNU's hash table: old vDSOs with about a dozen symbols. */
static uint32_t find_one_by_one(const struct sg_elf_symbols *symbols, const char *name)
{
    uint32_t count = symbols->sysv_hash[1];
    for (uint32_t index = 1; index < count; index++)
        if (is_symbol(symbols, index, name))
            return index;
    return 0;
}

static bool find(const struct sg_elf_symbols *symbols, const char *name, unsigned type, void **address)
{
    uint32_t index = symbols->gnu_hash != NULL ? find_by_hash(symbols, name) : find_one_by_one(symbols, name);
    const ElfW(Sym) *symbol = &symbols->symbol[index];
    bool is_of_type = index != 0 && ELF64_ST_TYPE(symbol->st_info) == type;
    *address = is_of_type ? (void *)(symbols->bias + symbol->st_value) : NULL;
    return index != 0;
}

bool sg_elf_symbols_find(const struct sg_elf_symbols *symbols, const char *name, void **address)
{
    return find(symbols, name, STT_FUNC, address);
}

/* ---- the objects of this process --------------------------------------------------------------------------------- */

/* The first object of the list that the dynamic linker shows to debuggers. Objects that were loaded at the start come
 * first, in symbol order. NULL if the program has no such list, because it was started in an unusual way. */
static const struct link_map *first_object(void)
{
    const ElfW(Phdr) *header = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    const ElfW(Dyn) *dynamic = NULL;
    uintptr_t count = header != NULL && header[0].p_type == PT_PHDR ? getauxval(AT_PHNUM) : 0;
    for (uintptr_t i = 1; i < count; i++)
        if (header[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)((uintptr_t)header - header[0].p_vaddr + header[i].p_vaddr);
    for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == DT_DEBUG && dynamic->d_un.d_ptr != 0)
            return ((const struct r_debug *)dynamic->d_un.d_ptr)->r_map;
    return NULL;
}

static bool is_libc(const struct link_map *object)
{
    const size_t libc_length = sizeof LIBC_SO - 1;
    const char *name = object->l_name;
    size_t length = 0;
    while (name[length] != '\0')
        length++;
    return length >= libc_length && (length == libc_length || name[length - libc_length - 1] == '/') &&
           is_same(name + length - libc_length, LIBC_SO);
}

/* Finds a function as the dynamic linker would for a program. Programs ask for the libc's functions by version. A
 * function of another object then matches even if it has no default version; those of libc_malloc_debug, glibc's
 * checking heap, have none. */
static bool find_as_programs_do(const struct link_map *object, const char *name, void **address)
{
    struct sg_elf_symbols symbols;
    if (!sg_elf_symbols_open(&symbols, object->l_addr, object->l_ld))
        return false;
    if (sg_elf_symbols_find(&symbols, name, address))
        return true;
    symbols.is_any_version = !is_libc(object);
    return symbols.is_any_version && sg_elf_symbols_find(&symbols, name, address);
}

/* This library in the list; NULL if it comes after the libc, or if there is no list. */
static const struct link_map *find_us(void)
{
    const struct link_map *object = first_object();
    while (object != NULL && object->l_ld != _DYNAMIC)
        object = is_libc(object) ? NULL : object->l_next;
    return object;
}

/* Searches the objects after this library up to the libc; `includes_libc`: including the libc. Objects after the libc
 * may have been loaded later and may be unloaded at any time. */
static void *find_after_us(const char *name, bool includes_libc)
{
    const struct link_map *object = find_us();
    bool is_last = object == NULL;
    while (!is_last && (object = object->l_next) != NULL) {
        void *address;
        is_last = is_libc(object);
        if ((includes_libc || !is_last) && find_as_programs_do(object, name, &address))
            return address;
    }
    return NULL;
}

void *sg_elf_symbols_next(const char *name)
{
    return find_after_us(name, true);
}

void *sg_elf_symbols_between(const char *name)
{
    return find_after_us(name, false);
}

bool sg_elf_symbols_any_between(bool (*is_it)(const struct sg_elf_symbols *, const void *), const void *data)
{
    const struct link_map *object = find_us();
    struct sg_elf_symbols symbols;
    while (object != NULL && (object = object->l_next) != NULL && !is_libc(object))
        if (sg_elf_symbols_open(&symbols, object->l_addr, object->l_ld) && is_it(&symbols, data))
            return true;
    return false;
}

enum sg_order sg_elf_symbols_before(const char *name, void **address)
{
    const struct link_map *object = first_object();
    *address = NULL;
    for (; object != NULL && object->l_ld != _DYNAMIC /* this library */; object = object->l_next) {
        if (find_as_programs_do(object, name, address))
            return *address != NULL ? SG_ORDER_BEFORE : SG_ORDER_UNKNOWN;
    }
    return object != NULL ? SG_ORDER_OURS : SG_ORDER_UNKNOWN;
}

const void *sg_elf_symbols_variable(const char *name)
{
    bool is_last = false;
    for (const struct link_map *object = first_object(); object != NULL && !is_last; object = object->l_next) {
        struct sg_elf_symbols symbols;
        void *address;
        is_last = is_libc(object);
        if (sg_elf_symbols_open(&symbols, object->l_addr, object->l_ld) && find(&symbols, name, STT_OBJECT, &address))
            return address;
    }
    return NULL;
}

void *sg_elf_symbols_vdso(const char *name)
{
    int saved_errno = errno;
    const char *image = (const char *)getauxval(AT_SYSINFO_EHDR);
    errno = saved_errno; /* getauxval sets errno if there is no vDSO: under valgrind and qemu-user */
    if (image == NULL)
        return NULL;
    const ElfW(Ehdr) *file = (const ElfW(Ehdr) *)(const void *)image;
    const ElfW(Phdr) *header = (const ElfW(Phdr) *)(const void *)(image + file->e_phoff);
    const ElfW(Dyn) *dynamic = NULL;
    uintptr_t bias = (uintptr_t)image;
    for (unsigned i = 0; i < file->e_phnum; i++) {
        if (header[i].p_type == PT_LOAD)
            bias = (uintptr_t)image + header[i].p_offset - header[i].p_vaddr;
        else if (header[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(const void *)(image + header[i].p_offset);
    }
    struct sg_elf_symbols symbols;
    void *address = NULL;
    if (dynamic != NULL && sg_elf_symbols_open(&symbols, bias, dynamic))
        (void)sg_elf_symbols_find(&symbols, name, &address);
    return address;
}
