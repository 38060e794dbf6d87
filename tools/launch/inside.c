/*
 * inside.c - see inside.h.
 */
#define _GNU_SOURCE
#include "launch/inside.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
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

uint64_t launch_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}
