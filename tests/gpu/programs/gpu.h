/*
 * gpu.h - what the programs of tests/gpu share. They use the public runtime, and the driver through it, so that one
 * source runs over the real shared runtime, the static one and the stand-ins of tests/sim. They print "key value"
 * lines.
 */
#ifndef SGTEST_GPU_H
#define SGTEST_GPU_H

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

/* Ends the program where a step that is not under test fails; 3 tells it from what a test expects. */
#define MUST(call) \
    do { \
        int must_result = (int)(call); \
        if (must_result != 0) { \
            fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, must_result); \
            exit(3); \
        } \
    } while (0)

/* The driver's function as of a CUDA version: 11020 is 11.2. */
static inline void *driver_function(const char *name, unsigned int version)
{
    enum cudaDriverEntryPointQueryResult status;
    void *function = NULL;
    MUST(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &status));
    if (!function) {
        fprintf(stderr, "this driver has no %s of CUDA %u\n", name, version);
        exit(3);
    }
    return function;
}

/* driver(cuMemCreate, 10020)(...): typed by cudaTypedefs.h, which the program includes. */
#define driver(name, version) ((PFN_##name##_v##version)driver_function(#name, version))

static inline size_t free_bytes(void)
{
    size_t left = 0, total = 0;
    MUST(cudaMemGetInfo(&left, &total));
    return left;
}

/* Nothing happens until whoever reads has looked at this process. */
static inline void rest(void)
{
    puts("quiet");
    fflush(stdout);
    if (getchar() == EOF)
        exit(4);
}

/* A file of /proc, or of the machine that the simulated driver plays. */
static inline const char *proc(const char *name)
{
    static char path[4200];
    const char *fake = getenv("SGSIM_MEMINFO"), *slash = fake ? strrchr(fake, '/') : NULL;
    snprintf(path, sizeof path, "%.*s/%s", slash ? (int)(slash - fake) : 5, slash ? fake : "/proc", name);
    return path;
}

/* Whether the driver keeps freed pages in pools of its own. */
static inline int has_pools(void)
{
    FILE *file = fopen(proc("driver/nvidia/params"), "re");
    char line[256];
    unsigned long mask = 0;
    while (file && mask == 0 && fgets(line, sizeof line, file))
        (void)sscanf(line, "EnableSystemMemoryPools: %lu", &mask);
    if (file)
        fclose(file);
    return mask != 0;
}

/* -1: unknown. */
static inline long long available_bytes(void)
{
    FILE *file = fopen(proc("meminfo"), "re");
    char line[128];
    long long kib = -1;
    while (file && kib < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) != 1)
            kib = -1;
    if (file)
        fclose(file);
    return kib * 1024;
}

/* How many milliseconds freed memory may take to show: GPU_BACK_MS. A driver that is simulated shows it at once or never. */
static inline int back_ms_most(void)
{
    const char *text = getenv("GPU_BACK_MS");
    return text ? atoi(text) : 3000;
}

#endif
