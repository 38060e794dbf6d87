/*
 * program.c - finds the program that a name means, and says whether the dynamic linker can preload the library into it.
 * It preloads nothing into a static program, into a program that gains rights, or from another architecture. The
 * dynamic linker of musl does, and the library then passes every call through.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "launch/launch.h"
#include "common/elf.h"
#include "common/text.h"

enum { SCRIPTS_DEEP = 4 }; /* scripts whose interpreter is a script, as the kernel follows them */

const char *const launch_obstacle_text[LAUNCH_OBSTACLE_COUNT] = {
    [LAUNCH_NO_OBSTACLE] = "can be guarded",
    [LAUNCH_NOWHERE] = "was not found",
    [LAUNCH_UNSTARTABLE] = "cannot be executed",
    [LAUNCH_PRIVILEGED] = "gains rights when it starts",
    [LAUNCH_FOREIGN] = "is for another architecture",
    [LAUNCH_STATIC] = "is linked statically",
    [LAUNCH_MUSL] = "is linked with musl, and the library needs glibc",
};

/* Returns the path at which execvp(3) would find a program; NULL if nowhere. */
static char *find_as_execvp(const char *program)
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
        found = NULL;
    }
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

/* Returns the program that a "#!" line starts. Of "/usr/bin/env -S NAME=value python3 -u" it is python3: env only
 * starts it. NULL if the line names none or it was not found. */
static char *interpreter_of(const char *line)
{
    char *words = text_copy(line, SIZE_MAX), *rest = words, *word;
    char *path = NULL;
    while (path == NULL && (word = strsep(&rest, " \t\r")) != NULL)
        if (word[0] != '\0')
            path = text_copy(word, SIZE_MAX);
    const char *name = path != NULL ? strrchr(path, '/') : NULL;
    bool is_env = name != NULL && strcmp(name, "/env") == 0;
    while (is_env && (word = strsep(&rest, " \t\r")) != NULL) {
        if (word[0] == '\0' || word[0] == '-' || strchr(word, '=') != NULL)
            continue;
        path = find_as_execvp(word);
        is_env = false;
    }
    return path;
}

static enum launch_obstacle obstacle_of(const struct elf_facts *facts, const struct elf_facts *library)
{
    if (!facts->is_elf)
        return LAUNCH_NO_OBSTACLE;
    if (facts->class != library->class || facts->machine != library->machine)
        return LAUNCH_FOREIGN;
    if (facts->loader[0] == '\0')
        return LAUNCH_STATIC;
    return elf_is_of_musl(facts) ? LAUNCH_MUSL : LAUNCH_NO_OBSTACLE;
}

/* Returns why execve(2) would not start the file. */
static enum launch_obstacle startable(const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0 && errno != EACCES)
        return LAUNCH_NOWHERE;
    return access(path, X_OK) != 0 || !S_ISREG(status.st_mode) ? LAUNCH_UNSTARTABLE : LAUNCH_NO_OBSTACLE;
}

void launch_program_judge(const char *name, const char *library, struct launch_program *program)
{
    struct elf_facts ours;
    char *path = find_as_execvp(name), *next;
    *program = (struct launch_program){.path = path != NULL ? path : text_copy(name, SIZE_MAX)};
    program->obstacle = path != NULL ? startable(path) : LAUNCH_NOWHERE;
    if (!elf_read(library, &ours))
        return;
    for (int depth = 0; program->obstacle == LAUNCH_NO_OBSTACLE && depth < SCRIPTS_DEEP; depth++) {
        bool is_read = elf_read(program->path, &program->facts);
        if (gains_rights(program->path) && (!is_read || program->facts.is_elf)) { /* scripts gain nothing */
            program->obstacle = LAUNCH_PRIVILEGED;
            return;
        }
        program->obstacle = is_read ? obstacle_of(&program->facts, &ours) : LAUNCH_NO_OBSTACLE;
        if (!is_read || program->facts.is_elf)
            return;
        /* execvp(3) gives a text without "#!" to the shell */
        bool has_line = program->facts.script_line[0] != '\0';
        program->has_no_line = !has_line;
        next = has_line ? interpreter_of(program->facts.script_line) : text_copy("/bin/sh", SIZE_MAX);
        if (program->script == NULL)
            program->script = program->path;
        program->path = next != NULL ? next : text_copy("the interpreter", SIZE_MAX);
        program->obstacle = next != NULL ? startable(next) : LAUNCH_NOWHERE;
    }
    if (program->obstacle == LAUNCH_NO_OBSTACLE) /* the kernel follows no more scripts either */
        program->obstacle = LAUNCH_UNSTARTABLE;
}

/* Returns the interpreter that a script names and that does not exist, NULL if that is not so. */
static char *missing_interpreter(const char *program)
{
    struct elf_facts facts;
    char *path = find_as_execvp(program), interpreter[sizeof facts.script_line] = "";
    bool is_missing = path != NULL && elf_read(path, &facts) && sscanf(facts.script_line, " %255s", interpreter) == 1 &&
                      access(interpreter, F_OK) != 0;
    return is_missing ? text_copy(interpreter, sizeof interpreter) : NULL;
}

