/*
 * loads.c - what the dynamic linker would load for a program, by the tables of the program and of the libraries that it
 * needs. The linker is not asked: it may be anybody's program, and the system's own loads auditors that the program
 * names, which are code.
 *
 * Libraries are looked for as ld.so(8) does: in DT_RPATH, LD_LIBRARY_PATH, DT_RUNPATH, then in the folders of
 * /etc/ld.so.conf, from which its cache is made, and the usual ones.
 */
#include <fcntl.h>
#include <glob.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/elf.h"
#include "launch/check/elf_needs.h"
#include "common/text.h"
#include "common/tool.h"
#include "launch/check/check.h"

#ifdef __aarch64__
#define MULTIARCH "aarch64-linux-gnu"
#else
#define MULTIARCH "x86_64-linux-gnu"
#endif

enum { FILES_MAX = 2048, FOLDERS_MAX = 256, INCLUDES_DEEP = 4 };

struct file {
    char *name, *path; /* the name by which it is needed; where it is */
    struct elf_needs needs;
};

struct search {
    struct elf_facts program;
    struct file file[FILES_MAX]; /* in the order of loading */
    size_t count;
    char *folder[FOLDERS_MAX]; /* of the system */
    size_t folder_count;
    char *fault;     /* the first that would be said; NULL: all is there */
    size_t fault_of; /* the file that needs what is missing */
};

static void add_folder(struct search *search, const char *folder)
{
    if (search->folder_count < FOLDERS_MAX)
        search->folder[search->folder_count++] = text_copy(folder, PATH_MAX);
}

static void read_conf(struct search *search, const char *path, int depth)
{
    char line[PATH_MAX];
    FILE *stream = depth < INCLUDES_DEEP ? fopen(path, "re") : NULL;
    while (stream != NULL && fgets(line, sizeof line, stream) != NULL) {
        glob_t matches = {0};
        line[strcspn(line, "#\n")] = '\0';
        char *word = line + strspn(line, " \t");
        word[strcspn(word, " \t=")] = '\0';
        if (word[0] == '/')
            add_folder(search, word);
        if (strcmp(word, "include") != 0)
            continue;
        word += strlen(word) + 1;
        word += strspn(word, " \t");
        word[strcspn(word, " \t")] = '\0';
        char *pattern = word[0] == '/' ? text_copy(word, PATH_MAX) : text_format("/etc/%s", word);
        if (glob(pattern, 0, NULL, &matches) == 0)
            for (size_t i = 0; i < matches.gl_pathc; i++)
                read_conf(search, matches.gl_pathv[i], depth + 1);
        globfree(&matches);
    }
    if (stream != NULL)
        fclose(stream);
}

/* Opens a library that the program can load. Returns -1 for another file. */
static int open_library(const struct search *search, const char *path)
{
    struct stat status;
    struct elf_facts facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return -1;
    bool is_one = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    if (is_one) {
        elf_read_open(fd, &facts);
        is_one = facts.is_elf && facts.class == search->program.class && facts.machine == search->program.machine;
    }
    if (is_one)
        return fd;
    close(fd);
    return -1;
}

/* Puts the folder of the file that names it in the place of $ORIGIN. Returns NULL where another word has a dollar. */
static char *expand(const char *folder, const char *of)
{
    static const char *const words[] = {"$ORIGIN", "${ORIGIN}"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t length = strlen(words[i]);
        if (strncmp(folder, words[i], length) != 0)
            continue;
        char *real = tool_adopt(realpath(of, NULL)), *whole = NULL;
        if (real != NULL && strchr(folder + length, '$') == NULL)
            whole = text_format("%s%s", dirname(real), folder + length);
        return whole;
    }
    return strchr(folder, '$') == NULL ? text_copy(folder, PATH_MAX) : NULL;
}

/* Looks in a list of folders. `of` is the file that names them. */
static int find_in_list(const struct search *search, const char *list, const char *name, const char *of, char **path)
{
    char *all = text_copy(list, SIZE_MAX), *rest = all;
    int fd = -1;
    for (char *folder; fd < 0 && (folder = strsep(&rest, ":;")) != NULL;) {
        char *real = expand(folder[0] != '\0' ? folder : ".", of);
        if (real != NULL) {
            *path = text_format("%s/%s", real, name);
            fd = open_library(search, *path);
        }
    }
    return fd;
}

static int find_library(const struct search *search, const struct file *by, const char *name, char **path)
{
    const char *variable = getenv("LD_LIBRARY_PATH");
    int fd = -1;
    if (strchr(name, '/') != NULL) {
        *path = text_copy(name, PATH_MAX);
        fd = open_library(search, name);
        return fd;
    }
    if (by->needs.runpath == NULL && by->needs.rpath != NULL)
        fd = find_in_list(search, by->needs.rpath, name, by->path, path);
    if (fd < 0 && by->needs.runpath == NULL && by != search->file && search->file[0].needs.runpath == NULL &&
        search->file[0].needs.rpath != NULL)
        fd = find_in_list(search, search->file[0].needs.rpath, name, search->file[0].path, path);
    if (fd < 0 && variable != NULL && variable[0] != '\0')
        fd = find_in_list(search, variable, name, search->file[0].path, path);
    if (fd < 0 && by->needs.runpath != NULL)
        fd = find_in_list(search, by->needs.runpath, name, by->path, path);
    for (size_t i = 0; fd < 0 && i < search->folder_count; i++)
        fd = find_in_list(search, search->folder[i], name, by->path, path);
    return fd;
}

