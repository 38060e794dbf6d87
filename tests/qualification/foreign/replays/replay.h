/*
 * replay.h - what the replays share: a condition without which one ends, the library that a replay brings, and threads
 * that allocate.
 */
#ifndef TESTS_REPLAY_H
#define TESTS_REPLAY_H

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define NEED(condition) \
    do \
        if (!(condition)) { \
            fprintf(stderr, "%s, errno %d\n", #condition, errno); \
            _exit(1); \
        } \
    while (0)

/* The same source, built with LIBRARY: beside the program. */
static inline const char *own_library(void)
{
    static char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 20);
    NEED(length > 0);
    path[length] = '\0';
    strcpy(strrchr(path, '/') + 1, "library.so");
    return path;
}

static atomic_bool has_to_end;

/* For pthread_create: blocks of all sizes come and go until has_to_end. */
static inline void *allocate(void *argument)
{
    void *kept[16] = {NULL};
    for (unsigned round = 0; !has_to_end; round++) {
        free(kept[round % 16]);
        kept[round % 16] = malloc(16u << round % 15);
        NEED(kept[round % 16] != NULL);
        memset(kept[round % 16], 1, 16);
    }
    for (int i = 0; i < 16; i++)
        free(kept[i]);
    return argument;
}

static inline void begin(pthread_t *threads, int count)
{
    for (int i = 0; i < count; i++)
        NEED(pthread_create(&threads[i], NULL, allocate, NULL) == 0);
}

static inline void end(const pthread_t *threads, int count)
{
    has_to_end = true;
    for (int i = 0; i < count; i++)
        NEED(pthread_join(threads[i], NULL) == 0);
}

static inline int status_of(pid_t child)
{
    int status;
    NEED(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

#endif
