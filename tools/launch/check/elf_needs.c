/*
 * elf_needs.c - see elf_needs.h.
 */
#include "launch/check/elf_needs.h"

#include <elf.h>
#include <stdint.h>
#include <string.h>

#include "common/elf.h"
#include "common/text.h"
#include "common/tool.h"

/* The largest programs need some hundred libraries and versions. */
enum { LIBRARIES_MAX = 1024, VERSIONS_MAX = 4096, TEXT_MAX = 4096 };

/* Where the tables are, as the dynamic section says. */
struct tables {
    uint64_t strings, string_bytes, needs, need_count; /* the first and third are offsets in the file */
};

/* Returns a text of the string table; NULL if it is not in it. */
static char *read_string(const struct elf_file *file, const struct tables *tables, uint64_t at)
{
    static char bytes[TEXT_MAX];
    uint64_t offset;
    if (at >= tables->string_bytes || __builtin_add_overflow(tables->strings, at, &offset))
        return NULL;
    uint64_t left = tables->string_bytes - at, length = left < sizeof bytes ? left : sizeof bytes;
    size_t got = elf_file_read_some(file, offset, bytes, (size_t)length);
    return memchr(bytes, '\0', got) != NULL ? text_copy(bytes, sizeof bytes) : NULL;
}

static bool read_tables(const struct elf_file *file, struct tables *tables)
{
    ElfW(Dyn) entry;
    uint64_t strings = 0, needs = 0;
    for (unsigned i = 0; elf_file_dynamic(file, i, &entry); i++) {
        if (entry.d_tag == DT_STRTAB)
            strings = entry.d_un.d_ptr;
        else if (entry.d_tag == DT_STRSZ)
            tables->string_bytes = entry.d_un.d_val;
        else if (entry.d_tag == DT_VERNEED)
            needs = entry.d_un.d_ptr;
        else if (entry.d_tag == DT_VERNEEDNUM)
            tables->need_count = entry.d_un.d_val;
    }
    if (strings == 0)
        return true; /* nothing is needed */
    return elf_file_offset(file, strings, &tables->strings) &&
           (needs == 0 || elf_file_offset(file, needs, &tables->needs));
}

/* Stores a text in an empty place. */
static bool store(char **place, char *text)
{
    if (*place == NULL)
        *place = text;
    return text != NULL;
}

static bool read_entries(const struct elf_file *file, const struct tables *tables, struct elf_needs *needs)
{
    ElfW(Dyn) entry;
    bool is_good = true;
    needs->libraries = tool_allocate(LIBRARIES_MAX, sizeof needs->libraries[0]);
    for (unsigned i = 0; is_good && elf_file_dynamic(file, i, &entry); i++) {
        char **place = entry.d_tag == DT_RPATH                                 ? &needs->rpath
                       : entry.d_tag == DT_RUNPATH                             ? &needs->runpath
                       : entry.d_tag == DT_AUDIT || entry.d_tag == DT_DEPAUDIT ? &needs->auditor
                       : entry.d_tag == DT_NEEDED                              ? &needs->libraries[needs->library_count]
                                                                               : NULL;
        if (place == NULL)
            continue;
        is_good = store(place, read_string(file, tables, entry.d_un.d_val));
        needs->library_count += is_good && entry.d_tag == DT_NEEDED;
        is_good = is_good && needs->library_count < LIBRARIES_MAX;
    }
    return is_good;
}

/* Reads the versions that one library must define. *at becomes the place of the next library's. */
static bool read_file_versions(const struct elf_file *file, const struct tables *tables, uint64_t *at,
                               struct elf_needs *needs)
{
    ElfW(Verneed) need;
    ElfW(Vernaux) version;
    uint64_t place;
    if (!elf_file_read(file, *at, &need, sizeof need) || __builtin_add_overflow(*at, need.vn_aux, &place))
        return false;
    for (unsigned i = 0; i < need.vn_cnt; i++) {
        if (needs->version_count == VERSIONS_MAX || !elf_file_read(file, place, &version, sizeof version))
            return false;
        struct elf_version_need *one = &needs->versions[needs->version_count];
        if ((version.vna_flags & VER_FLG_WEAK) == 0) {
            needs->version_count++;
            one->file = read_string(file, tables, need.vn_file);
            one->version = read_string(file, tables, version.vna_name);
            if (one->file == NULL || one->version == NULL)
                return false;
        }
        if (version.vna_next == 0)
            break;
        if (__builtin_add_overflow(place, version.vna_next, &place))
            return false;
    }
    return !__builtin_add_overflow(*at, need.vn_next, at);
}

static bool read_versions(const struct elf_file *file, const struct tables *tables, struct elf_needs *needs)
{
    uint64_t at = tables->needs, before;
    needs->versions = tool_allocate(VERSIONS_MAX, sizeof needs->versions[0]);
    for (uint64_t i = 0; at != 0 && i < tables->need_count && i < LIBRARIES_MAX; i++) {
        before = at;
        if (!read_file_versions(file, tables, &at, needs))
            return false;
        if (at == before)
            break;
    }
    return true;
}

bool elf_needs_read(int fd, struct elf_needs *needs)
{
    struct elf_file file;
    struct tables tables = {0};
    *needs = (struct elf_needs){0};
    return elf_file_begin(&file, fd) && read_tables(&file, &tables) && read_entries(&file, &tables, needs) &&
           read_versions(&file, &tables, needs);
}
