/*
 * program.c - see runtime.h. Looks at the program that a container starts: its dynamic linker and its C library, in the
 * image as it is mounted, and nothing of it runs.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "common/elf.h"
#include "common/text.h"
#include "common/tool.h"
#include "launch/launch.h"
#include "runtime/runtime.h"

#define OLDEST_GLIBC "GLIBC_2.28" /* what the library promises to load with; tests/release runs 2.31 */

#ifdef __aarch64__
#define MULTIARCH "aarch64-linux-gnu"
#else
#define MULTIARCH "x86_64-linux-gnu"
#endif

enum { SCRIPTS_DEEP = 4, WORDS_MAX = 64 };

struct search {
    const struct runtime_image *image;
    const json_t *process;
    struct elf_facts library;
    const char *folder; /* the working directory */
    const char *path;   /* PATH */
};

/* Opens a file if it can be executed. */
static int open_program(const struct search *search, const char *path, char real[PATH_MAX], struct stat *status)
{
    int fd = runtime_image_read(search->image, path, real, status);
    if (fd >= 0 && (status->st_mode & 0111) == 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Finds a program as the next runtime will. *path becomes its path inside. */
static int find(const struct search *search, const char *name, char **path, char real[PATH_MAX], struct stat *status)
{
    int fd = -1;
    if (strchr(name, '/') != NULL) {
        *path = name[0] == '/' ? text_copy(name, PATH_MAX) : text_format("%s/%s", search->folder, name);
        return open_program(search, *path, real, status);
    }
    char *folders = text_copy(search->path, SIZE_MAX), *rest = folders;
    *path = NULL;
    for (char *folder; fd < 0 && (folder = strsep(&rest, ":")) != NULL;) {
        *path =
            text_format("%s%s%s/%s", folder[0] == '/' ? "" : search->folder, folder[0] == '/' ? "" : "/", folder, name);
        fd = open_program(search, *path, real, status);
    }
    return fd;
}

static bool is_init(const char *path)
{
    return text_is_one_of(basename(path), "docker-init|podman-init|tini|tini-static|dumb-init|catatonit|init");
}

/* Returns the place of the program that a small init starts: behind "--", else behind the options. */
static size_t behind_init(char *const *words, size_t count, size_t at)
{
    for (size_t i = at + 1; i < count; i++)
        if (strcmp(words[i], "--") == 0)
            return i + 1;
    for (at++; at < count && words[at][0] == '-'; at++)
        continue;
    return at;
}

/* Returns whether env(1), called with these words, takes the library away from the program. */
static bool clears_preload(char *const *words, size_t count)
{
    static const char unset[] = "--unset=LD_PRELOAD", sets[] = "LD_PRELOAD=";
    for (size_t i = 0; i < count && (words[i][0] == '-' || strchr(words[i], '=') != NULL); i++) {
        bool is_short = words[i][0] == '-' && words[i][1] != '-';
        if (strcmp(words[i], "-") == 0 || strcmp(words[i], "--ignore-environment") == 0 ||
            strcmp(words[i], unset) == 0 || strncmp(words[i], sets, sizeof sets - 1) == 0 ||
            strcmp(words[i], "-uLD_PRELOAD") == 0 ||
            (is_short && words[i][1] != 'u' && words[i][1] != 'C' && strchr(words[i], 'i') != NULL))
            return true;
        if (strcmp(words[i], "-u") == 0 && i + 1 < count && strcmp(words[++i], "LD_PRELOAD") == 0)
            return true;
        if (strcmp(words[i], "-C") == 0)
            i++;
    }
    return false;
}

static bool is_env(const char *path)
{
    return strcmp(basename(path), "env") == 0;
}

/* Returns whether the kernel gives the program rights that its caller has not: then the dynamic linker ignores
 * LD_PRELOAD. */
static bool gains_rights(const struct search *search, int fd, const struct stat *status)
{
    char value[64];
    if (json_is_true(json_object_get(search->process, "noNewPrivileges")))
        return false;
    return (status->st_mode & S_ISUID) != 0 || (status->st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) ||
           fgetxattr(fd, "security.capability", value, sizeof value) > 0;
}

/* Returns whether the C library beside the dynamic linker is new enough; *is_found: there is one. */
static bool has_new_libc(const struct search *search, const char *loader, bool *is_found)
{
    static const char *const folders[] = {"/lib64",   "/usr/lib64", "/lib/" MULTIARCH, "/usr/lib/" MULTIARCH, "/lib",
                                          "/usr/lib", NULL};
    char real[PATH_MAX], folder[PATH_MAX];
    struct stat status;
    int fd = runtime_image_read(search->image, loader, real, &status);
    *is_found = false;
    if (fd < 0)
        return false;
    close(fd);
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(real, '/') - real), real);
    const char *next = folder;
    fd = -1;
    for (size_t i = 0; fd < 0 && next != NULL; next = folders[i++])
        fd = runtime_image_read(search->image, text_format("%s/libc.so.6", next), real, &status);
    if (fd < 0)
        return false;
    *is_found = true;
    bool is_new = elf_defines_version(fd, OLDEST_GLIBC);
    close(fd);
    return is_new;
}

