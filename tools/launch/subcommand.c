/*
 * subcommand.c - the tools by one name: "sparkguard report" becomes sparkguard-report.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/suggest.h"
#include "common/text.h"
#include "common/tool.h"
#include "launch/launch.h"

static const struct subcommand {
    const char *name;
    const char *tool;   /* base name of the program; NULL: this one */
    const char *option; /* takes the place of the word; NULL: nothing does */
} subcommands[] = {
    {"run", NULL, NULL},
    {"report", "sparkguard-report", NULL},
    {"watch", "sparkguard-report", "--watch"},
    {"sweep", "sparkguard-sweep", NULL},
    {"doctor", "sparkguard-doctor", NULL},
    {"check", NULL, "--check"},
    {"set", NULL, NULL},
};
enum { SUBCOMMAND_COUNT = sizeof subcommands / sizeof *subcommands };

const char *launch_set_name = "--set";

/* Becomes the tool that lies beside this one, whatever PATH has. It calls itself as this one was called, so that its
 * messages name what can be typed. */
static void become(const char *tool, int argc, char **argv, const char *option) __attribute__((noreturn));
static void become(const char *tool, int argc, char **argv, const char *option)
{
    char folder[PATH_MAX];
    launch_own_folder(folder);
    char *path = text_format("%s/%s", folder, tool);
    const char *end = tool_typed_path != NULL ? strrchr(tool_typed_path, '/') : NULL;
    int length = end != NULL ? (int)(end + 1 - tool_typed_path) : 0;
    char **arguments = tool_allocate((size_t)argc + 2, sizeof *arguments);
    char **next = arguments;
    *next++ = text_format("%.*s%s", length, end != NULL ? tool_typed_path : "", tool);
    if (option != NULL)
        *next++ = text_copy(option, strlen(option));
    memcpy(next, argv + 2, ((size_t)argc - 2) * sizeof *next);
    execv(path, arguments);
    fprintf(stderr, "sparkguard: cannot run %s: %s\n", path, strerror(errno));
    exit(LAUNCH_FAILED);
}

int launch_subcommand(struct launch *launch, int argc, char **argv)
{
    for (const struct subcommand *each = subcommands; argc > 1 && each < subcommands + SUBCOMMAND_COUNT; each++) {
        if (strcmp(argv[1], each->name) != 0)
            continue;
        if (each->tool != NULL)
            become(each->tool, argc, argv, each->option);
        if (each->option != NULL) {
            argv[1] = text_copy(each->option, strlen(each->option));
            return argc;
        }
        if (strcmp(each->name, "set") == 0) {
            launch_set_name = each->name;
            launch->is_set = true;
        }
        memmove(argv + 1, argv + 2, ((size_t)argc - 1) * sizeof *argv);
        return argc - 1;
    }
    return argc;
}

bool launch_subcommand_is_option(const char *word)
{
    if (strncmp(word, "--", 2) != 0)
        return false;
    for (int i = 0; i < SUBCOMMAND_COUNT; i++)
        if (strcmp(word + 2, subcommands[i].name) == 0) /* --check and --set are this tool's */
            return subcommands[i].tool != NULL || strcmp(word, "--run") == 0;
    return false;
}

const char *launch_subcommand_near(const char *word)
{
    static const char *const others[][2] = {
        {"help", "--help"}, {"version", "--version"}, {"status", "report"}, {"monitor", "watch"}, {"limit", "set"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(word, others[i][0]) == 0)
            return others[i][1];
    const char *names[SUBCOMMAND_COUNT];
    for (int i = 0; i < SUBCOMMAND_COUNT; i++)
        names[i] = subcommands[i].name;
    return suggest_word(word, names, SUBCOMMAND_COUNT);
}
