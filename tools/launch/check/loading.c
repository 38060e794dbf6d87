/*
 * loading.c - whether the dynamic linker loads the library into the program. The linker itself is asked: with --list it
 * loads the program and its libraries, prints them, and starts nothing.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch/check/check.h"
#include "common/bytes.h"
#include "common/text.h"

static char *copy(const char *text)
{
    return text_copy(text, strlen(text));
}

void check_loading_library(struct check *check)
{
    char *why;
    check->library = launch_find_library(check->launch, &why);
    if (check->library == NULL)
        check_add(check, "library", CHECK_FAILURE,
                  copy("build and install it (make && sudo make install && sudo ldconfig), or --library=FILE"), "%s",
                  why);
    else
        check_add(check, "library", CHECK_OK, NULL, "%s", check->library);
    free(why);
}

static const char *machine_name(unsigned machine)
{
    static const struct {
        unsigned machine;
        const char *name;
    } names[] = {{EM_X86_64, "x86-64"},  {EM_AARCH64, "aarch64"}, {EM_386, "i386"},
                 {EM_ARM, "32-bit ARM"}, {EM_RISCV, "RISC-V"},    {EM_PPC64, "POWER"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].machine == machine)
            return names[i].name;
    return "another architecture";
}

static const char *advice_about(enum launch_obstacle obstacle)
{
    static const char *const advice[LAUNCH_OBSTACLE_COUNT] = {
        [LAUNCH_NO_OBSTACLE] = "",
        [LAUNCH_NOWHERE] = "give its path, or put its folder into PATH",
        [LAUNCH_UNSTARTABLE] = "make it executable (chmod +x), or name its interpreter: sparkguard python3 FILE",
        [LAUNCH_PRIVILEGED] = "put sparkguard behind it: sudo sparkguard PROGRAM",
        [LAUNCH_FOREIGN] = "take a build of the program for this machine, or --library=FILE of its architecture",
        [LAUNCH_STATIC] = "link it dynamically (Go: CGO_ENABLED=1; Rust: a -gnu target), or bound it by --jail=SIZE",
        [LAUNCH_MUSL] =
            "take a build for glibc, such as an image of Debian in place of Alpine, or bound it by --jail=SIZE",
    };
    return advice[obstacle];
}

void check_loading_program(struct check *check)
{
    static const char id[] = "program";
    const struct launch_program *program = &check->program;
    const char *path = program->path;
    struct elf_facts ours;
    if (!check->has_program) {
        check_add(check, id, CHECK_NONE, NULL, "none given; this tool stands for it (sparkguard --check PROGRAM)");
    } else if (program->obstacle == LAUNCH_FOREIGN && launch_elf_read(check->library, &ours)) {
        check_add(check, id, CHECK_FAILURE, copy(advice_about(LAUNCH_FOREIGN)),
                  "%s is a %s-bit program for %s, the "
                  "library is for %s",
                  path, program->facts.class == ELFCLASS32 ? "32" : "64", machine_name(program->facts.machine),
                  machine_name(ours.machine));
    } else if (program->obstacle != LAUNCH_NO_OBSTACLE) {
        check_add(check, id, CHECK_FAILURE, copy(advice_about(program->obstacle)), "%s %s", path,
                  launch_obstacle_text[program->obstacle]);
    } else if (program->script != NULL) {
        check_add(check, id, CHECK_OK, NULL, "%s, run by %s", program->script, path);
    } else {
        check_add(check, id, CHECK_OK, NULL, "%s", path);
    }
}

/* Returns the part of a message of the dynamic linker that says why it cannot take the library; NULL if it can. The
 * caller frees. */
static char *refusal(const char *said, const char *library)
{
    char *text = copy(said), *rest = text, *why = NULL;
    for (char *line; why == NULL && (line = strsep(&rest, "\n")) != NULL;) {
        char *begin = strstr(line, "cannot be preloaded (");
        if (strstr(line, library) == NULL)
            continue;
        if (begin != NULL) {
            begin += sizeof "cannot be preloaded (" - 1;
            why = text_copy(begin, strcspn(begin, ")"));
        } else if (strstr(line, "not found (required by") != NULL) {
            begin = strstr(line, "version `");
            why = begin != NULL ? text_format("its C library is too old: %.*s", (int)strcspn(begin, "("), begin)
                                : copy(line);
        }
    }
    free(text);
    return why;
}

