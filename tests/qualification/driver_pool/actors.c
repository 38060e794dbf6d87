/*
 * actors.c - who is on the machine of a scenario.
 *
 *   actors idle MIB                 takes memory that is not zero, says "ready", never touches it again
 *   actors neighbours COUNT MIB     COUNT processes, one after another, each fills MIB and ends; at the end says how
 *                                   many of them were killed
 *   actors cuda STEP...             one CUDA program:
 *       MIB               asks for device memory, behind its context
 *       drop=FILE         keeps FILE open and drops its page cache by POSIX_FADV_DONTNEED
 *       reclaim=FILE:MIB  writes to a memory.reclaim, without swap
 *       populate=MIB      populates memory and drops it again
 *       hold              says "holding" and waits to be killed
 *
 *   actors as UID COMMAND...        becomes that user, then the command
 *
 * Each step of cuda is a line "step TEXT RESULT MILLISECONDS"; the result of a request is granted or refused.
 * Exit 2: usage, or what no scenario foresees.
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static char *map(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Bytes that no swap device finds to be all the same. */
static char *fill(size_t bytes)
{
    char *memory = map(bytes);
    unsigned long word = 88172645463325252;
    for (size_t at = 0; memory != NULL && at < bytes; at += 64) {
        word ^= word << 13, word ^= word >> 7, word ^= word << 17;
        memcpy(memory + at, &word, sizeof word);
    }
    return memory;
}

static _Noreturn void wait_for_the_end(const char *said)
{
    puts(said);
    fflush(stdout);
    for (;;)
        pause();
}

static int be_neighbours(int count, size_t bytes)
{
    int killed = 0, status;
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(fill(bytes) == NULL);
        if (child < 0 || waitpid(child, &status, 0) != child)
            return 2;
        killed += WIFSIGNALED(status);
    }
    printf("neighbours %d killed\n", killed);
    return 0;
}

/* ---- the CUDA program -------------------------------------------------------------------------------------------- */

static const char *ask(size_t mib)
{
    static CUcontext context;
    CUdeviceptr pointer;
    CUresult result = CUDA_SUCCESS;
    if (context == NULL && (result = cuInit(0)) == CUDA_SUCCESS &&
        (result = cuDevicePrimaryCtxRetain(&context, 0)) == CUDA_SUCCESS)
        result = cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS)
        result = cuMemAlloc_v2(&pointer, mib * MIB);
    return result == CUDA_SUCCESS ? "granted" : result == CUDA_ERROR_OUT_OF_MEMORY ? "refused" : "failed";
}

static const char *drop(const char *file)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 ? "done" : "failed";
}

static const char *reclaim(char *file)
{
    char *colon = strchr(file, ':'), request[64];
    if (colon == NULL)
        return "failed";
    *colon = '\0';
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    int length = snprintf(request, sizeof request, "%s swappiness=0", colon + 1);
    *colon = ':';
    return fd >= 0 && write(fd, request, (size_t)length) == length ? "done" : "failed";
}

static const char *populate(size_t bytes)
{
    char *memory = map(bytes);
    int result = memory == NULL ? -1 : madvise(memory, bytes, MADV_POPULATE_WRITE);
    if (memory != NULL)
        munmap(memory, bytes);
    return result == 0 ? "done" : "failed";
}

static const char *do_step(char *step)
{
    if (strncmp(step, "drop=", 5) == 0)
        return drop(step + 5);
    if (strncmp(step, "reclaim=", 8) == 0)
        return reclaim(step + 8);
    if (strncmp(step, "populate=", 9) == 0)
        return populate((size_t)atol(step + 9) * MIB);
    return ask((size_t)atol(step));
}

static int be_cuda(int count, char **steps)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(steps[i], "hold") == 0)
            wait_for_the_end("holding");
        double begin = now_ms();
        const char *result = do_step(steps[i]);
        printf("step %s %s %.1f\n", steps[i], result, now_ms() - begin);
        fflush(stdout);
    }
    return 0;
}

static int become(const char *user, char **command)
{
    uid_t id = (uid_t)atol(user);
    if (setgid(id) == 0 && setuid(id) == 0)
        execv(command[0], command);
    return 2;
}

int main(int count, char **arguments)
{
    const char *role = count > 2 ? arguments[1] : "";
    if (strcmp(role, "idle") == 0 && fill((size_t)atol(arguments[2]) * MIB) != NULL)
        wait_for_the_end("ready");
    if (strcmp(role, "neighbours") == 0 && count == 4)
        return be_neighbours(atoi(arguments[2]), (size_t)atol(arguments[3]) * MIB);
    if (strcmp(role, "cuda") == 0)
        return be_cuda(count - 2, arguments + 2);
    if (strcmp(role, "as") == 0 && count > 3)
        return become(arguments[2], arguments + 3);
    return 2;
}
