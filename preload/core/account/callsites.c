/*
 * callsites.c - see callsites.h. A class is a small open-addressing hash table that only grows. A number is claimed by
 * compare-and-swap of its key and is never freed, so a call site keeps its number.
 */
#include "account/callsites.h"

#include "base/procfs.h"
#include "base/syscall.h"

#include <elf.h>
#include <fcntl.h>
#include <string.h>

static struct sg_callsite before_fork[SG_CALLSITE_CLASSES][SG_CALLSITE_CAPACITY];
static uint32_t tried[SG_CALLSITE_CLASSES]; /* a bit for each call site that was named late, or could not be */
static uint32_t has_sites;                  /* (atomic) without call sites the pages of before_fork stay untouched */

/* ---- the name: library and offset -------------------------------------------------------------------------------- */

/* First mapping of the file whose lines of /proc/self/maps are being read. */
struct module {
    uint64_t file;
    uint64_t begin;
    bool has_header;
};

/* The load address to subtract from an address in this file: 0 for an executable that is not position-independent. The
 * ELF header is read through /proc/self/mem, because another thread may unmap it meanwhile. */
static uint64_t bias_of(const struct module *module)
{
    Elf64_Ehdr header = {0};
    long fd = sg_sys_openat((int)SG_AT_FDCWD, "/proc/self/mem", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return module->begin;
    (void)sg_sys_pread((int)fd, &header, sizeof header, module->begin);
    (void)sg_sys_close((int)fd);
    return memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_type == ET_EXEC ? 0 : module->begin;
}

/* The search for the mapping that an address lies in. */
struct search {
    struct sg_callsite *site;
    uint64_t address;
    struct module module;
};

/* Names the call site if its address lies in the mapping. Returns whether to go on. */
static bool look_at(void *context, const struct sg_procfs_mapping *mapping)
{
    static const char anonymous[] = "[anonymous]";
    struct search *search = context;
    struct module *module = &search->module;
    struct sg_callsite *site = search->site;
    bool has_header = mapping->offset == 0 && mapping->rights[0] == 'r';
    if (mapping->file != 0 &&
        (has_header || mapping->file != module->file)) /* a file may be mapped twice, side by side */
        *module = (struct module){mapping->file, mapping->begin, has_header};
    if (search->address < mapping->begin || search->address >= mapping->end)
        return true;
    if (mapping->file != 0 && module->has_header)
        site->offset = search->address - bias_of(module);
    else
        site->offset = search->address - mapping->begin + mapping->offset;
    if (mapping->name_length != 0)
        memcpy(site->library, mapping->name, mapping->name_length);
    else
        memcpy(site->library, anonymous, sizeof anonymous - 1);
    sg_store_release(&site->is_named, UINT64_C(1)); /* pairs with readers of the segment, also after a kill */
    return false;
}

/* Names a call site by the kernel's list of mappings. Leaves it unnamed if no descriptor is free. */
static void name(struct sg_callsite *site, uint64_t address)
{
    struct search search = {.site = site, .address = address};
    (void)sg_procfs_visit_mappings(look_at, &search);
}

void sg_callsites_name_late(void)
{
    _Static_assert(SG_CALLSITE_CAPACITY <= 32, "a bit for each");
    for (uint32_t class = 0; class < SG_CALLSITE_CLASSES; class ++)
        for (uint32_t number = SG_CALLSITE_FIRST; number < SG_CALLSITE_CAPACITY; number++) {
            struct sg_callsite *site = &sg_own->site[class][number];
            uint64_t key = sg_load_relaxed(&site->key);
            if (key == 0 || sg_load_acquire(&site->is_named) != 0 || (tried[class] & 1u << number) != 0)
                continue;
            tried[class] |= 1u << number;
            name(site, key >> 3);
        }
}

/* ---- the numbers ------------------------------------------------------------------------------------------------- */

uint32_t sg_callsites_find_farther(enum sg_callsite_class class, uint64_t key, uint32_t number)
{
    struct sg_callsite *sites = sg_own->site[class];
    for (uint32_t i = 0; i < SG_CALLSITE_CAPACITY; i++, number = (number + 1) % SG_CALLSITE_CAPACITY) {
        uint64_t held = sg_load_relaxed(&sites[number].key);
        if (number < SG_CALLSITE_FIRST)
            continue;
        if (held == 0 && sg_cas_u64(&sites[number].key, &held, key)) {
            sg_store_relaxed(&has_sites, 1u);
            name(&sites[number], key >> 3);
            return number;
        }
        if (held == key)
            return number;
    }
    return SG_CALLSITE_OTHER;
}

SG_COLD uint32_t sg_callsites_enter_farther(enum sg_callsite_class class, uint64_t key, uint32_t number, uint64_t bytes)
{
    return sg_callsites_add(class, sg_callsites_find_farther(class, key, number), bytes);
}

/* Whether publishing the changed call sites lowers the live bytes of one of them. */
static bool loses_bytes(const struct sg_range_map *ranges)
{
    for (uint32_t changed = ranges->changed_sites; changed != 0; changed &= changed - 1) {
        unsigned number = (unsigned)__builtin_ctz(changed);
        if (ranges->site[number].bytes < sg_load_relaxed(&sg_own->site[SG_CALLSITES_MAPPED][number].live_bytes))
            return true;
    }
    return false;
}

/* Copies live_bytes of all call sites to the field of struct sg_callsite at `offset`. */
static void copy_live_to(size_t offset)
{
    for (unsigned class = 0; class < SG_CALLSITE_CLASSES; class ++)
        for (unsigned number = 0; number < SG_CALLSITE_CAPACITY; number++) {
            struct sg_callsite *site = &sg_own->site[class][number];
            uint64_t *kept = (uint64_t *)(void *)((char *)site + offset);
            uint64_t live_bytes = sg_load_relaxed(&site->live_bytes);
            if (sg_load_relaxed(kept) != live_bytes) /* most stay 0: do not touch their pages */
                sg_store_relaxed(kept, live_bytes);
        }
}

/* One thread copies while other threads go on: blocks that they free meanwhile may be missing in the copy. A new peak
 * meanwhile sets the state to LIVE again, so that it is copied as well. */
SG_COLD void sg_callsites_keep_peak(void)
{
    uint32_t due = SG_CALLSITES_PEAK_LIVE, keeping = SG_CALLSITES_PEAK_KEEPING;
    if (!sg_cas_u32(&sg_own->sites_peak_state, &due, keeping))
        return;
    copy_live_to(offsetof(struct sg_callsite, at_peak_bytes));
    (void)sg_cas_u32(&sg_own->sites_peak_state, &keeping, SG_CALLSITES_PEAK_KEPT);
}

void sg_callsites_keep_refusal(void)
{
    if (sg_load_relaxed(&has_sites) != 0)
        copy_live_to(offsetof(struct sg_callsite, at_refusal_bytes));
}

void sg_callsites_publish_ranges(struct sg_range_map *ranges)
{
    if (ranges->changed_sites != 0 && sg_load_relaxed(&sg_own->sites_peak_state) == SG_CALLSITES_PEAK_LIVE &&
        loses_bytes(ranges))
        sg_callsites_keep_peak();
    for (uint32_t changed = ranges->changed_sites; changed != 0; changed &= changed - 1) {
        unsigned number = (unsigned)__builtin_ctz(changed);
        struct sg_callsite *site = &sg_own->site[SG_CALLSITES_MAPPED][number];
        sg_store_relaxed(&site->live_bytes, ranges->site[number].bytes);
        sg_store_relaxed(&site->live_count, (uint64_t)ranges->site[number].count);
        sg_raise_to(&site->peak_bytes, ranges->site[number].bytes);
    }
    ranges->changed_sites = 0;
}

/* The child has no array credit: its call sites do not count the arrays behind it. */
static void leave_out_credit(uint64_t word)
{
    struct sg_callsite *site = &before_fork[SG_CALLSITES_HEAP][sg_array_site(word)];
    site->live_bytes -= sg_array_site_bytes(word);
    site->live_count -= sg_array_site_count(word);
}

void sg_callsites_before_fork(void)
{
    if (sg_load_relaxed(&has_sites) == 0)
        return;
    memcpy(before_fork, sg_own->site, sizeof before_fork);
    for (uint32_t i = 0; i < sg_load(&sg_own->record_used) && i < SG_RECORD_LIMIT; i++)
        leave_out_credit(sg_load_relaxed(&sg_own->record[i].array_credit));
}

void sg_callsites_atfork_child(void)
{
    if (sg_load_relaxed(&has_sites) == 0)
        return;
    memcpy(sg_own->site, before_fork, sizeof before_fork);
    memset(tried, 0, sizeof tried);
    for (unsigned class = 0; class < SG_CALLSITE_CLASSES; class ++)
        for (unsigned number = 0; number < SG_CALLSITE_CAPACITY; number++)
            sg_own->site[class][number].at_refusal_bytes = 0; /* the child has been refused nothing */
    sg_callsites_note_peak();
}