/* Judges what the linker said about the program. */
static void add_linker(struct check *check, const char *linker)
{
    static const char id[] = "loader", error[] = "error while loading shared libraries: ";
    char *why = refusal(check->loaded, check->library);
    const char *fault = strstr(check->loaded, error);
    fault = fault != NULL ? fault + sizeof error - 1 : check->loaded;
    if (why != NULL)
        check_add(check, id, CHECK_FAILURE,
                  copy("the library needs glibc 2.28 or later: build it where the program runs"),
                  "%s does not load the library into it: %s", linker, why);
    else if (strstr(check->loaded, check->library) == NULL)
        check_add(check, id, CHECK_FAILURE, copy("without the guard it would not start either; mend that first"),
                  "%s does not load the program: %.*s", linker, (int)strcspn(fault, "\n"), fault);
    else
        check_add(check, id, CHECK_OK, NULL, "%s loads the library into it", linker);
    free(why);
}

void check_loading_linker(struct check *check)
{
    const struct check_variable none[] = {{"LD_BIND_NOW", NULL}, {NULL, NULL}};
    struct check_trial trial;
    int status;
    char *linker = check->program.facts.loader, *path = check->program.path;
    const char *name = strrchr(linker, '/');
    if (check->library == NULL || check->program.obstacle != LAUNCH_NO_OBSTACLE) {
        check_add(check, "loader", CHECK_NONE, NULL, "not tried");
        return;
    }
    if (name == NULL || strncmp(name, "/ld", 3) != 0 || access(linker, X_OK) != 0) { /* nothing else is executed */
        check_add(check, "loader", CHECK_WARNING, NULL, "%s is not a dynamic linker that can be asked",
                  linker[0] != '\0' ? linker : "what the program names");
        return;
    }
    char *const arguments[] = {linker, (char[]){"--list"}, path, NULL};
    (void)check_trial_start_program(&trial, check->library, linker, arguments, none);
    check->loaded = check_trial_end(&trial, &status);
    add_linker(check, linker);
}

/* Returns whether an entry of LD_PRELOAD is not to be loaded, by what the linker said. */
static bool is_ignored(const struct check *check, const char *entry)
{
    char *quoted = text_format("'%s'", entry);
    bool is_named = check->loaded != NULL && strstr(check->loaded, quoted) != NULL;
    free(quoted);
    return is_named;
}

/* What LD_PRELOAD names already. */
struct preloads {
    char *others;  /* base names, "a, b" */
    bool has_ours; /* the guard is there */
    bool is_behind;
    bool has_ignored;
};

static void take_preload(struct check *check, const char *entry, struct preloads *preloads)
{
    const char *slash = strrchr(entry, '/'), *name = slash != NULL ? slash + 1 : entry;
    if (is_ignored(check, entry)) {
        check_add(check, "preload", CHECK_WARNING, copy("give its full path, or take it out of LD_PRELOAD"),
                  "LD_PRELOAD names %s, which the loader ignores", entry);
        preloads->has_ignored = true;
    } else if (strcmp(name, "libsparkguard.so") == 0) {
        preloads->has_ours = true;
        preloads->is_behind = preloads->others[0] != '\0';
    } else {
        char *longer = text_format("%s%s%s", preloads->others, preloads->others[0] != '\0' ? ", " : "", name);
        free(preloads->others);
        preloads->others = longer;
    }
}

void check_loading_others(struct check *check)
{
    static const char id[] = "preload";
    const char *variable = getenv("LD_PRELOAD");
    char *list = copy(variable != NULL ? variable : ""), *rest = list;
    struct preloads preloads = {.others = copy("")};
    for (char *entry; (entry = strsep(&rest, ": ")) != NULL;)
        if (entry[0] != '\0')
            take_preload(check, entry, &preloads);
    if (preloads.is_behind)
        check_add(check, id, CHECK_WARNING, copy("name libsparkguard.so first in LD_PRELOAD"),
                  "LD_PRELOAD names %s ahead of the guard, which sees no malloc behind an allocator", preloads.others);
    else if (preloads.others[0] != '\0')
        check_add(check, id, CHECK_OK, NULL, "%s, behind the guard", preloads.others);
    else if (!preloads.has_ignored)
        check_add(check, id, CHECK_OK, NULL,
                  preloads.has_ours ? "the guard is on in this shell already" : "nothing else");
    free(preloads.others);
    free(list);
}
