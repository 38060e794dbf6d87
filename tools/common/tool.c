/*
 * tool.c - see tool.h.
 */
#define _GNU_SOURCE
#include "common/tool.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/text.h"

int tool_memory_status = 125;

void tool_end_without_memory(void)
{
    fprintf(stderr, "%s: out of memory\n", program_invocation_short_name);
    exit(tool_memory_status);
}

void *tool_allocate(size_t count, size_t bytes_each)
{
    void *ptr = calloc(count ? count : 1, bytes_each);
    if (ptr == NULL)
        tool_end_without_memory();
    return ptr;
}

static const char *typed_path; /* in argv[0]; NULL: a name, found in PATH */

void tool_set_name(char **argv)
{
    typed_path = argv[0] != NULL && strchr(argv[0], '/') != NULL ? argv[0] : NULL;
    program_invocation_name = program_invocation_short_name;
    if (argv[0] != NULL)
        argv[0] = program_invocation_name;
}

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
        free(at);
    }
    free(folders);
    return is_same;
}

char *tool_command(const char *name)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
    struct stat file;
    if (typed_path == NULL)
        return text_copy(name, SIZE_MAX);
    char *beside = text_format("%.*s/%s", (int)(strrchr(typed_path, '/') - typed_path), typed_path, name);
    if (stat(beside, &file) != 0 || is_in_path(name, &file)) {
        free(beside);
        return text_copy(name, SIZE_MAX);
    }
    char *printable = text_printable(beside, false);
    bool is_plain = strspn(printable, plain) == strlen(printable);
    char *command = is_plain ? text_copy(printable, SIZE_MAX) : text_format("'%s'", printable);
    free(printable);
    free(beside);
    return command;
}

int64_t tool_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
