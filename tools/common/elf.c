/*
 * elf.c - see elf.h.
 */
#include "common/elf.h"

#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* More than any linker writes: the C library has about 15 program headers, 30 dynamic entries and 60 versions. */
enum { PARTS_MAX = 512, DYNAMIC_MAX = 1024, VERSIONS_MAX = 1024 };

static bool read_at(int fd, uint64_t offset, void *bytes, size_t length)
{
    return offset <= INT64_MAX - length && pread(fd, bytes, length, (off_t)offset) == (ssize_t)length;
}

static bool is_own_class(const ElfW(Ehdr) * header)
{
    return header->e_ident[EI_CLASS] == (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32);
}

/* Reads one program header. Returns false behind the last. */
static bool read_part(int fd, const ElfW(Ehdr) * header, unsigned index, ElfW(Phdr) * part)
{
    uint64_t offset;
    return index < header->e_phnum && index < PARTS_MAX && header->e_phentsize == sizeof *part &&
           !__builtin_add_overflow(header->e_phoff, (uint64_t)index * sizeof *part, &offset) &&
           read_at(fd, offset, part, sizeof *part);
}

/* Reads the name of the dynamic linker from the program headers. */
static void read_loader(int fd, const ElfW(Ehdr) * header, struct elf_facts *facts)
{
    ElfW(Phdr) part;
    for (unsigned i = 0; read_part(fd, header, i, &part); i++) {
        if (part.p_type != PT_INTERP)
            continue;
        ssize_t length =
            part.p_offset <= INT64_MAX ? pread(fd, facts->loader, sizeof facts->loader - 1, (off_t)part.p_offset) : 0;
        facts->loader[length > 0 ? length : 0] = '\0';
        if (facts->loader[0] == '\0')
            snprintf(facts->loader, sizeof facts->loader, "?");
        return;
    }
}

void elf_read_open(int fd, struct elf_facts *facts)
{
    char bytes[512] = "";
    ElfW(Ehdr) header;
    *facts = (struct elf_facts){0};
    ssize_t length = pread(fd, bytes, sizeof bytes - 1, 0);
    if (length >= 2 && bytes[0] == '#' && bytes[1] == '!') {
        snprintf(facts->script_line, sizeof facts->script_line, "%.*s", (int)strcspn(bytes + 2, "\n"), bytes + 2);
    } else if (length >= EI_NIDENT + 4 && memcmp(bytes, ELFMAG, SELFMAG) == 0) {
        memcpy(&header, bytes, sizeof header); /* class and machine are at the same places in 32 and 64 bit */
        facts->is_elf = true;
        facts->class = header.e_ident[EI_CLASS];
        facts->machine = header.e_machine;
        if (is_own_class(&header) && length >= (ssize_t)sizeof header)
            read_loader(fd, &header, facts);
    }
}

bool elf_read(const char *path, struct elf_facts *facts)
{
    *facts = (struct elf_facts){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    elf_read_open(fd, facts);
    close(fd);
    return true;
}

bool elf_is_of_musl(const struct elf_facts *facts)
{
    return strstr(facts->loader, "/ld-musl-") != NULL;
}

bool elf_file_begin(struct elf_file *file, int fd)
{
    ElfW(Phdr) part;
    *file = (struct elf_file){.fd = fd};
    if (!read_at(fd, 0, &file->header, sizeof file->header) || memcmp(file->header.e_ident, ELFMAG, SELFMAG) != 0 ||
        !is_own_class(&file->header))
        return false;
    for (unsigned i = 0; read_part(fd, &file->header, i, &part); i++) {
        if (part.p_type != PT_DYNAMIC)
            continue;
        file->dynamic = part.p_offset;
        file->dynamic_count = part.p_filesz / sizeof(ElfW(Dyn));
        break;
    }
    return true;
}

bool elf_file_read(const struct elf_file *file, uint64_t offset, void *bytes, size_t length)
{
    return read_at(file->fd, offset, bytes, length);
}

size_t elf_file_read_some(const struct elf_file *file, uint64_t offset, void *bytes, size_t length)
{
    ssize_t got = offset <= INT64_MAX - length ? pread(file->fd, bytes, length, (off_t)offset) : 0;
    return got > 0 ? (size_t)got : 0;
}

bool elf_file_dynamic(const struct elf_file *file, unsigned index, ElfW(Dyn) * entry)
{
    uint64_t offset;
    return index < file->dynamic_count && index < DYNAMIC_MAX &&
           !__builtin_add_overflow(file->dynamic, (uint64_t)index * sizeof *entry, &offset) &&
           read_at(file->fd, offset, entry, sizeof *entry) && entry->d_tag != DT_NULL;
}

bool elf_file_offset(const struct elf_file *file, uint64_t address, uint64_t *offset)
{
    ElfW(Phdr) part;
    for (unsigned i = 0; read_part(file->fd, &file->header, i, &part); i++) {
        if (part.p_type == PT_LOAD && address >= part.p_vaddr && address - part.p_vaddr < part.p_filesz)
            return !__builtin_add_overflow(part.p_offset, address - part.p_vaddr, offset);
    }
    return false;
}

/* What the dynamic section says of the versions that a library defines. */
struct versions {
    uint64_t definitions, strings; /* addresses; 0: none */
    uint64_t count;
};

static void read_dynamic(const struct elf_file *file, struct versions *versions)
{
    ElfW(Dyn) entry;
    for (unsigned i = 0; elf_file_dynamic(file, i, &entry); i++) {
        if (entry.d_tag == DT_VERDEF)
            versions->definitions = entry.d_un.d_ptr;
        else if (entry.d_tag == DT_VERDEFNUM)
            versions->count = entry.d_un.d_val;
        else if (entry.d_tag == DT_STRTAB)
            versions->strings = entry.d_un.d_ptr;
    }
}

/* Returns whether the text at `offset` is `name`. */
static bool is_text(int fd, uint64_t offset, const char *name)
{
    char text[64] = "";
    size_t length = strlen(name) + 1;
    return length <= sizeof text && read_at(fd, offset, text, length) && memcmp(text, name, length) == 0;
}

bool elf_defines_version(int fd, const char *name)
{
    struct elf_file file;
    struct versions versions = {0};
    uint64_t at, strings, place;
    if (!elf_file_begin(&file, fd))
        return false;
    read_dynamic(&file, &versions);
    if (versions.definitions == 0 || !elf_file_offset(&file, versions.definitions, &at) ||
        !elf_file_offset(&file, versions.strings, &strings))
        return false;
    for (uint64_t i = 0; i < versions.count && i < VERSIONS_MAX; i++) {
        ElfW(Verdef) definition;
        ElfW(Verdaux) first;
        if (!read_at(fd, at, &definition, sizeof definition) || __builtin_add_overflow(at, definition.vd_aux, &place) ||
            !read_at(fd, place, &first, sizeof first) || __builtin_add_overflow(strings, first.vda_name, &place))
            return false;
        if (is_text(fd, place, name))
            return true;
        if (definition.vd_next == 0 || __builtin_add_overflow(at, definition.vd_next, &at))
            return false;
    }
    return false;
}
