/*
 * inside.c - see launch.h.
 */
#include "launch/launch.h"

#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/text.h"

char *launch_own_path(void)
{
    char path[PATH_MAX] = "";
    return text_copy(readlink("/proc/self/exe", path, sizeof path - 1) > 0 ? path : "sparkguard", SIZE_MAX);
}

void launch_find_export(const char *name, void *function, size_t size)
{
    const void *symbol = dlsym(RTLD_DEFAULT, name);
    memcpy(function, &symbol, size);
}

void launch_become_shell(const char *command)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setenv(sg_option_table[SG_OPTION_DISABLE].variable, "1", 1);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(LAUNCH_NOT_FOUND);
}