static char *obstacle(const char *path, enum launch_obstacle which)
{
    return text_format("%s %s", path, launch_obstacle_text[which]);
}

static char *judge_binary(const struct search *search, const char *path, int fd, const struct stat *status,
                          const struct elf_facts *facts)
{
    bool is_found;
    if (facts->class != search->library.class || facts->machine != search->library.machine)
        return obstacle(path, LAUNCH_FOREIGN);
    if (facts->loader[0] == '\0')
        return obstacle(path, LAUNCH_STATIC);
    if (strstr(facts->loader, "/ld-musl-") != NULL)
        return obstacle(path, LAUNCH_MUSL);
    if (gains_rights(search, fd, status))
        return obstacle(path, LAUNCH_PRIVILEGED);
    if (has_new_libc(search, facts->loader, &is_found))
        return NULL;
    return text_copy(
        is_found ? "the image's C library is older than glibc 2.28" : "the image's C library was not found", 64);
}

/* Splits the line behind "#!" as env -S does, without quotes. Returns how many words there are. */
static size_t split(char *line, char **words)
{
    size_t count = 0;
    for (char *word; count < WORDS_MAX && (word = strsep(&line, " \t\r")) != NULL;)
        if (word[0] != '\0')
            words[count++] = word;
    return count;
}

/* Judges the program that `words` start, through small inits, env(1) and scripts. */
static char *judge_program(const struct search *search, char **words, size_t count, int depth)
{
    char real[PATH_MAX], *path = NULL, *reason = NULL, *inner[WORDS_MAX];
    struct stat status;
    struct elf_facts facts;
    if (count == 0 || depth > SCRIPTS_DEEP)
        return text_copy("it names no program", 64);
    int fd = find(search, words[0], &path, real, &status);
    if (fd < 0)
        return obstacle(words[0], LAUNCH_NOWHERE);
    elf_read_open(fd, &facts);
    size_t behind = behind_init(words, count, 0);
    if (is_env(path) && clears_preload(words + 1, count - 1))
        reason = text_format("%s clears the environment of the program that it starts", path);
    else if (facts.is_elf && facts.loader[0] == '\0' && is_init(path) && behind < count)
        reason = judge_program(search, words + behind, count - behind, depth + 1);
    else if (facts.is_elf)
        reason = judge_binary(search, path, fd, &status, &facts);
    else if (facts.script_line[0] != '\0')
        reason = judge_program(search, inner, split(facts.script_line, inner), depth + 1);
    else
        reason = obstacle(path, LAUNCH_UNSTARTABLE);
    close(fd);
    return reason;
}

/* Opens a guard of the image's own as its dynamic linker finds it: by path, or by name in the usual folders. Returns
 * -1. */
static int open_guard(const struct runtime_image *image, const char *entry)
{
    static const char *const folders[] = {
        "/usr/local/lib", "/lib/" MULTIARCH, "/usr/lib/" MULTIARCH, "/lib64", "/usr/lib64", "/lib", "/usr/lib"};
    char real[PATH_MAX];
    struct stat status;
    if (strchr(entry, '/') != NULL)
        return entry[0] == '/' ? runtime_image_read(image, entry, real, &status) : -1;
    int fd = -1;
    for (size_t i = 0; fd < 0 && i < sizeof folders / sizeof folders[0]; i++)
        fd = runtime_image_read(image, text_format("%s/%s", folders[i], entry), real, &status);
    return fd;
}

static void read_library(const char *path, struct elf_facts *facts)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *facts = (struct elf_facts){0};
    if (fd < 0)
        return;
    elf_read_open(fd, facts);
    close(fd);
}

char *runtime_program_guard_obstacle(const struct runtime_image *image, const json_t *process, const char *library)
{
    struct elf_facts facts = {0}, ours;
    if (!runtime_edit_has_own_guard(process))
        return NULL;
    char *entry = runtime_edit_own_guard(process), *why = NULL;
    int fd = open_guard(image, entry);
    read_library(library, &ours);
    if (fd >= 0) {
        elf_read_open(fd, &facts);
        close(fd);
    }
    if (!facts.is_elf || (ours.is_elf && (facts.class != ours.class || facts.machine != ours.machine)))
        why = text_format("LD_PRELOAD names %s, which %s", entry,
                          fd < 0 ? "is not there" : "is no library that it could load");
    return why;
}

char *runtime_program_obstacle(const struct runtime_image *image, const json_t *process, const char *library)
{
    size_t count = 0, i;
    json_t *argument;
    const json_t *arguments = json_object_get(process, "args");
    const char *folder = json_string_value(json_object_get(process, "cwd"));
    const char *path = runtime_edit_variable(process, "PATH");
    struct search search = {.image = image, .process = process, .folder = folder != NULL ? folder : "/"};
    search.path = path != NULL ? path : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    read_library(library, &search.library);
    if (!search.library.is_elf)
        return text_format("%s is not a library that can be read", library);
    char **words = tool_allocate(json_array_size(arguments), sizeof words[0]);
    for (i = 0; (argument = json_array_get(arguments, i)) != NULL; i++)
        if (json_is_string(argument))
            words[count++] = text_copy(json_string_value(argument), SIZE_MAX);
    return judge_program(&search, words, count, 0);
}
