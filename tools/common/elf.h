/*
 * elf.h - facts of a program's file by which the dynamic linker decides whether it preloads a library.
 */
#ifndef SG_TOOLS_COMMON_ELF_H
#define SG_TOOLS_COMMON_ELF_H

#include <stdbool.h>

struct elf_facts {
    bool is_elf;
    unsigned class, machine; /* of elf(5): ELFCLASS64, EM_AARCH64 */
    char loader[256];        /* the dynamic linker (PT_INTERP); "": linked statically, or a library */
    char script_line[256];   /* what follows "#!", else "" */
};

/* Reads the facts of a file. Returns false if it cannot be read. */
bool elf_read(const char *path, struct elf_facts *facts);
/* Returns whether the dynamic linker is that of musl. */
bool elf_is_of_musl(const struct elf_facts *facts);

#endif
