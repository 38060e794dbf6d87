/*
 * loaded.c - see loaded.h. dl_iterate_phdr visits only the caller's linker namespace, so objects of other namespaces
 * (dlmopen) are never found.
 */
#include "hooks/loaded.h"

#include "base/compiler.h"

#include <string.h>

enum { OBJECTS_MAX = 256 }; /* objects that one search visits */

enum search_kind { BY_NAME, BY_ADDRESS, BY_POSITION, BY_PREFIX };

struct search {
    enum search_kind kind;
    const char *name; /* BY_PREFIX: the beginning of a file name */
    const char *symbol;
    uintptr_t address;
    unsigned position; /* of the object that is being visited */
    struct sg_object *found;
    void *function;
};

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static const Elf64_Dyn *dynamic_of(const struct dl_phdr_info *info)
{
    for (unsigned i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            return (const Elf64_Dyn *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    return NULL;
}

static bool contains(const struct dl_phdr_info *info, uintptr_t address)
{
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type == PT_LOAD && address - info->dlpi_addr - header->p_vaddr < header->p_memsz)
            return true;
    }
    return false;
}

/* The next string with this tag in the object's dynamic section, from *entry on; *entry moves past it. NULL: none. */
static const char *next_text(const struct sg_elf_symbols *symbols, const Elf64_Dyn **entry, Elf64_Sxword tag)
{
    for (; (*entry)->d_tag != DT_NULL; (*entry)++)
        if ((*entry)->d_tag == tag)
            return symbols->strings + (*entry)++->d_un.d_val;
    return NULL;
}

static bool has_name(const struct dl_phdr_info *info, const Elf64_Dyn *dynamic, const char *name)
{
    struct sg_elf_symbols symbols;
    const char *soname = NULL;
    if (strcmp(file_name(info->dlpi_name), file_name(name)) == 0)
        return true;
    if (sg_elf_symbols_open(&symbols, info->dlpi_addr, dynamic))
        soname = next_text(&symbols, &dynamic, DT_SONAME);
    return soname != NULL && strcmp(soname, name) == 0;
}

/* A function that the object itself defines, or NULL. NULL for this library, so that no search finds a hook. */
static void *own_function(uintptr_t bias, const Elf64_Dyn *dynamic, const char *symbol)
{
    struct sg_elf_symbols symbols;
    void *function = NULL;
    if (dynamic != _DYNAMIC && sg_elf_symbols_open(&symbols, bias, dynamic))
        (void)sg_elf_symbols_find(&symbols, symbol, &function);
    return function;
}

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct search *search = data;
    const Elf64_Dyn *dynamic = dynamic_of(info);
    unsigned position = search->position++;
    bool is_match = false;
    if (dynamic == NULL)
        return 0;
    if (search->kind == BY_NAME)
        is_match = has_name(info, dynamic, search->name);
    else if (search->kind == BY_ADDRESS)
        is_match = contains(info, search->address);
    else if (search->kind == BY_POSITION)
        is_match = position == search->address;
    else if (strncmp(file_name(info->dlpi_name), search->name, strlen(search->name)) == 0)
        is_match = (search->function = own_function(info->dlpi_addr, dynamic, search->symbol)) != NULL;
    if (is_match && search->found != NULL)
        *search->found = (struct sg_object){info->dlpi_addr, dynamic, info->dlpi_name, position};
    return is_match;
}

bool sg_loaded_named(const char *name, struct sg_object *object)
{
    struct search search = {.kind = BY_NAME, .name = name, .found = object};
    return dl_iterate_phdr(visit, &search) != 0;
}

bool sg_loaded_holding(const void *address, struct sg_object *object)
{
    struct search search = {.kind = BY_ADDRESS, .address = (uintptr_t)address, .found = object};
    return dl_iterate_phdr(visit, &search) != 0;
}

void *sg_loaded_anywhere(const char *prefix, const char *symbol)
{
    struct search search = {.kind = BY_PREFIX, .name = prefix, .symbol = symbol};
    (void)dl_iterate_phdr(visit, &search);
    return search.function;
}

bool sg_loaded_is_ahead(const struct sg_object *object)
{
    struct sg_object ours;
    return sg_loaded_holding(_DYNAMIC, &ours) && object->position < ours.position;
}

/* Objects that a search has yet to visit or has visited. Each is known by its dynamic section alone: a caller's stack
 * may be small. */
struct queue {
    const Elf64_Dyn *dynamic[OBJECTS_MAX];
    unsigned count;
};

static void add_to_queue(struct queue *queue, const Elf64_Dyn *dynamic)
{
    for (unsigned i = 0; i < queue->count; i++)
        if (queue->dynamic[i] == dynamic)
            return;
    if (queue->count < OBJECTS_MAX)
        queue->dynamic[queue->count++] = dynamic;
}

static void add_needed(struct queue *queue, const struct sg_object *object)
{
    struct sg_elf_symbols symbols;
    struct sg_object other;
    const Elf64_Dyn *entry = object->dynamic;
    const char *needed;
    if (!sg_elf_symbols_open(&symbols, object->bias, object->dynamic))
        return;
    while ((needed = next_text(&symbols, &entry, DT_NEEDED)) != NULL)
        if (sg_loaded_named(needed, &other))
            add_to_queue(queue, other.dynamic);
}

/* Searches an object and then the objects that it needs, breadth first. Only functions of objects at position `from` or
 * later in the linker's list match. */
static SG_APART void *find_after(const struct sg_object *first, const char *symbol, unsigned from)
{
    struct queue queue;
    queue.count = 0;
    add_to_queue(&queue, first->dynamic);
    for (unsigned at = 0; at < queue.count; at++) {
        struct sg_object object;
        void *function = NULL;
        if (!sg_loaded_holding(queue.dynamic[at], &object)) /* unloaded meanwhile */
            continue;
        if (object.position >= from)
            function = own_function(object.bias, object.dynamic, symbol);
        if (function != NULL)
            return function;
        add_needed(&queue, &object);
    }
    return NULL;
}

void *sg_loaded_find(const struct sg_object *object, const char *symbol)
{
    return find_after(object, symbol, 0);
}

void *sg_loaded_next(const char *symbol)
{
    struct sg_object program, ours;
    struct search search = {.kind = BY_POSITION, .address = 0, .found = &program};
    void *function = sg_elf_symbols_next(symbol);
    if (function == NULL && sg_loaded_holding(_DYNAMIC, &ours) && dl_iterate_phdr(visit, &search) != 0)
        function = find_after(&program, symbol, ours.position);
    return function;
}
