/*
 * command.c - see command.h.
 */
#include "common/command.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/text.h"
#include "common/tool.h"

/* Returns whether a shell finds this file by its name. */
static bool is_in_path(const char *name, const struct stat *file)
{
    const char *path = getenv("PATH");
    char *folders = text_copy(path != NULL ? path : "", SIZE_MAX), *rest = folders, *folder;
    bool is_found = false, is_same = false;
    while (!is_found && (folder = strsep(&rest, ":")) != NULL) {
        struct stat status;
        char *at = text_format("%s/%s", folder[0] != '\0' ? folder : ".", name);
        is_found = access(at, X_OK) == 0 && stat(at, &status) == 0 && S_ISREG(status.st_mode);
        is_same = is_found && status.st_dev == file->st_dev && status.st_ino == file->st_ino;
    }
    return is_same;
}

char *command_of_tool(const char *name)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
    struct stat file;
    if (tool_typed_path == NULL)
        return text_copy(name, SIZE_MAX);
    char *beside =
        text_format("%.*s/%s", (int)(strrchr(tool_typed_path, '/') - tool_typed_path), tool_typed_path, name);
    if (stat(beside, &file) != 0 || is_in_path(name, &file))
        return text_copy(name, SIZE_MAX);
    char *printable = text_printable(beside, false);
    bool is_plain = strspn(printable, plain) == strlen(printable);
    return is_plain ? text_copy(printable, SIZE_MAX) : text_format("'%s'", printable);
}

char *command_in_claim(char *command)
{
    char *word = strstr(command, "sparkguard " COMMAND_IN_CLAIM);
    if (word == NULL || (word != command && word[-1] != '/'))
        return NULL;
    char *rest = word + sizeof("sparkguard " COMMAND_IN_CLAIM) - 1;
    rest += strspn(rest, "0123456789");
    return *rest == ' ' ? rest + 1 : NULL;
}