bool launch_program_is_python(const char *name)
{
    struct stat status;
    const char *suffix = strrchr(name, '.');
    return suffix != NULL && strcmp(suffix, ".py") == 0 && stat(name, &status) == 0 && S_ISREG(status.st_mode);
}

/* Returns what starts a script that cannot be executed itself, NULL if nothing is known to. */
static const char *starter_of(const char *script)
{
    static const char *const starters[][2] = {{".sh", "sh"},   {".pl", "perl"},  {".js", "node"},
                                              {".rb", "ruby"}, {".jl", "julia"}, {".R", "Rscript"}};
    struct elf_facts facts;
    if (elf_read(script, &facts) && !facts.is_elf && facts.script_line[0] != '\0')
        return text_copy(facts.script_line + strspn(facts.script_line, " \t"), sizeof facts.script_line);
    const char *suffix = strrchr(script, '.');
    for (size_t i = 0; suffix != NULL && i < sizeof starters / sizeof *starters; i++)
        if (strcmp(suffix, starters[i][0]) == 0)
            return starters[i][1];
    return NULL;
}

/* Returns the option for a word such as "limit=64G" or "SPARKGUARD_LIMIT=64G", NULL if it is none. */
static char *option_of(const char *word)
{
    size_t length = strcspn(word, "=");
    for (int i = 0; word[length] == '=' && i < SG_OPTION_COUNT; i++) {
        const struct sg_option_info *info = &sg_option_table[i];
        if ((strlen(info->name) == length && strncmp(word, info->name, length) == 0) ||
            (strlen(info->variable) == length && strncmp(word, info->variable, length) == 0))
            return text_format("--%s%s", info->name, word + length);
    }
    return NULL;
}

/* Returns what was probably meant by a program that cannot be run, NULL if nothing is near. */
static char *probably_meant(const char *tool, const char *name, int failure)
{
    bool is_launcher = strcmp(tool, "sparkguard") == 0;
    const char *before = is_launcher ? "sparkguard " : "";
    struct stat status;
    bool is_file = stat(name, &status) == 0 && S_ISREG(status.st_mode);
    if (launch_program_is_python(name))
        return text_format("%spython3 %s", before, name);
    const char *starter = is_file && access(name, X_OK) != 0 ? starter_of(name) : NULL;
    if (starter != NULL)
        return text_format("%s%s %s", before, starter, name);
    char *option = is_launcher && failure == ENOENT ? option_of(name) : NULL;
    if (option != NULL)
        return text_format("sparkguard %s", option);
    size_t first = strcspn(name, " ");
    char *program = failure == ENOENT && name[first] == ' ' ? find_as_execvp(text_copy(name, first)) : NULL;
    if (program != NULL && startable(program) == LAUNCH_NO_OBSTACLE)
        return text_format("%s%s, without the quotes", before, name);
    if (failure != ENOENT || strchr(name, '/') != NULL)
        return NULL;
    if (strcmp(name, "python") == 0 && find_as_execvp("python3") != NULL)
        return text_format("%spython3", before);
    if (is_file && access(name, X_OK) == 0)
        return text_format("%s./%s", before, name);
    const char *near = is_launcher ? launch_subcommand_near(name) : NULL;
    return near != NULL ? text_format("sparkguard %s", near) : NULL;
}

int launch_program_say_failed(const char *tool, const char *name, int failure)
{
    char *interpreter = failure == ENOENT ? missing_interpreter(name) : NULL;
    char *meant = interpreter == NULL ? probably_meant(tool, name, failure) : NULL;
    char *line = interpreter != NULL ? text_format("its interpreter %s does not exist", interpreter)
                 : meant != NULL     ? text_format("%s; did you mean: %s", strerror(failure), meant)
                                     : text_format("%s", strerror(failure));
    fprintf(stderr, "%s\n", text_printable(text_format("%s: cannot run %s: %s", tool, name, line), false));
    return failure == ENOENT ? LAUNCH_NOT_FOUND : LAUNCH_NOT_EXECUTABLE;
}

enum launch_obstacle launch_program_warn(const char *name, const char *library)
{
    struct launch_program program;
    launch_program_judge(name, library, &program);
    enum launch_obstacle obstacle = program.obstacle;
    if (obstacle == LAUNCH_NOWHERE || obstacle == LAUNCH_UNSTARTABLE) /* execvp(3) tells */
        obstacle = LAUNCH_NO_OBSTACLE;
    if (obstacle != LAUNCH_NO_OBSTACLE)
        fprintf(stderr, "sparkguard: %s %s, so the library cannot be preloaded: it runs unguarded\n", program.path,
                launch_obstacle_text[obstacle]);
    return obstacle;
}
