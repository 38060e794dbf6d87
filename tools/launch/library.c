/*
 * library.c - finds libsparkguard.so, and warns of programs that would run without it. The dynamic linker preloads
 * nothing into a static program, into a program that gains privileges (set-user-ID), or from another architecture.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "launch/launch.h"
#include "common/text.h"

#ifndef SG_LIBDIR
#define SG_LIBDIR "/usr/local/lib"
#endif

static const char library_name[] = "libsparkguard.so";

enum { SCRIPTS_DEEP = 4 }; /* scripts whose interpreter is a script, as the kernel follows them */

/* Facts by which the dynamic linker decides whether it preloads into a program. */
struct elf_facts {
    bool is_elf;
    bool has_interpreter; /* dynamically linked */
    unsigned char class;
    ElfW(Half) machine;
    char script_interpreter[256]; /* the path after "#!", else "" */
};

static bool read_facts(const char *path, struct elf_facts *facts)
{
    char bytes[512] = "";
    *facts = (struct elf_facts){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, bytes, sizeof bytes - 1);
    ElfW(Ehdr) header;
    if (length >= 2 && bytes[0] == '#' && bytes[1] == '!') {
        sscanf(bytes + 2, " %255s", facts->script_interpreter);
    } else if (length >= (ssize_t)sizeof header && memcmp(bytes, ELFMAG, SELFMAG) == 0) {
        memcpy(&header, bytes, sizeof header);
        facts->is_elf = true;
        facts->class = header.e_ident[EI_CLASS];
        facts->machine = header.e_machine;
        for (unsigned i = 0; i < header.e_phnum && header.e_phentsize == sizeof(ElfW(Phdr)); i++) {
            ElfW(Phdr) part;
            if (pread(fd, &part, sizeof part, (off_t)(header.e_phoff + i * sizeof part)) != (ssize_t)sizeof part)
                break;
            facts->has_interpreter = facts->has_interpreter || part.p_type == PT_INTERP;
        }
    }
    close(fd);
    return true;
}

/* Returns the absolute path of libsparkguard.so in `folder`, or NULL. */
static char *library_in(const char *folder)
{
    char *path = text_format("%s/%s", folder, library_name);
    char *absolute = realpath(path, NULL);
    free(path);
    return absolute;
}

char *launch_own_library(char folder[PATH_MAX])
{
    char self[PATH_MAX] = "";
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    snprintf(folder, PATH_MAX, "%s", length > 0 ? dirname(self) : SG_LIBDIR);
    char *path = library_in(folder);
    return path != NULL ? path : library_in(SG_LIBDIR);
}

bool launch_is_library(const char *path, bool *is_ours)
{
    struct elf_facts facts, self;
    bool is_library = read_facts(path, &facts) && facts.is_elf;
    *is_ours =
        is_library && read_facts("/proc/self/exe", &self) && facts.class == self.class && facts.machine == self.machine;
    return is_library;
}

char *launch_find_library(const struct launch *launch)
{
    char folder[PATH_MAX];
    bool is_ours;
    char *path;
    if (launch->library != NULL) {
        path = realpath(launch->library, NULL);
        if (path == NULL)
            fprintf(stderr, "sparkguard: --library=%s: %s\n", launch->library, strerror(errno));
    } else {
        path = launch_own_library(folder);
        if (path == NULL)
            fprintf(stderr, "sparkguard: %s is neither in %s nor in %s; give its path with --library=FILE\n",
                    library_name, folder, SG_LIBDIR);
    }
    if (path != NULL && !launch_is_library(path, &is_ours)) {
        fprintf(stderr, "sparkguard: %s is not a shared library that can be read\n", path);
        free(path);
        return NULL;
    }
    return path;
}

bool launch_preload(const char *library)
{
    const char *before = getenv("LD_PRELOAD");
    if (strpbrk(library, ": ") != NULL) {
        fprintf(stderr, "sparkguard: %s: LD_PRELOAD cannot hold a path with ':' or a blank in it\n", library);
        return false;
    }
    size_t length = strlen(library);
    for (const char *p = before; p != NULL && (p = strstr(p, library)) != NULL; p += length)
        if ((p == before || p[-1] == ':' || p[-1] == ' ') &&
            (p[length] == '\0' || p[length] == ':' || p[length] == ' '))
            return true; /* already there: a launcher under a launcher */
    char *all =
        before != NULL && before[0] != '\0' ? text_format("%s:%s", library, before) : text_copy(library, length);
    setenv("LD_PRELOAD", all, 1);
    free(all);
    return true;
}

/* Returns the path at which execvp(3) would find a program; NULL if nowhere. The caller frees. */
static char *find_program(const char *program)
{
    char *folders, *rest = NULL, *found = NULL;
    struct stat status;
    const char *path = getenv("PATH");
    if (strchr(program, '/') != NULL)
        return text_copy(program, PATH_MAX);
    folders = text_copy(path != NULL ? path : "/bin:/usr/bin", SIZE_MAX);
    rest = folders;
    for (char *folder; found == NULL && (folder = strsep(&rest, ":")) != NULL;) {
        found = text_format("%s/%s", folder[0] ? folder : ".", program);
        if (access(found, X_OK) == 0 && stat(found, &status) == 0 && S_ISREG(status.st_mode))
            continue;
        free(found);
        found = NULL;
    }
    free(folders);
    return found;
}

/* Returns whether the kernel would start the file with more privileges than ours. The dynamic linker then ignores
 * LD_PRELOAD. */
static bool gains_rights(const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return false;
    return ((status.st_mode & S_ISUID) != 0 && status.st_uid != getuid()) ||
           ((status.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && status.st_gid != getgid()) ||
           (geteuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0);
}

char *launch_missing_interpreter(const char *program)
{
    struct elf_facts facts;
    char *path = find_program(program);
    bool is_missing = path != NULL && read_facts(path, &facts) && facts.script_interpreter[0] != '\0' &&
                      access(facts.script_interpreter, F_OK) != 0;
    free(path);
    return is_missing ? text_copy(facts.script_interpreter, SIZE_MAX) : NULL;
}

bool launch_check_program(const char *program, const char *library)
{
    struct elf_facts facts, ours;
    const char *why = NULL;
    char *path = find_program(program);
    if (path == NULL || !read_facts(library, &ours))
        goto done;
    why = gains_rights(path) ? "gains rights when it starts" : NULL;
    for (int depth = 0; why == NULL && depth < SCRIPTS_DEEP && read_facts(path, &facts); depth++) {
        if (facts.script_interpreter[0] == '\0') {
            if (facts.is_elf && (facts.class != ours.class || facts.machine != ours.machine))
                why = "is for another architecture";
            else if (facts.is_elf && !facts.has_interpreter)
                why = "is linked statically";
            break;
        }
        free(path);
        path = text_copy(facts.script_interpreter, sizeof facts.script_interpreter);
    }
    if (why != NULL)
        fprintf(stderr, "sparkguard: %s %s, so the library cannot be preloaded: it runs unguarded\n", path, why);
done:
    free(path);
    return why == NULL;
}