static struct file *find_loaded(struct search *search, const char *name)
{
    for (size_t i = 0; i < search->count; i++) {
        const char *slash = strrchr(search->file[i].path, '/');
        if (strcmp(search->file[i].name, name) == 0 || strcmp(search->file[i].path, name) == 0 ||
            strcmp(slash != NULL ? slash + 1 : search->file[i].path, name) == 0)
            return &search->file[i];
    }
    return NULL;
}

static void note_fault(struct search *search, size_t of, char *fault)
{
    if (search->fault != NULL)
        return;
    search->fault = fault;
    search->fault_of = of;
}

/* Adds a file that is open. */
static void add_file(struct search *search, size_t by, const char *name, char *path, int fd)
{
    struct file *one = &search->file[search->count];
    one->name = text_copy(name, PATH_MAX);
    one->path = path;
    if (!elf_needs_read(fd, &one->needs))
        note_fault(search, by, text_format("%s: its tables cannot be read", path));
    search->count++;
    close(fd);
}

/* Adds what one file needs, behind all that is needed before. */
static void add_needed(struct search *search, size_t at)
{
    for (size_t i = 0; i < search->file[at].needs.library_count && search->count < FILES_MAX; i++) {
        const char *name = search->file[at].needs.libraries[i];
        char *path;
        if (find_loaded(search, name) != NULL)
            continue;
        int fd = find_library(search, &search->file[at], name, &path);
        if (fd >= 0)
            add_file(search, at, name, path, fd);
        else
            note_fault(search, at, text_format("%s: cannot open shared object file: No such file or directory", name));
    }
}

/* Returns whether a library defines versions at all: of one that does not, the linker demands none. */
static bool has_versions(int fd)
{
    struct elf_file file;
    ElfW(Dyn) entry;
    bool has = false;
    if (elf_file_begin(&file, fd))
        for (unsigned i = 0; !has && elf_file_dynamic(&file, i, &entry); i++)
            has = entry.d_tag == DT_VERDEF;
    return has;
}

/* Says which version a library that is loaded does not define. */
static void check_versions(struct search *search, size_t at)
{
    const struct elf_needs *needs = &search->file[at].needs;
    for (size_t i = 0; i < needs->version_count; i++) {
        const struct file *file = find_loaded(search, needs->versions[i].file);
        int fd = file != NULL ? open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
        if (fd >= 0 && has_versions(fd) && !elf_defines_version(fd, needs->versions[i].version))
            note_fault(search, at,
                       text_format("%s: version `%s' not found (required by %s)", file->path,
                                   needs->versions[i].version, search->file[at].path));
        if (fd >= 0)
            close(fd);
    }
}

static void begin_search(struct search *search, const struct check *check)
{
    static const char *const usual[] = {"/lib/" MULTIARCH, "/usr/lib/" MULTIARCH, "/lib64", "/usr/lib64", "/lib",
                                        "/usr/lib"};
    search->program = check->program.facts;
    read_conf(search, "/etc/ld.so.conf", 0);
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
        add_folder(search, usual[i]);
    int fd = open(check->program.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0)
        add_file(search, 0, check->program.path, text_copy(check->program.path, PATH_MAX), fd);
}

/* Lists what is loaded, one path a line. */
static char *list_files(const struct search *search)
{
    char *list = text_copy("", 1);
    for (size_t i = 0; i < search->count; i++) {
        list = text_format("%s%s\n", list, search->file[i].path);
    }
    return list;
}

void check_loads_find(struct check *check, struct check_loads *loads)
{
    struct search *search = tool_allocate(1, sizeof *search);
    *loads = (struct check_loads){0};
    begin_search(search, check);
    int fd = search->count > 0 ? open(check->library, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0)
        add_file(search, 1, check->library, text_copy(check->library, PATH_MAX), fd);
    for (size_t at = 0; at < search->count; at++)
        add_needed(search, at);
    for (size_t at = 0; at < search->count; at++) {
        check_versions(search, at);
        if (loads->auditor == NULL && search->file[at].needs.auditor != NULL)
            loads->auditor = text_copy(search->file[at].needs.auditor, PATH_MAX);
    }
    loads->is_library = search->fault != NULL && search->fault_of == 1;
    loads->fault = search->fault;
    search->fault = NULL;
    check->loaded = list_files(search);
}

bool check_loads_has(const struct check *check, const char *entry)
{
    struct search *search = tool_allocate(1, sizeof *search);
    char *path;
    begin_search(search, check);
    int fd = search->count > 0 ? find_library(search, search->file, entry, &path) : -1;
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}
