/*
 * elf.c - see elf.h.
 */
#define _GNU_SOURCE
#include "common/elf.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Reads the name of the dynamic linker from the program headers. */
static void read_loader(int fd, const ElfW(Ehdr) * header, struct elf_facts *facts)
{
    for (unsigned i = 0; i < header->e_phnum && header->e_phentsize == sizeof(ElfW(Phdr)); i++) {
        ElfW(Phdr) part;
        if (pread(fd, &part, sizeof part, (off_t)(header->e_phoff + i * sizeof part)) != (ssize_t)sizeof part)
            return;
        if (part.p_type != PT_INTERP)
            continue;
        ssize_t length = pread(fd, facts->loader, sizeof facts->loader - 1, (off_t)part.p_offset);
        facts->loader[length > 0 ? length : 0] = '\0';
        if (facts->loader[0] == '\0')
            snprintf(facts->loader, sizeof facts->loader, "?");
        return;
    }
}

bool elf_read(const char *path, struct elf_facts *facts)
{
    char bytes[512] = "";
    ElfW(Ehdr) header;
    *facts = (struct elf_facts){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, bytes, sizeof bytes - 1);
    if (length >= 2 && bytes[0] == '#' && bytes[1] == '!') {
        snprintf(facts->script_line, sizeof facts->script_line, "%.*s", (int)strcspn(bytes + 2, "\n"), bytes + 2);
    } else if (length >= EI_NIDENT + 4 && memcmp(bytes, ELFMAG, SELFMAG) == 0) {
        memcpy(&header, bytes, sizeof header); /* class and machine are at the same places in 32 and 64 bit */
        facts->is_elf = true;
        facts->class = header.e_ident[EI_CLASS];
        facts->machine = header.e_machine;
        if (facts->class == (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) && length >= (ssize_t)sizeof header)
            read_loader(fd, &header, facts);
    }
    close(fd);
    return true;
}

bool elf_is_of_musl(const struct elf_facts *facts)
{
    return strstr(facts->loader, "/ld-musl-") != NULL;
}
