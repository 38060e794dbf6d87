/*
 * library.c - finds libsparkguard.so, and puts it into LD_PRELOAD.
 */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launch/launch.h"
#include "common/text.h"
#include "common/tool.h"

#ifndef SG_LIBDIR
#define SG_LIBDIR "/usr/local/lib"
#endif

static const char library_name[] = "libsparkguard.so";

/* Returns the absolute path of libsparkguard.so in `folder`, or NULL. */
static char *library_in(const char *folder)
{
    return tool_adopt(realpath(text_format("%s/%s", folder, library_name), NULL));
}

void launch_own_folder(char folder[PATH_MAX])
{
    char self[PATH_MAX] = "";
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    snprintf(folder, PATH_MAX, "%s", length > 0 ? dirname(self) : SG_LIBDIR);
}

char *launch_own_library(char folder[PATH_MAX])
{
    launch_own_folder(folder);
    char *path = library_in(folder);
    return path != NULL ? path : library_in(SG_LIBDIR);
}

bool launch_is_library(const char *path, bool *is_ours)
{
    struct elf_facts facts, self;
    bool is_library = elf_read(path, &facts) && facts.is_elf;
    *is_ours =
        is_library && elf_read("/proc/self/exe", &self) && facts.class == self.class && facts.machine == self.machine;
    return is_library;
}

char *launch_find_library(const struct launch *launch, char **why)
{
    char folder[PATH_MAX];
    bool is_ours;
    char *path = launch->library != NULL ? tool_adopt(realpath(launch->library, NULL)) : launch_own_library(folder);
    *why = NULL;
    if (path == NULL && launch->library != NULL)
        *why = text_format("--library=%s: %s", launch->library, strerror(errno));
    else if (path == NULL)
        *why = text_format("%s is neither in %s nor in %s; give its path with --library=FILE", library_name, folder,
                           SG_LIBDIR);
    else if (!launch_is_library(path, &is_ours))
        *why = text_format("%s is not a shared library that can be read", path);
    else if (strpbrk(path, ": ") != NULL)
        *why = text_format("%s: LD_PRELOAD cannot hold a path with ':' or a blank in it", path);
    if (*why == NULL)
        return path;
    return NULL;
}

void launch_preload(const char *library)
{
    const char *before = getenv("LD_PRELOAD");
    size_t length = strlen(library);
    setenv(SG_VARIABLE_COMMIT, "0", 0);
    for (const char *p = before; p != NULL && (p = strstr(p, library)) != NULL; p += length)
        if ((p == before || p[-1] == ':' || p[-1] == ' ') &&
            (p[length] == '\0' || p[length] == ':' || p[length] == ' '))
            return; /* already there: a launcher under a launcher, or in an order that the user chose */
    char *all =
        before != NULL && before[0] != '\0' ? text_format("%s:%s", library, before) : text_copy(library, length);
    setenv("LD_PRELOAD", all, 1);
}
