/*
 * elf.h - what a file is to the kernel and to the dynamic linker: an ELF file of which architecture, with which dynamic
 * linker, or a script; and which versions a library defines.
 *
 * The file may be hostile: every read is bounded, and no field is used before it was checked against the file's own
 * length. Nothing is mapped, so a file that shrinks meanwhile does no harm.
 */
#ifndef SG_TOOLS_COMMON_ELF_H
#define SG_TOOLS_COMMON_ELF_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Facts of a file by which the dynamic linker decides whether it preloads into a program. */
struct elf_facts {
    bool is_elf;
    unsigned class, machine; /* of elf(5): ELFCLASS64, EM_AARCH64 */
    char loader[256];        /* the dynamic linker (PT_INTERP); "": linked statically, or a library */
    char script_line[256];   /* what follows "#!", else "" */
};

/* Reads the facts from an open regular file. A file that cannot be read has none. The loader is read only from files of
 * this tool's own class. */
void elf_read_open(int fd, struct elf_facts *facts);

/* The same by a file's name. Returns false if the file cannot be opened. */
bool elf_read(const char *path, struct elf_facts *facts);

/* Returns whether the dynamic linker is that of musl. */
bool elf_is_of_musl(const struct elf_facts *facts);

/* Returns whether a shared library of this tool's class defines the symbol version `name` ("GLIBC_2.28"). */
bool elf_defines_version(int fd, const char *name);

/* ---- for readers of other tables ---- */

/* An open file of this tool's class, with its dynamic section. */
struct elf_file {
    int fd;
    ElfW(Ehdr) header;
    uint64_t dynamic, dynamic_count; /* its place in the file, and how many entries it has at most */
};

/* Returns false for a file that is no ELF file of this tool's class. */
bool elf_file_begin(struct elf_file *file, int fd);
/* Reads `length` bytes at an offset. Returns false if they are not there. */
bool elf_file_read(const struct elf_file *file, uint64_t offset, void *bytes, size_t length);
/* Reads up to `length` bytes at an offset. Returns how many. */
size_t elf_file_read_some(const struct elf_file *file, uint64_t offset, void *bytes, size_t length);
/* Reads an entry of the dynamic section. Returns false behind the last. */
bool elf_file_dynamic(const struct elf_file *file, unsigned index, ElfW(Dyn) * entry);
/* Stores where in the file an address of the loaded file lies. Returns false if it is not there. */
bool elf_file_offset(const struct elf_file *file, uint64_t address, uint64_t *offset);

#endif
