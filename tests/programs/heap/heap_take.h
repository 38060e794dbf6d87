/*
 * heap_take.h - the allocating functions by name, for test programs that do the same with each.
 */
#ifndef HEAP_TAKE_H
#define HEAP_TAKE_H

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int posix_memalign_result;

static void *take(const char *function, size_t size)
{
    void *ptr = NULL;
    if (strcmp(function, "malloc") == 0)
        return malloc(size);
    if (strcmp(function, "calloc") == 0)
        return calloc(size, 1);
    if (strcmp(function, "realloc") == 0)
        return realloc(NULL, size);
    if (strcmp(function, "reallocarray") == 0)
        return reallocarray(NULL, size, 1);
    if (strcmp(function, "aligned_alloc") == 0)
        return aligned_alloc(64, size);
    if (strcmp(function, "memalign") == 0)
        return memalign(256, size);
    if (strcmp(function, "valloc") == 0)
        return valloc(size);
    if (strcmp(function, "pvalloc") == 0)
        return pvalloc(size);
    if (strcmp(function, "posix_memalign") != 0)
        abort();
    posix_memalign_result = posix_memalign(&ptr, 4096, size);
    return ptr;
}

#endif
