/*
 * loading.c - whether the dynamic linker loads the library into the program.
 */
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch/check/check.h"
#include "common/text.h"

void check_loading_library(struct check *check)
{
    char *why;
    check->library = launch_find_library(check->launch, &why);
    if (check->library == NULL)
        check_add(check, "library", FINDING_DANGER,
                  "build and install it (make && sudo make install && sudo ldconfig), or --library=FILE", "%s", why);
    else
        check_add(check, "library", FINDING_FINE, NULL, "%s", check->library);
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

/* A script without a first line that names Python, and what to type instead. */
static void add_python_script(struct check *check, const char *name)
{
    const struct launch_program *program = &check->program;
    char *advice =
        text_format("sparkguard --check python3 checks what runs it, and sparkguard python3 %s runs it", name);
    if (program->obstacle == LAUNCH_NO_OBSTACLE)
        check_add(check, "program", FINDING_WARNING, advice, "%s would be run by %s: it has no line #!/usr/bin/python3",
                  program->script, program->path);
    else
        check_add(check, "program", FINDING_DANGER, advice, "%s is a script, not a program", name);
}

void check_loading_program(struct check *check)
{
    static const char id[] = "program";
    const char *name = check->has_program ? check->launch->program[0] : "";
    enum launch_obstacle obstacle = check->program.obstacle;
    bool is_unstartable = obstacle == LAUNCH_NOWHERE || obstacle == LAUNCH_UNSTARTABLE;
    bool is_shells = obstacle == LAUNCH_NO_OBSTACLE && check->program.script != NULL && check->program.has_no_line;
    const struct launch_program *program = &check->program;
    const char *path = program->path;
    struct elf_facts ours;
    if ((is_unstartable || is_shells) && launch_program_is_python(name)) {
        add_python_script(check, name);
    } else if (!check->has_program) {
        check_add(check, id, FINDING_NONE, NULL, "none given; this tool stands for it (sparkguard --check PROGRAM)");
    } else if (program->obstacle == LAUNCH_FOREIGN && elf_read(check->library, &ours)) {
        check_add(check, id, FINDING_DANGER, advice_about(LAUNCH_FOREIGN),
                  "%s is a %s-bit program for %s, the "
                  "library is for %s",
                  path, program->facts.class == ELFCLASS32 ? "32" : "64", machine_name(program->facts.machine),
                  machine_name(ours.machine));
    } else if (program->obstacle != LAUNCH_NO_OBSTACLE) {
        check_add(check, id, FINDING_DANGER, advice_about(program->obstacle), "%s %s", path,
                  launch_obstacle_text[program->obstacle]);
    } else if (program->script != NULL) {
        check_add(check, id, FINDING_FINE, NULL, "%s, run by %s", program->script, path);
    } else {
        check_add(check, id, FINDING_FINE, NULL, "%s", path);
    }
}

/* Returns whether a dynamic linker is the one that starts this tool. */
static bool is_systems_own(const char *linker)
{
    struct elf_facts own;
    struct stat one, other;
    return elf_read("/proc/self/exe", &own) && stat(own.loader, &one) == 0 && stat(linker, &other) == 0 &&
           one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

static void add_linker(struct check *check, const char *linker, const struct check_loads *loads)
{
    static const char id[] = "loader";
    const char *version = loads->fault != NULL ? strstr(loads->fault, "version `") : NULL;
    if (loads->fault != NULL && loads->is_library)
        check_add(check, id, FINDING_DANGER, "the library needs glibc 2.28 or later: build it where the program runs",
                  "%s does not load the library into it: %s%.*s", linker,
                  version != NULL ? "its C library is too old: " : "",
                  (int)(version != NULL ? strcspn(version, "(") : strlen(loads->fault)),
                  version != NULL ? version : loads->fault);
    else if (loads->fault != NULL)
        check_add(check, id, FINDING_DANGER, "without the guard it would not start either; fix that first",
                  "%s does not load the program: %s", linker, loads->fault);
    else if (loads->auditor != NULL)
        check_add(check, id, FINDING_WARNING, "look at what it is: it runs before the program and the guard",
                  "%s loads the library into it, and the auditor %s, which it names", linker, loads->auditor);
    else
        check_add(check, id, FINDING_FINE, NULL, "%s loads the library into it", linker);
}

void check_loading_linker(struct check *check)
{
    struct check_loads loads;
    const char *linker = check->program.facts.loader;
    if (check->library == NULL || check->program.obstacle != LAUNCH_NO_OBSTACLE) {
        check_add(check, "loader", FINDING_NONE, NULL, "not tried");
        return;
    }
    if (!is_systems_own(linker)) { /* what it does with the tables is not known */
        check_add(check, "loader", FINDING_WARNING, NULL, "%s is not this system's dynamic linker",
                  linker[0] != '\0' ? linker : "what the program names");
        return;
    }
    check_loads_find(check, &loads);
    add_linker(check, linker, &loads);
}

/* What LD_PRELOAD names already. */
struct preloads {
    const char *others; /* base names, "a, b" */
    bool has_ours;      /* the guard is there */
    bool is_behind;
    bool has_ignored;
};

static void take_preload(struct check *check, const char *entry, struct preloads *preloads)
{
    const char *name = basename(entry);
    if (check->loaded != NULL && !check_loads_has(check, entry)) {
        check_add(check, "preload", FINDING_WARNING, "give its full path, or take it out of LD_PRELOAD",
                  "LD_PRELOAD names %s, which the loader ignores", entry);
        preloads->has_ignored = true;
    } else if (strcmp(name, "libsparkguard.so") == 0) {
        preloads->has_ours = true;
        preloads->is_behind = preloads->others[0] != '\0';
    } else {
        text_append(&preloads->others, ", ", name);
    }
}

void check_loading_others(struct check *check)
{
    static const char id[] = "preload";
    const char *variable = getenv("LD_PRELOAD");
    char *list = text_copy(variable != NULL ? variable : "", SIZE_MAX), *rest = list;
    struct preloads preloads = {.others = ""};
    for (char *entry; (entry = strsep(&rest, ": ")) != NULL;)
        if (entry[0] != '\0')
            take_preload(check, entry, &preloads);
    if (preloads.is_behind)
        check_add(check, id, FINDING_WARNING, "name libsparkguard.so first in LD_PRELOAD",
                  "LD_PRELOAD names %s ahead of the guard, which sees no malloc behind an allocator", preloads.others);
    else if (preloads.others[0] != '\0')
        check_add(check, id, FINDING_FINE, NULL, "%s, behind the guard", preloads.others);
    else if (!preloads.has_ignored)
        check_add(check, id, FINDING_FINE, NULL,
                  preloads.has_ours ? "the guard is on in this shell already" : "nothing else");
}
