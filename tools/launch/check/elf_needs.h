/*
 * elf_needs.h - what an ELF file asks the dynamic linker for: libraries, folders to look in, versions, auditors. Read
 * from its tables, as elf.h reads: every read is bounded, nothing is mapped, and nothing of the file runs.
 */
#ifndef SG_TOOLS_LAUNCH_CHECK_ELF_NEEDS_H
#define SG_TOOLS_LAUNCH_CHECK_ELF_NEEDS_H

#include <stdbool.h>
#include <stddef.h>

/* A version that must be defined by the library `file`. */
struct elf_version_need {
    char *file, *version;
};

struct elf_needs {
    char **libraries; /* DT_NEEDED, in their order */
    size_t library_count;
    struct elf_version_need *versions;
    size_t version_count;
    char *rpath, *runpath; /* NULL: none */
    char *auditor;         /* the first of DT_AUDIT and DT_DEPAUDIT; NULL: none */
};

/* Reads an open file of this tool's class. Returns false for another one, and for tables that cannot be right. */
bool elf_needs_read(int fd, struct elf_needs *needs);

#endif
