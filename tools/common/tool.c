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
#include <time.h>

int tool_memory_status = 125;
void (*tool_without_memory)(void);

void tool_end_without_memory(void)
{
    if (tool_without_memory != NULL)
        tool_without_memory();
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

const char *tool_typed_path;

void tool_set_name(char **argv)
{
    tool_typed_path = argv[0] != NULL && strchr(argv[0], '/') != NULL ? argv[0] : NULL;
    program_invocation_name = program_invocation_short_name;
    if (argv[0] != NULL)
        argv[0] = program_invocation_name;
}

int64_t tool_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
